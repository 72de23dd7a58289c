"""Shape of the joint head, as `joint_head_config.json` states it (torch-free)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from clefq.errors import CheckpointError
from clefq.plain_files import read_json

HEAD_FILE = "joint_head.safetensors"
HEAD_CONFIG_FILE = "joint_head_config.json"
HEAD_SUBFOLDER = "clef_head"


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Dimensions of the joint head.

    Attributes:
        hidden_size: Width of the backbone's hidden states.
        width: Width of the head.
        routing_layers: Evidence-routing layers over the options.
        layers: Decoder layers over the fields.
        heads: Attention heads; divides `width`.
        feedforward: Width of the feed-forward layers.
    """

    hidden_size: int
    width: int
    routing_layers: int
    layers: int
    heads: int
    feedforward: int

    @classmethod
    def from_json(cls, value: Any, where: str) -> HeadConfig:
        """Checks a decoded `joint_head_config.json`.

        Raises:
            CheckpointError: Lists every missing, unknown or unsound key.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(value, dict):
            raise CheckpointError(f"{where} is not a JSON object.", fix=_FIX)
        faults = [f"{name!r} is missing" for name in names if name not in value]
        faults += [f"unknown key {name!r}" for name in value if name not in names]
        for name in names:
            size = value.get(name, 1)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                faults.append(f"{name!r} is {size!r}, expected a positive integer")
        if not faults and value["width"] % value["heads"]:
            faults.append(f"width {value['width']} is no multiple of heads {value['heads']}")
        if faults:
            raise CheckpointError(f"{where}: {faults[0]}.", fix=_FIX, faults=faults[1:])
        return cls(**value)

    @classmethod
    def from_folder(cls, folder: Path) -> HeadConfig:
        """Reads the config beside the head file, in the folder or in its `clef_head/`.

        Raises:
            CheckpointError: Missing or malformed.
        """
        path = head_folder(folder) / HEAD_CONFIG_FILE
        if not path.is_file():
            raise CheckpointError(f"{path} is missing.", fix=_FIX)
        return cls.from_json(read_json(path), str(path))

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that the head file must hold."""
        hidden, width, inner = self.hidden_size, self.width, self.feedforward
        shapes: dict[str, tuple[int, ...]] = {
            **_norm("hidden_norm", hidden),
            "memory_projection.weight": (width, hidden),
            "question_projection.weight": (width, hidden),
            "option_question_projection.weight": (width, hidden),
            "global_projection.weight": (width, hidden),
            "option_context_projection.weight": (width, hidden),
            "option_lexical_projection.weight": (width, hidden),
            "type_embedding.weight": (3, width),
            **_norm("option_summary_norm", width),
            **_norm("field_norm", width),
            **_norm("option_norm", width),
            **_linear("residual_scorer.0", width, 4 * width),
            **_linear("residual_scorer.3", 1, width),
            "prior_logit_scale": (),
            "joint_logit_scale": (),
            "residual_gate": (),
        }
        for index in range(self.routing_layers):
            layer = f"evidence_layers.{index}"
            shapes |= _norm(f"{layer}.query_norm", width) | _norm(f"{layer}.memory_norm", width)
            shapes |= _attention(f"{layer}.attention", width)
            shapes |= _norm(f"{layer}.feedforward_norm", width)
            shapes |= _linear(f"{layer}.feedforward.0", inner, width)
            shapes |= _linear(f"{layer}.feedforward.3", width, inner)
        for index in range(self.layers):
            layer = f"layers.{index}"
            shapes |= _attention(f"{layer}.self_attn", width)
            shapes |= _attention(f"{layer}.multihead_attn", width)
            shapes |= _linear(f"{layer}.linear1", inner, width)
            shapes |= _linear(f"{layer}.linear2", width, inner)
            for norm in ("norm1", "norm2", "norm3"):
                shapes |= _norm(f"{layer}.{norm}", width)
        return shapes


_FIX = "copy the joint head of the release (joint_head.safetensors and its config) into the folder."


def head_folder(folder: Path) -> Path:
    """Where a checkpoint keeps its head: the folder itself, or `clef_head/` inside it.

    Raises:
        CheckpointError: Neither place holds `joint_head.safetensors`.
    """
    for place in (folder, folder / HEAD_SUBFOLDER):
        if (place / HEAD_FILE).is_file():
            return place
    raise CheckpointError(f"{folder} has no {HEAD_FILE}: not a Clef checkpoint.", fix=_FIX)


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _linear(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _attention(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.in_proj_weight": (3 * width, width),
        f"{name}.in_proj_bias": (3 * width,),
        **_linear(f"{name}.out_proj", width, width),
    }
