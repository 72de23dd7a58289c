"""Writes a report folder: the comparison of all candidates and one folder per candidate.

The folder appears whole: it is filled beside its name and swapped in at the end, so that a
reader never sees half a report, and an older report stays until the new one is complete.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clefq.errors import ClefqError, InputError
from clefq.parity.gates.choosing import Choice
from clefq.parity.gates.compare import CandidateReport
from clefq.parity.report.coherence import coherence_plot
from clefq.parity.report.documents import Provenance, check_document
from clefq.parity.report.flips import flips_frame
from clefq.parity.report.html_page import index_html, report_html
from clefq.parity.report.junit import junit_xml
from clefq.parity.report.keeping import REPORT_FILE, SUMMARY_FILE
from clefq.parity.report.markdown import report_markdown
from clefq.parity.report.parity_json import parity_document, signed
from clefq.parity.report.plots import plots
from clefq.parity.report.summary import Sizes, sizes_in, summary_document
from clefq.plain_files import harmless_cell, read_json
from clefq.store.atomic import disk_error, partial_path, sole_writer, write_json, write_text

BREAKDOWN_COLUMNS = (
    "slice_key",
    "slice",
    "metric",
    "estimate",
    "lower",
    "upper",
    "confidence",
    "method",
    "bootstrap_lower",
    "bootstrap_upper",
    "n_questions",
    "n_records",
    "n_infinite",
    "unit",
)


@dataclass(frozen=True, slots=True)
class ReportSpec:
    """What a report folder says beyond the judged candidates.

    Attributes:
        provenance: How it was made.
        sizes: Sizes and speeds of the models.
        inconclusive_fails: Whether inconclusive gates are failures in JUnit.
        kept: `parity.json` values of other candidates, whose folders stay as they are.
        choice: Which candidate is recommended, where that was asked.
    """

    provenance: Provenance
    sizes: Sizes
    inconclusive_fails: bool = True
    kept: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    choice: Choice | None = None


def write_reports(
    folder: Path, reports: Sequence[CandidateReport], spec: ReportSpec
) -> dict[str, Any]:
    """Writes the report folder of one set.

    Args:
        folder: The report folder; an older report there is replaced.
        reports: The judged candidates, in table order.
        spec: What else it says.

    Returns:
        The value of `summary.json`, of these candidates alone where others are kept beside them.

    Raises:
        InputError: The folder holds something other than a report, or cannot be written.
    """
    with swapped_folder(folder) as partial:
        documents = []
        for report in reports:
            variant = report.candidate.variant
            before = folder / variant / REPORT_FILE
            documents.append(write_candidate(partial / variant, report, spec, before))
        for variant in spec.kept:
            shutil.copytree(folder / variant, partial / variant)
        choice = None if spec.choice is None else spec.choice.to_json()
        summary = summary_document([*documents, *spec.kept.values()], _all_sizes(folder, spec))
        summary |= {"choice": json.loads(json.dumps(choice))}
        check_document(summary, "summary", SUMMARY_FILE)
        write_json(partial / SUMMARY_FILE, summary)
        write_text(partial / "index.html", index_html(summary))
    if not spec.kept:
        return summary
    return {**summary_document(documents, spec.sizes), "choice": summary["choice"]}


def _all_sizes(folder: Path, spec: ReportSpec) -> Sizes:
    """The sizes known now, and those that the old comparison knew of the kept candidates."""
    if not spec.kept:
        return spec.sizes
    old = sizes_in(read_json(folder / SUMMARY_FILE))
    return Sizes({**old.bytes, **spec.sizes.bytes}, {**old.throughput, **spec.sizes.throughput})


def write_candidate(
    target: Path, report: CandidateReport, spec: ReportSpec, before: Path | None = None
) -> Mapping[str, Any]:
    """Writes one candidate's folder.

    Args:
        target: The folder, which is not there yet.
        report: The judged candidate.
        spec: What else it says.
        before: The `parity.json` that is replaced, or None.

    Returns:
        The value of its `parity.json`.
    """
    target.mkdir()
    statistics = report.statistics
    if statistics is not None:
        frame = flips_frame(statistics.pairs, statistics.values)
        frame.to_parquet(target / "flips.parquet", index=False, compression="zstd")
    document: Mapping[str, Any] = parity_document(report, spec.provenance)
    if before is not None:
        document = _as_before(document, before)
    check_document(document, "parity", REPORT_FILE)
    write_json(target / REPORT_FILE, document)
    write_text(target / "report.html", report_page(document, report, spec.sizes))
    write_text(target / "report.md", report_markdown(document))
    junit = junit_xml([document], inconclusive_fails=spec.inconclusive_fails)
    write_text(target / "junit.xml", junit)
    write_breakdown(target / "breakdown.csv", document)
    return document


def report_page(document: Mapping[str, Any], report: CandidateReport, sizes: Sizes) -> str:
    """The page of a `parity.json` value, with its pictures."""
    statistics = report.statistics
    drawn = [] if statistics is None else plots(document, statistics, report.noise)
    coherence = coherence_plot(document)
    return report_html(document, drawn if coherence is None else [coherence, *drawn], sizes)


def _as_before(document: Mapping[str, Any], before: Path) -> Mapping[str, Any]:
    """The report that is there, where a new one would differ in its time and command alone.

    Cards and bundles name a report by its digest: judging again must not make them untrue.
    """
    if not before.is_file():
        return document
    try:
        old = read_json(before)
        known = old["provenance"]
        again = {**known, **{key: document["provenance"][key] for key in _OF_A_RUN}}
        same = {**old, "provenance": again} == json.loads(json.dumps(document))
        return old if same and signed(old) == old else document
    except (ClefqError, KeyError, TypeError):  # no report of this version
        return document


# What changes in the provenance of a report when the same is judged again.
_OF_A_RUN = ("created_at", "command", "digest")


def write_breakdown(path: Path, document: Mapping[str, Any]) -> None:
    """Writes every metric, overall and by slice, one row each."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(BREAKDOWN_COLUMNS)
        for name, metrics in {"overall=": document["metrics"], **document["slices"]}.items():
            key, _, value = name.partition("=")
            for metric, figure in metrics.items():
                writer.writerow([key, harmless_cell(value), metric, *_breakdown_row(figure)])


def _breakdown_row(figure: Mapping[str, Any]) -> Iterator[Any]:
    boot = figure["bootstrap"] or {"lower": None, "upper": None}
    flat = {**figure, "bootstrap_lower": boot["lower"], "bootstrap_upper": boot["upper"]}
    for column in BREAKDOWN_COLUMNS[3:]:
        yield flat[column]


@contextmanager
def swapped_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty folder to fill, and puts it in the place of `folder` at the end.

    Raises:
        InputError: `folder` is there and is no report folder, another process writes it, or the
            disk refuses.
    """
    if folder.exists() and not _replaceable(folder):
        raise InputError(
            f"{folder} is there and is not a report folder.", fix="choose another --out."
        )
    with sole_writer(folder):
        own = folder.with_name(f"{folder.name}.{os.getpid()}")
        partial, old = partial_path(own), folder.parent / f".{own.name}.old"
        try:
            for leftover in _leftovers(folder):
                shutil.rmtree(leftover, ignore_errors=True)
            partial.mkdir(parents=True)
            yield partial
            if folder.exists():
                folder.replace(old)
            partial.replace(folder)
            shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            raise disk_error(error, folder) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _leftovers(folder: Path) -> list[Path]:
    """What runs that were killed left beside the folder; nobody else writes it now."""
    found = [
        *folder.parent.glob(f".{folder.name}.*partial"),
        *folder.parent.glob(f".{folder.name}.*old"),
    ]
    return [path for path in found if path.is_dir()]


def _replaceable(folder: Path) -> bool:
    return folder.is_dir() and ((folder / SUMMARY_FILE).is_file() or not any(folder.iterdir()))
