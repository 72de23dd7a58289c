"""Reports of other candidates in the folder that is written: kept while what they rest on is.

Whoever judges one candidate again does not mean to lose what is known of the others. A report
whose inputs are not those of this comparison cannot stand beside it and is named as removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefq.errors import ClefqError
from clefq.parity.report.parity_json import document_digest, read_parity
from clefq.plain_files import read_json, sha256_file

SUMMARY_FILE = "summary.json"
REPORT_FILE = "parity.json"


@dataclass(frozen=True, slots=True)
class Inputs:
    """What all reports of one comparison share.

    Attributes:
        eval_set: SHA-256 of the set.
        gates: SHA-256 of the gate file.
        baseline: SHA-256 of the baseline's predictions.
        replicates: SHA-256 of the replicates' predictions.
        version: Version of clefq that judges.
    """

    eval_set: str
    gates: str
    baseline: str | None
    replicates: frozenset[str]
    version: str


@dataclass(frozen=True, slots=True)
class Others:
    """The other candidates of a report folder.

    Attributes:
        kept: Their `parity.json` values by variant, in the old table's order.
        removed: Variant → why its report cannot stay.
    """

    kept: Mapping[str, Mapping[str, Any]]
    removed: Mapping[str, str]


def other_reports(folder: Path, judged: Collection[str], inputs: Inputs) -> Others:
    """What becomes of the reports that a comparison does not write itself.

    Args:
        folder: The report folder as it is.
        judged: The variants that are judged now.
        inputs: What the new reports rest on.
    """
    kept: dict[str, Mapping[str, Any]] = {}
    removed: dict[str, str] = {}
    for variant in _judged_in(folder):
        if variant in judged:
            continue
        path = folder / variant / REPORT_FILE
        try:
            document = read_parity(path)
            reason = next(_changes(document, path, inputs), None)
        except (ClefqError, KeyError, TypeError):
            reason = "its parity.json cannot be read by this version"
        if reason is None:
            kept[variant] = document
        else:
            removed[variant] = reason
    return Others(kept, removed)


def _judged_in(folder: Path) -> list[str]:
    """The candidates that a report folder is about; none where it is no report."""
    try:
        return [str(row["variant"]) for row in read_json(folder / SUMMARY_FILE)["candidates"]]
    except (ClefqError, KeyError, TypeError):
        return []


def _changes(document: Mapping[str, Any], path: Path, inputs: Inputs) -> Iterator[str]:
    """In what a stored report rests on other things than the comparison that is made now."""
    if document_digest(document) != document["provenance"]["digest"]:
        yield "it is not as it was written"
    if document["provenance"]["clefq_version"] != inputs.version:
        yield "another version of clefq made it"
    if document["eval_set"]["sha256"] != inputs.eval_set:
        yield "it is of another state of the set"
    if document["gate_file"]["sha256"] != inputs.gates:
        yield "it was judged by other gates"
    if _sha256(document["baseline"]) != inputs.baseline:
        yield "it was judged against other answers of the baseline"
    floor = document["noise_floor"]
    replicates = [] if floor is None else floor["replicates"]
    if {_sha256(side) for side in replicates} != inputs.replicates:
        yield "it was judged with other replicates"
    stored = document["candidate"]["predictions"]
    file = None if stored is None else path.parent / stored["path"]
    if file is None or not file.is_file():
        yield "its predictions are not here any more"
    elif sha256_file(file) != stored["sha256"]:
        yield "its predictions were changed since"


def _sha256(side: Mapping[str, Any]) -> str | None:
    return None if side["predictions"] is None else str(side["predictions"]["sha256"])
