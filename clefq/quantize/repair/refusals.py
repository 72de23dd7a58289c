"""What cannot be mended honestly: mending it would hide damage from an audit, or destroy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clefq.clef.family import FAMILY
from clefq.clef.tensor_files import TensorInfo
from clefq.errors import ClefqError, ExitCode
from clefq.quantize.audit.report import AuditReport, Breach
from clefq.quantize.values import read_floats

# Members of a group see the same inputs: their input scales differ little, or one is damaged.
WORST_INPUTS = 16.0


class RepairError(ClefqError):
    """A checkpoint that cannot be mended honestly."""

    exit_code = ExitCode.FAIL


def refuse_unmendable(found: AuditReport, with_source: bool) -> None:
    """Refuses a checkpoint with a breach that cannot be mended.

    Args:
        found: Its audit, against the source where there is one.
        with_source: Whether there is one.

    Raises:
        RepairError: Lists every such breach.
    """
    left = [b for b in found.breaches if not _mendable(found, b, with_source)]
    if left:
        lines = [f"{b.check}: {b.subject} {b.message}" for b in left]
        raise RepairError(
            f"cannot mend {lines[0]}.",
            fix="quantize again from the BF16 checkpoint.",
            faults=lines[1:],
        )
    folded = unproven_weights(found)
    moved = sorted({b.subject for b in found.of("untouched")} - set(_harmless(found)))
    if moved and folded:
        raise RepairError(
            f"{moved[0]} differs from the source, and {folded[0]} is not known to be plain "
            "round-to-nearest: the recipe may have moved scales between them on purpose "
            "(SmoothQuant, AWQ).",
            fix="repair without --source, or ask the publisher which recipe made it.",
            faults=[f"{name} differs from the source" for name in moved[1:]],
        )


def mendable(found: AuditReport, with_source: bool) -> bool:
    """Whether `clefq repair` mends every breach of an audit.

    Args:
        found: The audit; against a source, or without one.
        with_source: Whether repair is given the source.
    """
    try:
        refuse_unmendable(found, with_source)
    except RepairError:
        return False
    return not found.passed


def unproven_weights(found: AuditReport) -> list[str]:
    """Modules whose weights are not known to be round-to-nearest of the source."""
    return [*found.facts.get("other_rounding", ()), *found.facts.get("uncompared", ())]


def _harmless(found: AuditReport) -> list[str]:
    """Tensors that may come back from the source whatever the weights beside them are."""
    drafts = [b.subject for b in found.of("untouched") if b.subject.startswith(FAMILY.drafts)]
    return [*found.facts.get("rounded_twice", ()), *drafts]


def _mendable(found: AuditReport, breach: Breach, with_source: bool) -> bool:
    if not with_source:
        # of a scale by itself nothing says what it should be
        alone = breach.subject.endswith("_global_scale")
        return breach.check in ("weight scales", "input scales") and not alone
    module = breach.subject.removesuffix(".weight_global_scale").removesuffix(".weight_scale")
    known = found.recomputed.get(module)
    if breach.check in ("untouched", "input scales"):
        return not breach.subject.endswith("input_global_scale")
    if breach.check == "weight scales" and not breach.subject.endswith("_global_scale"):
        return True
    if known is not None and breach.check in ("weight scales", "group scales", "quantized"):
        wrong = known.made_with not in (None, known.divisor)
        return wrong or (known.few and known.made_with == known.divisor)
    restorable = {b.subject for b in found.of("untouched")}
    return breach.check in ("coverage", "values") and breach.subject in restorable


def nonzero(packed: TensorInfo) -> bool:
    """Whether some packed code is not zero."""
    return any(np.any(np.frombuffer(block, dtype=np.uint8) & 0x77) for block in packed.blocks())


def refuse_damaged_divisors(refs: Mapping[str, TensorInfo], divisors: Mapping[str, float]) -> None:
    """Refuses weight divisors that no run gives which merely did not share them.

    Under a divisor of its own, a member's largest group scale is the largest there is (448). Under
    a shared one only that of the member with the largest weights is: if the others then have a
    divisor to themselves, it was not they who chose it.

    Args:
        refs: The checkpoint's tensors.
        divisors: Member of a fused group to its stored weight global scale.

    Raises:
        RepairError: One of them is damaged.
    """
    top: dict[float, float] = {}
    for module, divisor in divisors.items():
        if nonzero(refs[f"{module}.weight_packed"]):
            largest = float(read_floats(refs[f"{module}.weight_scale"]).max())
            top[divisor] = max(largest, top.get(divisor, 0.0))
    if len(set(top.values())) < 2:
        return
    odd = min(top, key=lambda divisor: top[divisor])
    module = next(module for module, divisor in divisors.items() if divisor == odd)
    raise RepairError(
        f"{module}.weight_global_scale is {odd:.6g}, which its group scales (up to {top[odd]:g}, "
        f"others {max(top.values()):g}) were not made with: one of the group's is damaged.",
        fix="give the BF16 checkpoint with --source, or quantize again from it.",
    )


def refuse_damaged_inputs(group: str, divisors: Mapping[str, float]) -> None:
    """Refuses input divisors that no calibration gives: the members' inputs are the same.

    Args:
        group: Name of the fused group.
        divisors: Member to its stored input global scale.

    Raises:
        RepairError: One of them is damaged.
    """
    factor = max(divisors.values()) / min(divisors.values())
    if factor > WORST_INPUTS:
        raise RepairError(
            f"{group}: input scales of the same inputs differ by a factor of {factor:.3g}: one of "
            "them is damaged.",
            fix="quantize again from the BF16 checkpoint.",
        )
