"""Judges stored reports again: from the predictions where they lie, else from stored bounds.

A report is judged against the gate file that it embeds. Judged from stored bounds the verdict is
labelled so: nobody can check the figures behind it without the predictions. Where other
predictions lie in their place the report is stale, and invalid; so is one whose digest is not its
own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clefq.errors import ClefqError, InputError
from clefq.parity.comparison import FROM_BOUNDS, FROM_PREDICTIONS, judge_spec, provenance
from clefq.parity.gates.compare import (
    ROUNDED_COPY,
    WEAK_BASELINE,
    CandidateReport,
    gate_banners,
    gated_overall,
    judge_candidate,
)
from clefq.parity.gates.files import LoadedGates
from clefq.parity.gates.judging import FigureQuery, judge_gates, limit_of
from clefq.parity.gates.looks import LOOKS_BANNER, Look
from clefq.parity.gates.preregistration import (
    UNPROVEN,
    Commit,
    GitEvidence,
    Preregistration,
    assess,
)
from clefq.parity.gates.schema import parse_gates
from clefq.parity.gates.verdict import INVALID, Coverage, Verdict, VerdictInputs, draw_verdict
from clefq.parity.report.keeping import REPORT_FILE, SUMMARY_FILE
from clefq.parity.report.parity_json import document_digest, parity_document, read_parity, signed
from clefq.parity.statistics.clustering import record_banners
from clefq.parity.statistics.metric import OVERALL, Metric
from clefq.parity.statistics.metric_facts import lacks_probabilities
from clefq.parity.statistics.set_truth import OF_THE_SET
from clefq.parity.statistics.slices import slice_order
from clefq.plain_files import read_json, sha256_bytes, sha256_file
from clefq.store.predictions import Growth, PredictionsMeta, read_predictions

STORED_BANNER = "judged from stored bounds: the predictions behind them are not here"


@dataclass(frozen=True, slots=True)
class Rejudged:
    """A report judged again.

    Attributes:
        path: Its `parity.json`.
        document: The `parity.json` value as it would be written now.
        stored_word: The verdict that the file holds.
        judged_from: `predictions` or `stored bounds`.
    """

    path: Path
    document: Mapping[str, Any]
    stored_word: str
    judged_from: str

    @property
    def word(self) -> str:
        """The verdict now."""
        return str(self.document["verdict"]["word"])


def find_reports(target: Path) -> list[Path]:
    """Every `parity.json` at or under `target`.

    A report folder is held against its `summary.json`, which names every candidate that was judged
    together. One that was edited, or a folder that is gone as a whole, cannot be seen.

    Raises:
        InputError: There is none, or a candidate of a comparison or the list of them is gone.
    """
    if target.suffix in (".yaml", ".yml"):
        raise InputError(
            f"{target} is a gate file, not a report.",
            fix=f"bind it: clefq gate {target} --freeze --set SET --baseline X",
        )
    if target.is_file():
        return [target]
    missing = [
        f"{summary.parent / variant / REPORT_FILE} (it said {word.upper()})"
        for summary in sorted(target.rglob(SUMMARY_FILE))
        for variant, word in _said_in(summary)
        if not (summary.parent / variant / REPORT_FILE).is_file()
    ]
    if missing:
        raise InputError(
            f"{target}: a candidate of the comparison has no report any more:",
            fix="make the reports again with `clefq parity`.",
            faults=missing,
        )
    found = sorted(
        path
        for path in target.rglob(REPORT_FILE)
        if not any(part.startswith(".") for part in path.relative_to(target).parts)
    )
    if not found:
        what = f"holds no {REPORT_FILE}" if target.exists() else "is not there"
        raise InputError(f"{target} {what}.", fix="make a report with `clefq parity`.")
    _check_listed([path for path in found if path.parent != target])
    return found


def _check_listed(reports: Sequence[Path]) -> None:
    """Refuses reports of a comparison of which nobody can tell who was in it."""
    faults = []
    for folder in sorted({path.parent.parent for path in reports}):
        summary = folder / SUMMARY_FILE
        if not summary.is_file():
            faults.append(f"{summary} is gone: which candidates were judged here cannot be told")
            continue
        known = {variant for variant, _ in _said_in(summary)}
        faults += [
            f"{path} is of no candidate that {SUMMARY_FILE} beside it lists"
            for path in reports
            if path.parent.parent == folder and path.parent.name not in known
        ]
    if faults:
        raise InputError(
            "a report folder is not as it was written:",
            fix="make the reports again with `clefq parity`, or name one parity.json.",
            faults=faults,
        )


def _said_in(summary: Path) -> list[tuple[str, str]]:
    """Variant and verdict of every candidate of a comparison; none where it is no summary."""
    if any(part.startswith(".") for part in summary.parts):
        return []
    try:
        rows = read_json(summary)["candidates"]
        return [(str(row["variant"]), str(row["verdict"])) for row in rows]
    except (ClefqError, KeyError, TypeError):
        return []


def rejudge(path: Path) -> Rejudged:
    """Judges one report again.

    Raises:
        InputError: The file is no report, or what it says of its gate file contradicts itself.
    """
    document = read_parity(path)
    stored = str(document["verdict"]["word"])
    loaded = embedded_gates(document["gate_file"], path)
    _superseded(document, loaded, path)
    files, changed = stored_predictions(document, path)
    if files is None:
        prereg = _preregistration(document, loaded, _meta(document["candidate"]), path)
        now = _from_bounds(document, loaded, prereg)
        if changed:
            now["verdict"] = _void(now, *_STALE)
        return Rejudged(path, _checked(document, now), stored, FROM_BOUNDS)
    report = judge_again(document, path, files)
    now = parity_document(report, provenance(FROM_PREDICTIONS))
    return Rejudged(path, _checked(document, now), stored, FROM_PREDICTIONS)


def _set_faults(document: Mapping[str, Any]) -> tuple[str, ...]:
    """How the files differed from the set, which need not be here: a report keeps that."""
    verdict = document["verdict"]
    if verdict["word"] != INVALID:
        return ()
    return tuple(text for text in verdict["reasons"] if text.startswith(OF_THE_SET))


def judge_again(document: Mapping[str, Any], path: Path, files: Sequence[Path]) -> CandidateReport:
    """Computes every figure of a stored report anew, by the gates that it embeds.

    Args:
        document: The `parity.json` value.
        path: Where it lies, for messages.
        files: The predictions behind it: baseline, candidate, replicates.

    Raises:
        InputError: A file is unusable, or the document contradicts itself.
    """
    loaded = embedded_gates(document["gate_file"], path)
    superseded = _superseded(document, loaded, path)
    baseline, candidate, *replicates = (read_predictions(file, columnar=True) for file in files)
    prereg = _preregistration(document, loaded, candidate.meta, path)
    spec = judge_spec(loaded, stored_evidence(document), superseded)
    # the very files that were held against the set then: their hashes were compared
    read = bool(document["coverage"].get("set_read", False))
    expected = document["coverage"]["expected"]
    looks = document["gate_file"].get("looks") or {"made": []}
    before = {candidate.meta.variant: tuple(Look(**look) for look in looks["made"])}
    spec = replace(
        spec,
        expected=expected,
        set_read=read,
        set_faults=_set_faults(document),
        copies=document["coverage"].get("copies", 0),
        before=before,
    )
    report = judge_candidate(baseline, candidate, spec, replicates)
    return replace(
        report,
        preregistration=prereg,
        files={
            "baseline": document["baseline"]["predictions"],
            "candidate": document["candidate"]["predictions"],
            "replicates": [side["predictions"] for side in replicates_of(document)],
        },
    )


def _checked(document: Mapping[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The new document, whose verdict is void where the stored one is not as it was written."""
    if document_digest(document) != document["provenance"]["digest"]:
        now["verdict"] = _void(now, *_EDITED)
    return signed(now)


def embedded_gates(gate_file: Mapping[str, Any], path: Path) -> LoadedGates:
    """The gate file that a report embeds.

    Raises:
        InputError: Its text is not that of its hash.
    """
    text = str(gate_file["text"])
    if sha256_bytes(text.encode("utf-8")) != gate_file["sha256"]:
        raise InputError(
            f"{path}: the embedded gate file does not match its hash; the report was changed.",
            fix="make the report again with `clefq parity`.",
        )
    gates = parse_gates(text.encode("utf-8"), f"{path}: gate_file")
    return LoadedGates(gates, text, str(gate_file["sha256"]), path, bool(gate_file["bundled"]))


def _superseded(document: Mapping[str, Any], loaded: LoadedGates, path: Path) -> LoadedGates | None:
    old = document["gate_file"]["superseded"]
    # files that could not be paired have no figures, by neither gate file
    if document["metrics"] and loaded.gates.supersedes != (None if old is None else old["sha256"]):
        raise InputError(
            f"{path}: the embedded gate file does not supersede the one that the report shows; "
            "the report was changed.",
            fix="make the report again with `clefq parity`.",
        )
    return None if old is None else embedded_gates({"bundled": False, **old}, path)


def stored_evidence(document: Mapping[str, Any]) -> GitEvidence:
    """What git said when the report was made; the gate file may not be here now."""
    stored = document["gate_file"]["preregistration"]
    if stored["commit"] is not None and stored["committed_at"] is not None:
        return GitEvidence(Commit(stored["commit"], stored["committed_at"]), None)
    return GitEvidence(None, "the stored report names no commit")


def _preregistration(
    document: Mapping[str, Any], loaded: LoadedGates, candidate: PredictionsMeta, path: Path
) -> Preregistration:
    """Assessed again from the stored times; what was unproven keeps its own words."""
    entry = dict(document["gate_file"]["preregistration"])
    growth = None if entry.get("growth") is None else Growth(**entry["growth"])
    stored = Preregistration(**{**entry, "growth": growth})
    try:
        found = assess(loaded, stored_evidence(document), candidate, growth)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path}: the times of the gate file and the predictions cannot be compared; "
            "the report was changed.",
            fix="make the report again with `clefq parity`.",
        ) from error
    return stored if found.status == stored.status == UNPROVEN else found


def stored_predictions(document: Mapping[str, Any], path: Path) -> tuple[list[Path] | None, bool]:
    """Baseline, candidate and replicates if all are here unchanged; whether one was changed."""
    files, changed = [], False
    for side in (document["baseline"], document["candidate"], *replicates_of(document)):
        stored = side["predictions"]
        file = None if stored is None else path.parent / stored["path"]
        if file is not None and file.is_file():
            files.append(file)
            changed |= sha256_file(file) != stored["sha256"]
    complete = len(files) == 2 + len(replicates_of(document))
    return (files if complete and not changed else None), changed


def replicates_of(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The sides of the noise floor's replicates, as the document has them."""
    floor = document["noise_floor"]
    found: Sequence[Mapping[str, Any]] = [] if floor is None else floor["replicates"]
    return found


class StoredSource:
    """Gate figures from a stored report: its gates' bounds, then its metrics.

    Args:
        document: A `parity.json` value.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def figure(self, query: FigureQuery) -> Metric | None:
        """The stored figure at the asked confidence, or None."""
        if self._without(query.metric) is not None:
            return None
        scope = self._scope(query.slice).get(query.metric)
        known = [
            gate
            for gate in self._document["gates"]
            if _answers(gate, query) and gate["n_questions"]
        ]
        if known:
            # bounds near one gate's limit rest on more resamples than its neighbour's
            return _metric_of_gate(min(known, key=lambda g: _apart(g, query)), query, scope)
        same = scope is not None and abs(scope["confidence"] - query.confidence) < 1e-9
        if scope is not None and same and query.reference == "baseline":
            return Metric.from_json(scope)
        return None

    def missing(self, query: FigureQuery) -> str:
        """Why there is no figure."""
        without = self._without(query.metric)
        if without is not None:
            return without
        for gate in self._document["gates"]:
            if _answers(gate, query):
                return str(gate["reason"])
        if query.slice != OVERALL and query.slice not in self._document["slices"]:
            return f"the set has no slice {query.slice}"
        return "the stored report holds no bound at this confidence"

    def slice_names(self, by: str) -> Sequence[str]:
        """Slices of one key, bands in their own order (a stored report sorts by name)."""
        judged = (gate["slice"] for gate in self._document["gates"] if gate["n_questions"])
        names = {*self._document["slices"], *filter(None, judged)}
        return sorted((name for name in names if name.startswith(f"{by}=")), key=slice_order)

    def _without(self, metric: str) -> str | None:
        sides = (self._document[role] for role in ("baseline", "candidate"))
        answers = (side.get("answers", "probabilities") for side in sides)
        return lacks_probabilities(metric, *answers)

    def _scope(self, name: str) -> Mapping[str, Any]:
        scopes = {OVERALL: self._document["metrics"], **self._document["slices"]}
        found: Mapping[str, Any] = scopes.get(name, {})
        return found


def _answers(gate: Mapping[str, Any], query: FigureQuery) -> bool:
    return (
        gate["metric"] == query.metric
        and (gate["slice"] or OVERALL) == query.slice
        and gate["reference"] == query.reference
        and abs(2 * gate["confidence"] - 1 - query.confidence) < 1e-9
    )


def _apart(gate: Mapping[str, Any], query: FigureQuery) -> float:
    return abs(limit_of(gate["direction"], gate["margin"], gate["bound"]) - query.limit)


def _metric_of_gate(
    gate: Mapping[str, Any], query: FigureQuery, scope: Mapping[str, Any] | None
) -> Metric:
    return Metric(
        estimate=gate["estimate"],
        lower=gate["lower"],
        upper=gate["upper"],
        confidence=query.confidence,
        method="stored",
        bootstrap=None,
        n_questions=gate["n_questions"],
        n_records=gate["n_records"],
        n_infinite=0 if scope is None else scope["n_infinite"],
        unit="" if scope is None else scope["unit"],
    )


def _from_bounds(
    document: Mapping[str, Any], loaded: LoadedGates, prereg: Preregistration
) -> dict[str, Any]:
    """The document with its gates and verdict drawn again from its own bounds."""
    stored = document["verdict"]
    old = document["gate_file"]["superseded"]
    replaced = None if old is None else (old["name"], old["sha256"], old["verdict"]["word"])
    now = {
        **document,
        "provenance": {**document["provenance"], "judged_from": FROM_BOUNDS},
        "gate_file": {**document["gate_file"], "preregistration": prereg.to_json()},
    }
    if document["coverage"]["expected"] == 0 and stored["word"] == INVALID:
        return {**now, "verdict": {**stored, "banners": [*stored["banners"], STORED_BANNER]}}
    cover = {
        key: value
        for key, value in document["coverage"].items()
        if key not in ("share", "status", "minimum", "examples", "doubts")
    }
    cover.setdefault("set_read", False)  # an older report does not say
    evidence = VerdictInputs(
        gates=loaded.gates,
        results=judge_gates(loaded.gates, StoredSource(document)),
        coverage=Coverage(
            **cover,
            minimum=loaded.gates.coverage,
            examples=tuple(document["coverage"]["examples"]),
            doubts=tuple(document["coverage"].get("doubts", ())),
        ),
        baseline=_meta(document["baseline"]),
        candidate=_meta(document["candidate"]),
        banners=(
            *gate_banners(prereg.status, replaced),
            *(b for b in stored["banners"] if b.startswith(_OF_THE_ANSWERS)),
            *record_banners(
                (document["details"] or {}).get("clustering", {}), gated_overall(loaded.gates)
            ),
            STORED_BANNER,
        ),
        mean_tv=document["metrics"]["tv"]["estimate"],
    )
    verdict, results = draw_verdict(evidence)
    return {
        **now,
        "verdict": verdict.to_json(),
        "coverage": evidence.coverage.to_json(),
        "gates": [result.to_json() for result in results],
    }


# banners that only the answers can raise again
_OF_THE_ANSWERS = ("replicate:", WEAK_BASELINE, ROUNDED_COPY, f"{LOOKS_BANNER}:")
_STALE = (
    "the report is not of the predictions that lie here.",
    "the predictions were changed after the report",
)
_EDITED = (
    "the report is not as it was written.",
    "the report was changed after it was made: its digest does not match",
)


def _void(document: Mapping[str, Any], why: str, reason: str) -> dict[str, Any]:
    """The verdict of a report that is stale or was edited."""
    return Verdict(
        word=INVALID,
        sentence=f"Nothing can be said about {document['candidate']['variant']}: {why}",
        reasons=(reason,),
        next_step="Judge the predictions with `clefq parity`.",
        more_questions=None,
        banners=tuple(document["verdict"]["banners"]),
    ).to_json()


def _meta(side: Mapping[str, Any]) -> PredictionsMeta:
    return PredictionsMeta(**{key: value for key, value in side.items() if key != "predictions"})
