"""What stands above a verdict because of what was compared and how it was run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clefq.parity.statistics.metric_facts import LABELS
from clefq.store.predictions import PredictionsMeta

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clefq.parity.gates.verdict import Coverage, VerdictInputs

COPIED = (
    "every answer of the candidate is the baseline's to the last bit: a copy, or a server that "
    "answers with another model than it was asked for"
)
REDACTED = (
    "redacted: ids and names are opaque, and texts are left out; every figure was computed from "
    "the redacted answers"
)
# Share of blocks of inputs beyond their calibrated scale from which a report says so.
CLIPPED = 0.001
CALIBRATE = "calibrate on records like those that it is to serve"
# From this share of answers that are bit for bit the baseline's, a report says so.
MANY_IDENTICAL = 0.1


def banners_of(evidence: VerdictInputs) -> list[str]:
    """Every warning of one comparison."""
    found = []
    coverage = evidence.coverage
    if coverage.truncated:
        found.append(cut_text(coverage))
    if coverage.other_prompt:
        found.append(prompts_text(coverage))
    found += _model_banners(evidence.baseline, evidence.candidate)
    found += _evidence_banners(coverage)
    for role, meta in (("baseline", evidence.baseline), ("candidate", evidence.candidate)):
        found += _run_banners(meta, role)
    one, other = evidence.baseline, evidence.candidate
    if one.engine != other.engine:
        found.append(
            f"engines differ: baseline {one.engine}, candidate {other.engine}; part of every "
            "difference may be the engine's"
        )
    limits = [(meta.max_length, meta.truncate_state) for meta in (one, other)]
    if limits[0] != limits[1]:
        found.append(
            "prompts may differ: the baseline was run with max_length "
            f"{one.max_length}{_cut(one)}, the candidate with {other.max_length}{_cut(other)}"
        )
    return found


def _run_banners(meta: PredictionsMeta, role: str) -> list[str]:
    """How one side was run."""
    found = []
    if meta.api == "decisions":
        found.append(
            f"another prompt ({role}): /v1/decisions numbers the questions, quotes the options "
            "and asks true/false questions as a choice, which is not what Clef was trained on"
        )
    if meta.kernels == "simulated":
        found.append(
            f"kernels: simulated ({role}): these answers emulate {meta.arithmetic} arithmetic "
            f"on {meta.device}; real kernels may differ"
        )
    if meta.clipped and max(meta.clipped.values()) > CLIPPED:
        found.append(f"{clipped_text(meta.clipped)} ({role}); {CALIBRATE}")
    if meta.labels:
        found.append(
            f"{LABELS} ({role}): only the chosen options are known, so that KL, total "
            "variation, confidence and what rests on them are not computed"
        )
    if unsaid(meta):
        found.append(
            f"unknown arithmetic ({role}): its server does not say what it runs; "
            f"{meta.kernels} kernels are assumed"
        )
    return found


def _evidence_banners(coverage: Coverage) -> list[str]:
    """Where the questions or the answers are not what they seem."""
    found = []
    if not coverage.set_read:
        found.append(
            "the set was not read: questions that are missing on both sides, foreign ones, and "
            "gold that was changed cannot be seen"
        )
    if coverage.copies:
        found.append(
            f"copied records: {coverage.copies:,} are the same as others but for their ids, and "
            "every interval counts them as new evidence"
        )
    share = coverage.identical / coverage.valid if coverage.valid else 0.0
    if MANY_IDENTICAL <= share < 1:
        found.append(
            f"identical answers: {coverage.identical:,} of {coverage.valid:,} are the baseline's "
            "to the last bit, as of a model that is quantized in part or not at all"
        )
    return found


def _model_banners(baseline: PredictionsMeta, candidate: PredictionsMeta) -> list[str]:
    """Where the two models are not what a comparison with BF16 is about, or not named."""
    found = [REDACTED] if baseline.redacted_from or candidate.redacted_from else []
    if _one_model(baseline, candidate):
        found.append(
            "one model: baseline and candidate are the same checkpoint; this compares two runs "
            "of it, not two models"
        )
    elif candidate.scheme == "bf16" and baseline.scheme == "bf16":
        found.append("the candidate is BF16 too: this compares no quantized model")
    if baseline.scheme not in ("bf16", "unknown"):
        swapped = "; are the two swapped?" if candidate.scheme == "bf16" else ""
        found.append(
            f"the baseline is quantized ({baseline.scheme}): the candidate is compared with it, "
            f"not with BF16{swapped}"
        )
    return found


def clipped_text(clipped: Mapping[str, float]) -> str:
    """Where inputs exceed what they were calibrated for, and how many of them."""
    over = [module for module, share in clipped.items() if share > CLIPPED]
    worst = max(clipped, key=lambda module: clipped[module])
    return (
        f"inputs are clipped: in {len(over)} of {len(clipped)} places more than {CLIPPED:.1%} of "
        f"the blocks of inputs exceed the calibrated maximum, most in {worst} "
        f"({clipped[worst]:.1%})"
    )


def unsaid(meta: PredictionsMeta) -> bool:
    """Whether the answers come from a server that does not say what it runs."""
    return meta.engine == "http" and meta.dtype == "unknown"


def _cut(meta: PredictionsMeta) -> str:
    return " and states cut" if meta.truncate_state else ""


def cut_text(coverage: Coverage) -> str:
    """How many questions were answered from a shortened state."""
    return (
        f"states were cut: {coverage.truncated:,} of {coverage.expected:,} questions were "
        "answered without the end of their state"
    )


def prompts_text(coverage: Coverage) -> str:
    """How many questions were answered from different prompts."""
    return (
        f"different prompts: {coverage.other_prompt:,} of {coverage.valid:,} questions were "
        "answered from another number of tokens, another cut of the state or another order of "
        "options"
    )


def copied(evidence: VerdictInputs) -> bool:
    """Whether two models answer alike to the last bit, which rounded answers may do honestly."""
    one, other = evidence.baseline, evidence.candidate
    if evidence.mean_tv != 0 or other.probability_quantum is not None:
        return False
    return not _one_model(one, other)


def _one_model(baseline: PredictionsMeta, candidate: PredictionsMeta) -> bool:
    known = baseline.model_sha256 is not None
    return known and baseline.model_sha256 == candidate.model_sha256
