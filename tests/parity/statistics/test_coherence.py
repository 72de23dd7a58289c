"""Coherence: each figure against a model whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clefq.clef.records import Question, Record
from clefq.data.variants import make_variants
from clefq.parity.statistics.pair_statistics import StatisticsSpec, compare
from clefq.parity.statistics.pairs import join
from clefq.store.predictions import Predictions
from clefq.store.variant_links import TRANSFORMS, parse_variant_id, renamed_options
from tests.parity.coherent import (
    RECORDS,
    Model,
    blind,
    coherent,
    crowded_out,
    deaf_to_not,
    figures,
    first_option,
    predictions,
    records,
    sharper,
)


def moves(candidate: Model, what: str = "candidate") -> dict[str, float]:
    """Mean total variation by transform."""
    found = figures(candidate).metrics
    stem = f"coherence_tv_{what}@"
    return {
        name.removeprefix(stem): metric.estimate  # type: ignore[misc]
        for name, metric in found.items()
        if name.startswith(stem)
    }


def test_a_coherent_model_moves_under_nothing() -> None:
    assert set(moves(coherent)) == {"all", *TRANSFORMS} - {"empty"}
    assert max(moves(coherent).values()) < 1e-9
    found = figures(coherent).metrics
    assert found["coherence_flips_candidate@all"].estimate == 0
    assert found["state_use_candidate"].estimate > 0.3  # type: ignore[operator]


def test_a_head_that_prefers_the_first_option_is_found_by_its_order_alone() -> None:
    found = moves(first_option)
    assert found.pop("order") > 0.1
    # the first of `ask, end, go, pay` stays the first under opaque ids; a negated question has
    # its options where they were, and now means the other
    assert found.pop("negated") > 0.1
    assert found.pop("all") > 0.01
    assert max(found.values()) < 1e-9
    whole = figures(first_option).metrics["coherence_flips_delta@all"]
    assert (whole.method, whole.n_questions) == ("tango", 3 * RECORDS)
    delta = figures(first_option).metrics["coherence_flips_delta@order"]
    assert delta.method == "tango"
    assert delta.lower > 0  # type: ignore[operator]
    assert delta.n_records == delta.n_questions == RECORDS


def test_a_model_that_ignores_the_state_keeps_its_answers_without_it() -> None:
    found = figures(blind).metrics
    assert found["state_use_candidate"].estimate == 0
    assert found["state_use_delta"].upper < -0.2  # type: ignore[operator]
    assert max(moves(blind).values()) < 1e-9


def test_a_model_deaf_to_negation() -> None:
    found = moves(deaf_to_not)
    assert found["negated"] > 0.3
    assert found["order"] < 1e-9


def test_other_questions_that_dilute() -> None:
    found = moves(crowded_out)
    assert found["alone"] > 0.05
    assert found["crowded"] > 0.02
    assert found["before"] < 1e-9


def test_another_temperature_is_no_incoherence() -> None:
    assert max(moves(sharper).values()) < 1e-9
    assert figures(sharper).metrics["tv"].estimate > 0.05  # type: ignore[operator]


def test_all_other_figures_are_of_the_originals() -> None:
    alone = frozenset(record.id for record in records() if parse_variant_id(record.id) is None)

    def plain(model: Model) -> Predictions:
        found = predictions(model, "bf16" if model is coherent else "nvfp4")
        return replace(found, frame=found.frame[found.frame.record_id.isin(alone)])

    spec = StatisticsSpec(resamples=500, slices=False, threads=1)
    expected = compare(join(plain(coherent), plain(first_option)), spec).metrics
    found = figures(first_option).metrics
    assert {name: found[name] for name in expected} == expected
    assert expected["accuracy_delta"].n_questions == 2 * RECORDS


def test_a_gate_reads_a_slice_and_none_where_there_are_no_variants() -> None:
    statistics = figures(first_option)
    found = statistics.for_gate("coherence_tv_delta@order", "type=choice", margin=0.01)
    assert found is not None
    assert found.estimate == statistics.metrics["coherence_tv_delta@order"].estimate
    assert statistics.for_gate("coherence_tv_delta@order", "cohort=none") is None
    alone = predictions(coherent)
    frame = alone.frame[~alone.frame.record_id.str.contains("::")]
    plain = compare(join(replace(alone, frame=frame), replace(alone, frame=frame)))
    assert plain.for_gate("coherence_tv_delta@order") is None


def test_a_failed_variant_leaves_its_question_out_and_counts_against_coverage() -> None:
    from clefq.parity.gates.compare import coverage_of

    candidate = predictions(coherent, "nvfp4")
    at = candidate.frame.index[candidate.frame.record_id == "r07::variant=order"][0]
    candidate.frame.at[at, "logprobs"] = None
    candidate.frame.at[at, "error"] = "non-finite logits"
    pairs = join(predictions(coherent), candidate)
    found = compare(pairs, StatisticsSpec(resamples=50, slices=False)).metrics
    assert found["coherence_tv_delta@order"].n_questions == RECORDS - 1
    assert found["coverage"].estimate == 1
    spec = type("Spec", (), {"expected": None, "truth": None, "set_read": True, "copies": 0})()
    coverage = coverage_of(pairs, 0.999, spec)
    assert coverage.candidate_failed == 1
    assert coverage.expected == pairs.whole.n_questions


@pytest.mark.parametrize("name", ["opaque", "order"])
@pytest.mark.parametrize("size", [2, 3, 12])
def test_dealt_options_are_what_the_record_holds(name: str, size: int) -> None:
    question = Question("q", "choice", "?", {f"o{k}": None for k in range(size)})
    record = Record("r", "c", "state", (question,))
    [made] = make_variants(record, record, (name,))
    ref = parse_variant_id(made.id)
    assert ref is not None
    mapping = renamed_options(ref, "q", question.option_ids)
    found = {item.id: item.description for item in made.questions[0].options}
    assert {mapping[option]: option for option in question.option_ids} == found
    order = [found[key] for key in made.questions[0].option_ids]
    assert (order == list(question.option_ids)) == (name == "opaque")


def test_the_deal_never_changes() -> None:
    ref = parse_variant_id("r::variant=order")
    assert ref is not None
    dealt = renamed_options(ref, "q", ["a", "b", "c", "d"])
    assert dealt == {"a": "option_0", "b": "option_1", "c": "option_3", "d": "option_2"}
