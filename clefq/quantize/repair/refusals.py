"""Unequal shared scales that come from damage: mending by them would hide it from an audit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clefq.clef.tensor_files import TensorInfo
from clefq.errors import ClefqError, ExitCode
from clefq.quantize.values import read_floats

# Members of a group see the same inputs: their input scales differ little, or one is damaged.
WORST_INPUTS = 16.0


class RepairError(ClefqError):
    """A checkpoint that cannot be mended honestly."""

    exit_code = ExitCode.FAIL


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
