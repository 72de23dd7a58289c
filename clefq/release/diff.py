"""Two checkpoints, tensor by tensor: what a training or a quantization changed, and how much.

Equal bytes are identical. Otherwise the difference is ‖model − base‖ / ‖base‖ (Frobenius norms,
accumulated in float64) over the values; a quantized weight's values are those that its codes and
scales stand for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clefq.clef.family import FAMILY, TEXT
from clefq.clef.tensor_files import same_bytes
from clefq.console import Advance
from clefq.plain_files import read_json, sha256_file
from clefq.quantize.audit import files as audit_files
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.finish import side_files
from clefq.quantize.workers import in_threads
from clefq.release.weights import HEAD_PREFIX, Weight, Weights, open_weights

STATUSES = ("identical", "changed", "dtype", "shape", "missing", "added")
_LAYER = re.compile(rf"^{re.escape(TEXT)}\.layers\.(\d+)\.(\w+)")
_TITLES = {part.path: part.title for part in FAMILY.parts.values()}
_PLACES = (
    (f"{TEXT}.embed_tokens.", "embeddings"),
    (f"{TEXT}.norm.", "final norm"),
    ("lm_head.", "lm_head"),
    (f"{FAMILY.visual}.", "vision tower"),
    (HEAD_PREFIX, "joint head"),
    *((prefix, "draft layers") for prefix in FAMILY.drafts),
)


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """One weight in both checkpoints.

    Attributes:
        name: Its name in an unquantized Clef.
        status: One of `STATUSES`: `dtype` and `shape` where those differ between plain tensors.
        model: `{"dtype", "shape"}` in the model, or None where it is missing.
        base: The same in the base, or None where it was added.
        quantized: Whether a side is quantized, so that values were decoded before comparing.
        error_squared: Σ (model − base)², or None where the values were not compared.
        base_squared: Σ base², or None.
        note: What else is to be said, or an empty string.
    """

    name: str
    status: str
    model: Mapping[str, Any] | None
    base: Mapping[str, Any] | None
    quantized: bool = False
    error_squared: float | None = None
    base_squared: float | None = None
    note: str = ""

    @property
    def relative(self) -> float | None:
        """‖model − base‖ / ‖base‖; 0 where identical, None where not compared or base is zero."""
        if self.status == "identical":
            return 0.0
        return ratio(self.error_squared, self.base_squared)

    def to_json(self) -> dict[str, Any]:
        """The tensor's entry of the JSON document."""
        return {
            "name": self.name,
            "status": self.status,
            "relative": self.relative,
            "after_dequantization": self.quantized and self.relative is not None,
            "model": self.model,
            "base": self.base,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class DiffPart:
    """Tensors that belong together, for the picture: a layer's mixer, its MLP, the vision tower.

    Attributes:
        place: `0`, `1`, … for layers, else a name such as `joint head`.
        part: `DeltaNet`, `attention`, `MLP` or `norms` in a layer, else an empty string.
        counts: Status → number of tensors.
        relative: ‖model − base‖ / ‖base‖ over the tensors that differ and were compared; None
            where there are none.
    """

    place: str
    part: str
    counts: Mapping[str, int]
    relative: float | None

    @property
    def total(self) -> int:
        """Number of tensors."""
        return sum(self.counts.values())

    @property
    def differing(self) -> int:
        """How many of them are not identical."""
        return self.total - self.counts.get("identical", 0)


@dataclass(frozen=True, slots=True)
class FolderDiff:
    """Two checkpoints compared.

    Attributes:
        model: The model's weights.
        base: The base's weights.
        tensors: Every tensor, in the model's order, missing ones last.
        parts: The same, summed up; layers in order, then the rest.
        files: Files beside the weights: name → `identical`, `changed`, `missing` or `added`.
        config: Where `config.json` differs, one line each; quantization left out.
        notes: What could not be compared as it is meant.
    """

    model: Weights
    base: Weights
    tensors: Sequence[TensorDiff]
    parts: Sequence[DiffPart]
    files: Mapping[str, str]
    config: Sequence[str]
    notes: Sequence[str]

    @property
    def counts(self) -> dict[str, int]:
        """Status → number of tensors, every status."""
        return {s: sum(t.status == s for t in self.tensors) for s in STATUSES}

    def to_json(self) -> dict[str, Any]:
        """The JSON document of `clefq diff --json`."""
        return {
            "model": {"folder": str(self.model.folder), "formats": dict(self.model.formats)},
            "base": {"folder": str(self.base.folder), "formats": dict(self.base.formats)},
            "counts": self.counts,
            "parts": [
                {"place": p.place, "part": p.part, "counts": p.counts, "relative": p.relative}
                for p in self.parts
            ],
            "tensors": [tensor.to_json() for tensor in self.tensors],
            "files": dict(self.files),
            "config": list(self.config),
            "notes": list(self.notes),
        }


def ratio(error: float | None, norm: float | None) -> float | None:
    """√(error / norm), or None where either is unknown, not finite, or the norm is zero."""
    if error is None or norm is None or not math.isfinite(error) or norm == 0:
        return None
    return math.sqrt(error / norm)


def diff_folders(model: Weights, base: Weights, advance: Advance = lambda _: None) -> FolderDiff:
    """Compares two checkpoints; one thread per core, a few blocks of memory each.

    Args:
        model: The model.
        base: What it is held against.
        advance: Told of the stored bytes of the model as they are done.

    Raises:
        CheckpointError: A file became shorter while it was read.
    """

    def compare(name: str) -> TensorDiff:
        found = diff_weight(name, model.weights.get(name), base.weights.get(name))
        advance(model.weights[name].nbytes if name in model.weights else 0)
        return found

    names = [*model.weights, *(name for name in base.weights if name not in model.weights)]
    tensors = tuple(in_threads(compare, names))
    return FolderDiff(
        model,
        base,
        tensors,
        tuple(_parts(tensors)),
        _files(model.folder, base.folder),
        _config(model.folder, base.folder),
        (*(f"model: {n}" for n in model.notes), *(f"base: {n}" for n in base.notes)),
    )


def diff_paths(model: Path, base: Path) -> FolderDiff:
    """Compares two folders; see `diff_folders`."""
    return diff_folders(open_weights(model), open_weights(base))


def diff_weight(name: str, model: Weight | None, base: Weight | None) -> TensorDiff:
    """Compares one weight; None is a side that lacks it.

    Raises:
        ValueError: Both are None.
    """
    if model is None or base is None:
        if model is base:
            raise ValueError(f"{name} is in neither checkpoint")
        status = "missing" if model is None else "added"
        return TensorDiff(name, status, _stored(model), _stored(base))
    sides = _stored(model), _stored(base)
    quantized = model.scheme is not None or base.scheme is not None
    if model.shape != base.shape:
        return TensorDiff(name, "shape", *sides, quantized)
    if model.scheme == base.scheme and _same_parts(model, base):
        return TensorDiff(name, "identical", *sides, quantized)
    status = "dtype" if not quantized and model.dtype != base.dtype else "changed"
    if not (model.readable and base.readable):
        unread = model if not model.readable else base
        return TensorDiff(
            name, status, *sides, quantized, note=f"{unread.dtype} values are not decoded"
        )
    error, norm, lost = _squares(model, base)
    note = "" if math.isfinite(error) else "holds NaN or infinite values"
    if quantized and lost:
        note = f"{lost:,} of {model.shape[0]:,} rows vanish: less than half of their norm is left"
    if norm == 0:
        note = "the base is all zeros"
    if quantized and error == 0:
        note = _scales_note(model, base) or note
    return TensorDiff(name, status, *sides, quantized, error, norm, note)


def _stored(weight: Weight | None) -> dict[str, Any] | None:
    return None if weight is None else {"dtype": weight.dtype, "shape": list(weight.shape)}


def _same_parts(model: Weight, base: Weight) -> bool:
    if model.parts.keys() != base.parts.keys():
        return False
    return all(same_bytes(part, base.parts[suffix]) for suffix, part in model.parts.items())


def _scales_note(model: Weight, base: Weight) -> str:
    if model.scheme is None or base.scheme is None:
        return ""
    inputs = [s for s in model.parts if s.startswith("input") and s in base.parts]
    if any(not same_bytes(model.parts[s], base.parts[s]) for s in inputs):
        return "same values, other input scale"
    return "same values, stored otherwise"


def _squares(model: Weight, base: Weight) -> tuple[float, float, int]:
    """Σ (model − base)², Σ base², and how many rows keep less than half of the base's norm."""
    error = norm = 0.0
    columns = math.prod(base.shape[1:])
    quantized = model.scheme is not None or base.scheme is not None
    rows = _RowNorms(base.shape[0] if quantized else 0, columns)
    for ours, theirs in zip(model.blocks(), base.blocks(), strict=True):
        wide, mine = theirs.astype(np.float64), ours.astype(np.float64)
        difference = mine - wide
        error += float(difference @ difference)
        norm += float(wide @ wide)
        rows.add(mine, wide)
    return error, norm, rows.lost


class _RowNorms:
    """Squared norms of the rows of a matrix on both sides, from flat blocks cut anywhere."""

    def __init__(self, rows: int, columns: int) -> None:
        self._columns = columns
        self._at = 0
        self._sides = np.zeros((2, rows)) if rows and columns > 1 else None

    def add(self, model: npt.NDArray[np.float64], base: npt.NDArray[np.float64]) -> None:
        """Adds the next numbers."""
        if self._sides is not None:
            index = (self._at + np.arange(len(base))) // self._columns
            for side, values in zip(self._sides, (model, base), strict=True):
                side += np.bincount(index, values * values, minlength=len(side))
        self._at += len(base)

    @property
    def lost(self) -> int:
        """Rows that keep less than half of the base's norm."""
        if self._sides is None:
            return 0
        return int(np.count_nonzero(self._sides[0] < self._sides[1] / 4))


def place_of(name: str) -> tuple[str, str]:
    """Where a weight belongs: a layer's number and its part, or a name such as `lm_head` and ''."""
    layer = _LAYER.match(name)
    if layer is not None:
        part = _TITLES.get(layer[2], "norms")
        return layer[1], part
    return next((place for start, place in _PLACES if name.startswith(start)), "other"), ""


def _parts(tensors: Sequence[TensorDiff]) -> list[DiffPart]:
    groups: dict[tuple[str, str], list[TensorDiff]] = {}
    for tensor in tensors:
        groups.setdefault(place_of(tensor.name), []).append(tensor)
    found = []
    for (place, part), members in sorted(groups.items(), key=_place_order):
        compared = [
            t for t in members if t.error_squared is not None and t.base_squared is not None
        ]
        relative = ratio(
            math.fsum(t.error_squared or 0.0 for t in compared) if compared else None,
            math.fsum(t.base_squared or 0.0 for t in compared) if compared else None,
        )
        counts = {s: sum(t.status == s for t in members) for s in STATUSES}
        found.append(DiffPart(place, part, {s: n for s, n in counts.items() if n}, relative))
    return found


def _place_order(item: tuple[tuple[str, str], Any]) -> tuple[int, int, str]:
    (place, part), _ = item
    names = list(dict.fromkeys(name for _, name in _PLACES))
    if place.isdigit():
        return 0, int(place), part
    return 1, names.index(place) if place in names else len(names), part


def _files(model: Path, base: Path) -> dict[str, str]:
    ours, theirs = (
        {name for name in side_files(folder) if not name.endswith(".safetensors")}
        for folder in (model, base)
    )
    found = {}
    for name in sorted(ours | theirs):
        if name not in theirs:
            found[name] = "added"
        elif name not in ours:
            found[name] = "missing"
        else:
            same = sha256_file(model / name) == sha256_file(base / name)
            found[name] = "identical" if same else "changed"
    return found


def _config(model: Path, base: Path) -> tuple[str, ...]:
    if not all((folder / "config.json").is_file() for folder in (model, base)):
        return ()
    report = AuditReport(str(model))
    audit_files.settings(report, model, read_json(model / "config.json"), base)
    return tuple(
        breach.message.replace("the source has", "the base has")
        for breach in report.breaches
        if breach.subject == "config.json"
    )
