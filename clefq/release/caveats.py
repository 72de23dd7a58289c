"""What a reader must know before trusting a card, derived from the evidence; nothing is typed in.

Each caveat is one Markdown sentence or two. They come in the order of their weight: what the
figures are of, what was not tested, where the checkpoint is weakest, how firm the verdict is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clefq.clef.formats import MEANT_ARITHMETIC
from clefq.parity.gates.banners import CALIBRATE, CLIPPED, clipped_text
from clefq.parity.gates.formatting import count, figure, interval, markdown_cell
from clefq.parity.gates.preregistration import PREREGISTERED
from clefq.parity.gates.rows import alarm_line
from clefq.parity.statistics.slices import LENGTH_BANDS, OPTION_BANDS
from clefq.release.evidence import Evidence, SetEvidence

WEAKEST = 3
MIN_QUESTIONS = 20
ALARMS = 5
_TYPES = ("noul", "choice", "score")


def caveats(found: Evidence) -> list[str]:
    """Every caveat of a checkpoint, most important first.

    Args:
        found: The evidence.
    """
    return [
        *_execution(found),
        *_untested(found),
        *_weakest(found),
        *_firmness(found),
        *_origin(found),
    ]


def _execution(found: Evidence) -> Iterator[str]:
    for item in found.sets:
        side = item.document["candidate"]
        where = f"On {markdown_cell(item.name)}"
        if side["kernels"] == "simulated":
            yield (
                f"**Simulated kernels.** {where} the answers are from an emulation of "
                f"{side['arithmetic']} arithmetic ({side['engine']} {side['engine_version']}, "
                f"{markdown_cell(side['device'])}). Real kernels may differ; they were not run."
            )
        clipped = side.get("clipped")
        if clipped and max(clipped.values()) > CLIPPED:
            yield f"**Clipped inputs.** {where} {clipped_text(clipped)}; {CALIBRATE}."
        meant = MEANT_ARITHMETIC.get(found.scheme)
        if meant is not None and side["arithmetic"] != meant:
            yield (
                f"**Other arithmetic.** {where} the checkpoint ran as {side['arithmetic']}; on "
                f"hardware for its scheme it runs as {meant}, which was not measured."
            )
        if side["engine"] == "import":
            yield f"{where} the answers were imported; how they were made is not recorded."
        if side["model_sha256"] is None:
            yield (
                f"{where} a server was asked ({markdown_cell(side['model_id'])}): nothing proves "
                "that it served these files."
            )
        yield from _sides_differ(where, item.document)
    if found.sets and not any(i.document["candidate"]["engine"] == "vllm" for i in found.sets):
        yield "The figures were not made with vLLM, which the usage below serves with."


def _sides_differ(where: str, document: Mapping[str, Any]) -> Iterator[str]:
    one, other = document["baseline"], document["candidate"]
    for key, word in (("engine", "engines"), ("device", "devices"), ("max_length", "limits")):
        if one[key] != other[key]:
            yield (
                f"{where} baseline and checkpoint ran with different {word}: "
                f"{markdown_cell(one[key])} and {markdown_cell(other[key])}."
            )
    if document["coverage"]["truncated"]:
        yield (
            f"{where} {count(document['coverage']['truncated'])} questions were answered from a "
            "shortened state."
        )
    if other["probability_quantum"] or one["probability_quantum"]:
        yield f"{where} probabilities were rounded by their source: KL is a lower limit."


def _untested(found: Evidence) -> Iterator[str]:
    known = [item.media for item in found.sets if item.media is not None]
    if not known:
        yield "Whether the sets hold images or videos is not recorded; take both as untested."
    else:
        images = sum(media.with_images for media in known)
        videos = sum(media.with_videos for media in known)
        records = sum(media.records for media in known)
        if not images:
            yield "**Untested: images.** No record of the sets has one."
        elif images < 100:
            yield f"Images are hardly tested: {count(images)} of {count(records)} records have one."
        if not videos:
            yield "**Untested: videos.** No record of the sets has one."
    slices = {name for item in found.sets for name in item.document["slices"]}
    if not slices:
        return
    yield from _longest(found, slices)
    options = [label for label, _, _ in OPTION_BANDS if f"options={label}" in slices]
    last = [label for label, _, _ in OPTION_BANDS].index(options[-1]) if options else 0
    if options and last + 1 < len(OPTION_BANDS):
        yield f"Untested: questions with {OPTION_BANDS[last + 1][1]} options or more."
    missing = [kind for kind in _TYPES if f"type={kind}" not in slices]
    if missing:
        yield f"Untested: questions of type {' and '.join(missing)}."


def _longest(found: Evidence, slices: set[str]) -> Iterator[str]:
    limits = [item.document["candidate"]["max_length"] for item in found.sets]
    # a longer prompt than a run's limit was refused or cut, whatever the set holds
    measured = [
        min(item.manifest.token_lengths.longest, limit)
        for item, limit in zip(found.sets, limits, strict=True)
        if item.manifest is not None and item.manifest.token_lengths is not None
    ]
    if measured:
        yield (
            f"Untested: prompts of more than {count(max(measured))} tokens (the limit of the "
            f"run was {count(max(limits))})."
        )
        return
    bands = [band for band in LENGTH_BANDS if f"length={band[0]}" in slices]
    if bands and bands[-1][2] < max(limits):
        yield f"Untested: prompts of {count(int(bands[-1][2]))} tokens or more."
    else:
        yield f"Untested: prompts of more than {count(max(limits))} tokens, the limit of the run."


def _weakest(found: Evidence) -> Iterator[str]:
    for item in found.sets:
        cohorts = weakest_cohorts(item)
        if cohorts:
            listed = "; ".join(_cohort(name, metrics) for name, metrics in cohorts)
            yield f"Weakest cohorts of {markdown_cell(item.name)}, worst first: {listed}."
        alarms = item.document["alarms"]
        if alarms:
            listed = "; ".join(
                f"{markdown_cell(a['slice'])}: {alarm_line(a)}" for a in alarms[:ALARMS]
            )
            yield (
                f"**The candidate is worse than the baseline for sure in these slices of "
                f"{markdown_cell(item.name)}** (Holm-corrected): {listed}."
            )


def weakest_cohorts(item: SetEvidence) -> list[tuple[str, Mapping[str, Any]]]:
    """The cohorts that lost most accuracy, or agree least; those of a few questions left out.

    Args:
        item: One set's report.

    Returns:
        At most `WEAKEST` pairs of cohort and metrics, worst first; none where nothing is lost.
    """
    rows = []
    for name, metrics in item.document["slices"].items():
        key, _, cohort = name.partition("=")
        agreement, delta = metrics.get("agreement"), metrics.get("accuracy_delta")
        if key != "cohort" or agreement is None or agreement["n_questions"] < MIN_QUESTIONS:
            continue
        loss = 0.0 if delta is None or delta["estimate"] is None else -delta["estimate"]
        rows.append(((-loss, agreement["estimate"], cohort), cohort, metrics))
    rows.sort(key=lambda row: row[0])
    lossy = [row for row in rows if row[0][0] < 0 or row[0][1] < 1]
    return [(cohort, metrics) for _, cohort, metrics in lossy[:WEAKEST]]


def _cohort(name: str, metrics: Mapping[str, Any]) -> str:
    agreement, delta = metrics["agreement"], metrics.get("accuracy_delta")
    words = []
    if delta is not None and delta["estimate"] is not None:
        bounds = interval(delta["lower"], delta["upper"], signed=True)
        words.append(f"accuracy {figure(delta['estimate'], signed=True)} {bounds}")
    words.append(f"agreement {figure(agreement['estimate'])}")
    return f"{markdown_cell(name)} {', '.join(words)} ({count(agreement['n_questions'])} questions)"


def _firmness(found: Evidence) -> Iterator[str]:
    recipe = found.recipe_text()
    for item in found.sets:
        document, where = item.document, f"On {markdown_cell(item.name)}"
        if document["eval_set"]["sha256"] in recipe:
            yield (
                f"**The recipe was searched on {markdown_cell(item.name)}** (`recipe.yaml` says "
                "so): its figures there are better than on records it was not chosen by."
            )
        record = document["gate_file"]["preregistration"]
        if record["status"] != PREREGISTERED:
            yield f"{where}: {record['sentence']}"
        small = [
            gate["name"]
            for gate in document["gates"]
            if gate["status"] == "not_gated" and gate["n_questions"]
        ]
        if small:
            yield (
                f"{where} {count(len(small))} of {count(len(document['gates']))} gates had too "
                "few questions to be judged."
            )
        broken = [
            markdown_cell(gate["name"])
            for gate in document["gates"]
            if not gate["required"] and gate["status"] == "fail"
        ]
        if broken:
            yield f"{where} advisory gates are broken: {', '.join(broken)}."
        coverage = document["coverage"]
        if coverage["candidate_failed"]:
            yield (
                f"{where} {count(coverage['candidate_failed'])} of {count(coverage['expected'])} "
                "questions got no valid answer."
            )
        if document["noise_floor"] is None:
            yield f"{where} no second run of the baseline shows how much it differs from itself."


def _origin(found: Evidence) -> Iterator[str]:
    manifest = found.manifest
    if manifest is None:
        yield (
            "How this checkpoint was made is not recorded (no clefq.json): source, recipe, "
            "calibration data and audit are unknown."
        )
        return
    for item in found.sets:
        base = item.document["baseline"]
        if base["model_sha256"] not in (None, manifest.source["sha256"]):
            yield (
                f"The baseline on {markdown_cell(item.name)} is not the checkpoint that this one "
                "was quantized from."
            )
    decontaminated = [
        item
        for item in found.sets
        if item.manifest is not None and item.manifest.decontamination is not None
    ]
    calibration = manifest.calibration
    if calibration is None:
        return
    if not all(
        calibration["sha256"] in item.manifest.decontamination.against.values()  # type: ignore[union-attr]
        for item in decontaminated
    ) or len(decontaminated) < len(found.sets):
        yield (
            "That no calibration record is in an eval set is not shown for every set "
            "(decontamination against this calibration set is not recorded)."
        )
