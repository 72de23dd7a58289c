"""Status of single gates: intervals against limits, minimum sizes, slices, further questions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from clefq.parity.gates.judging import FigureQuery, decide, judge_gates, questions_needed
from clefq.parity.gates.planning import questions_for_floor
from clefq.parity.gates.schema import Gate, GateFile, SliceSelector
from clefq.parity.statistics.metric import Metric

AGREEMENT = Gate("floor", "agreement", "at_least", None, 0.95)
DELTA = Gate("delta", "accuracy_delta", "at_least", 0.02, None)
TV = Gate("tv", "tv", "at_most", None, 0.05)


def metric(
    estimate: float | None,
    lower: float | None,
    upper: float | None,
    n: int = 1000,
    records: int = 500,
    infinite: int = 0,
) -> Metric:
    return Metric(estimate, lower, upper, 0.95, "test", None, n, records, infinite, "share")


class Source:
    """Figures from a table (metric, slice) → Metric; remembers what was asked."""

    def __init__(self, figures: Mapping[tuple[str, str], Metric]) -> None:
        self.figures = figures
        self.asked: list[FigureQuery] = []

    def figure(self, query: FigureQuery) -> Metric | None:
        self.asked.append(query)
        return self.figures.get((query.metric, query.slice))

    def missing(self, query: FigureQuery) -> str:
        return f"no {query.slice}"

    def slice_names(self, by: str) -> Sequence[str]:
        return [name for _, name in self.figures if name.startswith(f"{by}=")]


def judge(gate: Gate, figures: Mapping[tuple[str, str], Metric]):
    return judge_gates(GateFile("t", "d", (gate,)), Source(figures))


@pytest.mark.parametrize(
    ("gate", "bounds", "status"),
    [
        (DELTA, (-0.02, 0.01), "pass"),
        (DELTA, (-0.0201, 0.01), "inconclusive"),
        (DELTA, (-0.05, -0.02), "inconclusive"),
        (DELTA, (-0.05, -0.0201), "fail"),
        (AGREEMENT, (0.95, 0.99), "pass"),
        (AGREEMENT, (0.94, 0.95), "inconclusive"),
        (AGREEMENT, (0.90, 0.9499), "fail"),
        (TV, (0.01, 0.05), "pass"),
        (TV, (0.05, 0.06), "inconclusive"),
        (TV, (0.0501, 0.06), "fail"),
    ],
)
def test_non_inferiority_rules(gate: Gate, bounds: tuple[float, float], status: str) -> None:
    middle = sum(bounds) / 2
    (result,) = judge(gate, {(gate.metric, "overall"): metric(middle, *bounds)})
    assert result.status == status


def test_one_sided_confidence_becomes_a_two_sided_interval_and_the_limit_is_passed_on() -> None:
    source = Source({})
    judge_gates(GateFile("t", "d", (replace(DELTA, confidence=0.95), TV)), source)
    assert [query.confidence for query in source.asked] == pytest.approx([0.90, 0.95])
    assert [query.limit for query in source.asked] == [-0.02, 0.05]


def test_too_little_data_is_not_gated_and_says_how_much_is_needed() -> None:
    (few,) = judge(AGREEMENT, {("agreement", "overall"): metric(1.0, 0.97, 1.0, n=199)})
    assert (few.status, few.questions_needed) == ("not_gated", 200)
    (clustered,) = judge(
        AGREEMENT, {("agreement", "overall"): metric(1.0, 0.97, 1.0, n=300, records=9)}
    )
    assert clustered.status == "not_gated"
    assert "9 records" in clustered.reason
    assert clustered.questions_needed == 334  # ten records at 33.3 questions each
    (none,) = judge(AGREEMENT, {("agreement", "overall"): metric(None, None, None, n=0, records=0)})
    assert (none.status, none.questions_needed) == ("not_gated", None)
    (bare,) = judge(AGREEMENT, {("agreement", "overall"): metric(1.0, None, None)})
    assert bare.status == "not_gated"
    (gone,) = judge(AGREEMENT, {})
    assert (gone.status, gone.n_questions) == ("not_gated", 0)


def test_kl_is_not_gated_below_256_records_and_fails_where_it_is_infinite() -> None:
    gate = Gate("kl", "kl", "at_most", None, 0.1)
    (small,) = judge(gate, {("kl", "overall"): metric(0.01, 0.005, 0.02, records=255)})
    assert small.status == "not_gated"
    (infinite,) = judge(gate, {("kl", "overall"): metric(None, None, None, infinite=3)})
    assert infinite.status == "fail"
    nll = Gate("nll", "nll_delta", "at_most", 0.1, None)
    (unknown,) = judge(nll, {("nll_delta", "overall"): metric(None, None, None, infinite=3)})
    assert unknown.status == "inconclusive"


def test_an_infinite_excess_does_not_fail_the_candidate() -> None:
    gate = Gate("kl", "kl", "at_most", 0.1, None, reference="replicate")
    (found,) = judge(gate, {("kl", "overall"): metric(None, None, None, infinite=3)})
    assert found.status == "inconclusive"


@pytest.mark.parametrize(
    ("bounds", "status"), [((0.11, None), "fail"), ((0.05, None), "inconclusive")]
)
def test_an_open_end_still_counts(bounds: tuple[float, None], status: str) -> None:
    gate = Gate("tv", "tv", "at_most", None, 0.1, SliceSelector(length="*"))
    (found,) = judge(gate, {("tv", "length=<2K"): metric(0.12, *bounds)})
    assert (found.status, found.required) == (status, True)
    assert found.upper is None


def test_a_lower_limit_of_a_distance_can_fail_but_not_pass() -> None:
    gate = Gate("kl", "kl", "at_most", None, 0.1)
    good, bad = metric(0.01, 0.005, 0.02), metric(0.2, 0.15, 0.3)
    for figure, status in ((good, "inconclusive"), (bad, "fail")):
        (found,) = judge(gate, {("kl", "overall"): replace(figure, unit="≥ nats")})
        assert found.status == status
    assert judge(replace(gate, required=False), {("kl", "overall"): good})[0].status == "pass"


BY_LENGTH = Gate("by-length", "agreement", "at_least", None, 0.9, SliceSelector(length="*"))


def test_every_slice_with_enough_records_is_judged_and_the_others_do_not_count() -> None:
    results = judge(
        BY_LENGTH,
        {
            ("agreement", "length=<2K"): metric(0.95, 0.93, 0.97),
            ("agreement", "length=2-8K"): metric(0.80, 0.75, 0.85),
            ("agreement", "length=8-32K"): metric(0.5, 0.3, 0.7, n=40),
        },
    )
    assert [(r.name, r.status, r.required) for r in results] == [
        ("by-length[<2K]", "pass", True),
        ("by-length[2-8K]", "fail", True),
        ("by-length[8-32K]", "not_gated", False),
    ]


def test_no_slice_with_enough_records_leaves_the_gate_open() -> None:
    results = judge(BY_LENGTH, {("agreement", "length=<2K"): metric(1.0, 0.9, 1.0, n=50)})
    assert [(r.name, r.status, r.required) for r in results] == [
        ("by-length", "not_gated", True),
        ("by-length[<2K]", "not_gated", False),
    ]


def test_named_slice_that_the_set_lacks_is_not_gated() -> None:
    gate = replace(BY_LENGTH, slice=SliceSelector(cohort="gone"))
    (result,) = judge(gate, {})
    assert (result.status, result.slice, result.required) == ("not_gated", "cohort=gone", True)


def test_questions_needed_follows_the_square_root_law() -> None:
    figure = metric(0.97, 0.94, 0.99, n=300)
    needed = questions_needed(figure, 0.95, 0.975)
    # distance 0.02, half-width 0.03: (1.5 · (1.960 + 0.842)/1.960)² = 4.60 times 300
    assert needed == pytest.approx(1400, abs=50)
    assert questions_needed(metric(0.95, 0.94, 0.96), 0.95, 0.975) is None
    assert questions_needed(metric(0.950001, 0.90, 0.99), 0.95, 0.975) is None


def test_a_required_gate_on_a_mean_without_an_upper_bound_can_fail_but_not_pass() -> None:
    gate = Gate("kl", "kl", "at_most", None, 0.1)
    for bounds, status in (
        ((0.005, 0.02), "not_gated"), ((0.05, 0.2), "not_gated"), ((0.11, 0.2), "fail"),
    ):  # fmt: skip
        figure = metric(sum(bounds) / 2, *bounds, n=9000, records=9000)
        (found,) = judge(gate, {("kl", "overall"): figure})
        assert found.status == status
    (open_gate,) = judge(gate, {("kl", "overall"): metric(0.01, 0.005, 0.02, records=9000)})
    assert "no upper bound" in open_gate.reason


def test_without_a_flip_the_questions_needed_are_those_of_the_plan() -> None:
    n = 100
    shrink = (stats.norm.ppf(0.975) / stats.t.ppf(0.975, n - 1)) ** 2
    figure = metric(1.0, 0.025 ** (1 / (n * shrink)), 1.0, n=n, records=n)
    assert questions_needed(figure, 0.98, 0.975) == questions_for_floor(0.98) == 186
    flipped = replace(figure, estimate=0.0, lower=0.0, upper=1 - figure.lower)
    assert questions_needed(flipped, 0.02, 0.975) == 186
    # ten questions a record and no flip: the set must have ten times as many
    clustered = replace(figure, n_questions=1000)
    assert questions_needed(clustered, 0.98, 0.975) == pytest.approx(1860, rel=0.02)
    half = 1.96**2 / (n + 1.96**2)
    unchanged = replace(figure, estimate=0.0, lower=-half, upper=half, n_questions=1000)
    assert questions_needed(unchanged, -0.02, 0.975) == pytest.approx(1880, rel=0.02)


@given(
    st.floats(-1, 1), st.floats(-1, 1), st.floats(-1, 1), st.sampled_from(["at_least", "at_most"])
)
def test_status_is_symmetric_under_reflection(a: float, b: float, limit: float, way: str) -> None:
    lower, upper = min(a, b), max(a, b)
    other = "at_most" if way == "at_least" else "at_least"
    assert decide(way, limit, lower, upper)[0] == decide(other, -limit, -upper, -lower)[0]


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(-1, 1))
def test_pass_and_fail_exclude_each_other_at_both_ends(a: float, b: float, limit: float) -> None:
    lower, upper = min(a, b), max(a, b)
    status = decide("at_least", limit, lower, upper)[0]
    assert (status == "pass") == (lower >= limit)
    assert (status == "fail") == (upper < limit)


def test_a_share_without_an_event_needs_more_in_proportion() -> None:
    """Its bound shrinks with n, not with the root of n; the plan of a floor says the same."""
    from clefq.parity.gates.planning import questions_for_floor
    from clefq.parity.statistics.intervals import clopper_pearson

    lower = clopper_pearson(100, 100, 0.95)[0]
    figure = Metric(1.0, lower, 1.0, 0.95, "korn_graubard", None, 100, 100, 0, "share")
    needed = questions_needed(figure, 0.98, 0.975)
    assert needed == pytest.approx(questions_for_floor(0.98), rel=0.1)


def test_a_gate_on_the_classes_of_one_question_leaves_the_others_alone() -> None:
    selector = SliceSelector(gold="queue/*")
    gate = replace(AGREEMENT, metric="accuracy_candidate", slice=selector, min_n=30)
    figures = {
        ("accuracy_candidate", "gold=queue/billing"): metric(0.99, 0.97, 1.0),
        ("accuracy_candidate", "gold=queue/refund"): metric(0.8, 0.7, 0.9),
        ("accuracy_candidate", "gold=urgent/true"): metric(0.5, 0.4, 0.6),
    }
    found = {result.name: result.status for result in judge(gate, figures)}
    assert found == {"floor[queue/billing]": "pass", "floor[queue/refund]": "fail"}
