"""Whether another machine's predictions reproduce a published report.

The same set, the same two models by hash, the report's own gates: the verdict and the status of
every required gate must come out again. Where the published predictions lie beside the report,
each model is also held against itself: the candidate here must agree with the candidate there, and
what the baseline differs by is the noise that two machines have anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from clefq.parity.comparison import judge_spec
from clefq.parity.gates.compare import CandidateReport, judge_candidate
from clefq.parity.gates.formatting import figure, interval
from clefq.parity.gates.judging import FAIL, INCONCLUSIVE, PASS, decide
from clefq.parity.gates.schema import GateFile
from clefq.parity.gates.verdict import INVALID, worst
from clefq.parity.rejudge import embedded_gates, stored_evidence, stored_predictions
from clefq.parity.report.parity_json import document_digest, read_parity
from clefq.parity.statistics.metric import Metric
from clefq.parity.statistics.pair_statistics import StatisticsSpec, compare
from clefq.parity.statistics.pairs import join
from clefq.parity.statistics.set_truth import read_truth
from clefq.store.predictions import Predictions, read_predictions

# What a candidate must agree with itself by, where the report's gates name no such floor.
SAME_ANSWERS = 0.98


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was compared.

    Attributes:
        name: What.
        status: `pass`, `fail`, `inconclusive` or `invalid`.
        text: What was found.
    """

    name: str
    status: str
    text: str


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What came of it.

    Attributes:
        word: The worst of the checks.
        published: The report's verdict.
        here: The verdict of the predictions here by the report's gates; None where they are of
            something else.
        checks: What was compared, in order.
    """

    word: str
    published: str
    here: str | None
    checks: tuple[Check, ...]

    def to_json(self) -> dict[str, Any]:
        """The JSON object."""
        return asdict(self)


def reproduce(report: Path, baseline: Path, candidate: Path, set_path: Path | None) -> Reproduction:
    """Judges predictions against a published report.

    Args:
        report: Its `parity.json`.
        baseline: The baseline's predictions here.
        candidate: The candidate's predictions here.
        set_path: The set's folder, or None where it is not here.

    Raises:
        InputError: A file is unusable, or the report contradicts itself.
    """
    document = read_parity(report)
    published = str(document["verdict"]["word"])
    sides = read_predictions(baseline), read_predictions(candidate)
    checks = list(_identity(document, sides))
    if any(check.status == INVALID for check in checks):
        return Reproduction(INVALID, published, None, tuple(checks))
    loaded = embedded_gates(document["gate_file"], report)
    spec = judge_spec(loaded, stored_evidence(document), None)
    truth = None if set_path is None else read_truth(set_path)
    expected = document["coverage"]["expected"]
    spec = replace(spec, truth=truth, set_read=truth is not None, expected=expected)
    found = judge_candidate(*sides, spec)
    checks += _verdict(document, found)
    checks += _answers(document, report, sides, loaded.gates)
    word = worst([check.status for check in checks])
    return Reproduction(word, published, found.verdict.word, tuple(checks))


def _identity(
    document: Mapping[str, Any], sides: tuple[Predictions, Predictions]
) -> Iterator[Check]:
    """Whether the same was run: digest, set, models, and how."""
    if document_digest(document) != document["provenance"]["digest"]:
        yield Check("report", INVALID, "it was changed after it was made")
    wanted, here = document["eval_set"]["sha256"], sides[0].meta.eval_set_sha256
    status = PASS if wanted == here == sides[1].meta.eval_set_sha256 else INVALID
    yield Check("set", status, f"published on {wanted[:12]}, here {here[:12]}")
    for role, side in zip(("baseline", "candidate"), sides, strict=True):
        stored = document[role]
        there, own = stored["model_sha256"], side.meta.model_sha256
        if there is None or own is None:
            text = "one side has no hash: nothing shows that it is the same model"
            yield Check(f"{role}'s model", INCONCLUSIVE, text)
        else:
            status = PASS if there == own else INVALID
            yield Check(f"{role}'s model", status, f"{there[:12]}, here {own[:12]}")
        other = [
            f"{name} {stored[name]}, here {getattr(side.meta, name)}"
            for name in ("arithmetic", "kernels", "max_length", "truncate_state")
            if stored[name] != getattr(side.meta, name)
        ]
        if other:
            yield Check(f"{role} as it ran", INCONCLUSIVE, "; ".join(other))


def _verdict(document: Mapping[str, Any], found: CandidateReport) -> Iterator[Check]:
    published, here = document["verdict"]["word"], found.verdict.word
    status = PASS if published == here else FAIL
    yield Check("verdict", status, f"published {published.upper()}, here {here.upper()}")
    stored = {(gate["name"], gate["slice"]): gate for gate in document["gates"]}
    for result in found.results:
        old = stored.get((result.name, result.slice))
        if old is None or not result.required:
            continue
        shown = figure(result.estimate, signed=result.margin is not None)
        before = figure(old["estimate"], signed=result.margin is not None)
        status = PASS if old["status"] == result.status else FAIL
        text = f"{before} {old['status']}, here {shown} {result.status}".replace("_", " ")
        if status == PASS and not _inside(old, result.estimate):
            status, text = FAIL, f"{text}, outside the published interval"
        yield Check(f"gate {result.name}", status, text)


def _inside(old: Mapping[str, Any], estimate: float | None) -> bool:
    """Whether a figure lies within the published interval; the questions are the same ones."""
    if estimate is None or old["lower"] is None or old["upper"] is None:
        return bool(estimate == old["estimate"])
    return bool(old["lower"] <= estimate <= old["upper"])


def _answers(
    document: Mapping[str, Any],
    report: Path,
    sides: tuple[Predictions, Predictions],
    gates: GateFile,
) -> Iterator[Check]:
    """Each model against itself, where the published predictions are at hand."""
    files, changed = stored_predictions(document, report)
    if changed:
        yield Check("published answers", INVALID, "they were changed after the report")
    if files is None:
        text = "not beside the report: only verdict and figures were compared"
        yield Check("published answers", PASS, text)
        return
    floor = next(
        (g.bound for g in gates.gates if g.metric == "confident_agreement" and g.slice is None),
        None,
    )
    for role, file, side in zip(("baseline", "candidate"), files[:2], sides, strict=True):
        spec = StatisticsSpec(gate_file_sha256=document["gate_file"]["sha256"], slices=False)
        found = compare(join(read_predictions(file), side), spec).metrics
        sure, tv = found["confident_agreement"], found["tv"]
        text = (
            f"{figure(found['agreement'].estimate)} the same answers, where it was sure "
            f"{figure(sure.estimate)} {interval(sure.lower, sure.upper)}, TV "
            f"{figure(tv.estimate)}"
        )
        if role == "baseline":
            yield Check("baseline against itself (noise)", PASS, text)
        else:
            status = PASS if tv.estimate == 0 else _same(sure, floor or SAME_ANSWERS)
            yield Check("candidate against itself", status, text)


def _same(sure: Metric, floor: float) -> str:
    if sure.lower is None or sure.upper is None:
        return INCONCLUSIVE
    return decide("at_least", floor, sure.lower, sure.upper)[0]
