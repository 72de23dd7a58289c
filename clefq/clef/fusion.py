"""The fused projections of the Qwen3.5 architecture: the one table that everything reads.

At load time a serving engine stacks these Linears into one matrix product. An NVFP4 product has
one weight global scale and one input global scale, so the members must share both, and one
format.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# fused name -> members, in the order in which the engine stacks them
FUSED: dict[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}

_FUSED_OF: dict[str, str] = {leaf: fused for fused, leaves in FUSED.items() for leaf in leaves}


@dataclass(frozen=True, slots=True)
class FusedGroup:
    """Linears that one matrix product serves.

    Attributes:
        prefix: Module path above the members, for example `model.language_model.layers.0.mlp`.
        fused: Name of the fused product, a key of `FUSED`.
        members: Full module names, in stacking order; at least two.
    """

    prefix: str
    fused: str
    members: tuple[str, ...]

    @property
    def name(self) -> str:
        """Full name of the fused product."""
        return f"{self.prefix}.{self.fused}"


def group_key(module: str) -> str | None:
    """The fused product that a module belongs to, as `prefix.fused`, or None."""
    prefix, _, leaf = module.rpartition(".")
    fused = _FUSED_OF.get(leaf)
    return f"{prefix}.{fused}" if fused is not None and prefix else None


def fused_groups(modules: Iterable[str]) -> list[FusedGroup]:
    """The fused groups among `modules` (full names), in order of first appearance.

    A group of which only one member is present is no group. The vision tower has none: its
    query, key and value are one matrix in the checkpoint already.
    """
    found: dict[str, set[str]] = {}
    for module in modules:
        key = group_key(module)
        if key is not None:
            found.setdefault(key, set()).add(module)
    groups = []
    for key, present in found.items():
        prefix, _, fused = key.rpartition(".")
        members = tuple(
            f"{prefix}.{leaf}" for leaf in FUSED[fused] if f"{prefix}.{leaf}" in present
        )
        if len(members) > 1:
            groups.append(FusedGroup(prefix, fused, members))
    return groups
