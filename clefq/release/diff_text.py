"""The picture of a comparison, at most 80 columns wide: two bars per layer, one per other part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clefq.release.diff import DiffPart, FolderDiff, TensorDiff
from clefq.release.weights import CLEF_PREFIX

BAR = 16
SHOWN = 8
_EIGHTHS = " ▏▎▍▌▋▊▉"
_WORDS = {
    "identical": "identical",
    "changed": "changed",
    "dtype": "of another dtype",
    "shape": "of another shape",
    "missing": "missing",
    "added": "added",
}


def diff_text(found: FolderDiff, *, every: bool = False) -> RenderableType:
    """The comparison as text.

    Args:
        found: The comparison.
        every: List every tensor, not only the most changed ones.
    """
    counts = ", ".join(f"{n:,} {_WORDS[s]}" for s, n in found.counts.items() if n)
    parts: list[RenderableType] = [
        Text(f"model  {found.model.folder}  ({_formats(found.model.formats)})"),
        Text(f"base   {found.base.folder}  ({_formats(found.base.formats)})"),
        Text(f"\n{len(found.tensors):,} tensors: {counts}"),
    ]
    if any(tensor.quantized and tensor.relative for tensor in found.tensors):
        parts.append(Text("Quantized weights are compared after dequantization.", "dim"))
    top = max((p.relative for p in found.parts if p.relative), default=0.0)
    parts += _layers(found.parts, top)
    parts += _rest(found.parts, top)
    parts += list(_listing(found.tensors, every))
    parts += list(_beside(found))
    parts += [Text(f"note: {note}", "dim") for note in found.notes]
    return Group(*parts)


def _formats(formats: object) -> str:
    assert isinstance(formats, dict)
    named = ", ".join(f"{count} × {kind}" for kind, count in sorted(formats.items()))
    return named or "not quantized"


def bar(value: float, top: float, width: int = BAR) -> str:
    """A bar of up to `width` columns, in eighths; anything above zero is visible."""
    if value <= 0 or top <= 0:
        return ""
    eighths = max(1, round(8 * width * min(1.0, value / top)))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _layers(parts: Sequence[DiffPart], top: float) -> list[RenderableType]:
    layers = list(dict.fromkeys(part.place for part in parts if part.place.isdigit()))
    if not layers:
        return []
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("layer", justify="right")
    for name in ("mixer", ""):
        table.add_column(name, no_wrap=True)
    table.add_column("‖Δ‖/‖base‖", width=7 + BAR, no_wrap=True)
    table.add_column("MLP", no_wrap=True)
    table.add_column("‖Δ‖/‖base‖", width=7 + BAR, no_wrap=True)
    table.add_column("norms", no_wrap=True)
    for layer in layers:
        own = {part.part: part for part in parts if part.place == layer}
        kind = next((name for name in ("attention", "DeltaNet") if name in own), "")
        mixer, mlp, norms = own.get(kind), own.get("MLP"), own.get("norms")
        table.add_row(
            layer, kind, _share(mixer), _measure(mixer, top), _share(mlp), _measure(mlp, top),
            _share(norms),
        )  # fmt: skip
    return [Text("\nchanged tensors, and by how much:"), table]


def _rest(parts: Sequence[DiffPart], top: float) -> list[RenderableType]:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for part in parts:
        if not part.place.isdigit():
            detail = ", ".join(
                f"{n} {_WORDS[s]}" for s, n in part.counts.items() if s != "identical"
            )
            table.add_row(part.place, _share(part), detail or "identical", _measure(part, top))
    return [Text(""), table] if table.row_count else []


def _share(part: DiffPart | None) -> str:
    return "" if part is None else f"{part.differing}/{part.total}"


def _measure(part: DiffPart | None, top: float) -> str:
    if part is None or part.relative is None:
        return ""
    return f"{number(part.relative)} {bar(part.relative, top)}"


def number(value: float) -> str:
    """A relative change in five or six columns."""
    if value == 0:
        return "0"
    return f"{value:.4f}" if value >= 0.001 else f"{value:.0e}"


def _listing(tensors: Sequence[TensorDiff], every: bool) -> Iterator[RenderableType]:
    differing = [tensor for tensor in tensors if tensor.status != "identical"]
    shown = list(tensors) if every else sorted(differing, key=_rank)[:SHOWN]
    if not shown:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for tensor in shown:
        table.add_row(_how(tensor), _short(tensor.name), _kinds(tensor))
    yield Text("\nevery tensor:" if every else "\nwhat differs most:")
    yield table
    if not every and len(differing) > len(shown):
        yield Text(f"… and {len(differing) - len(shown):,} more (--all lists every tensor)")


def _rank(tensor: TensorDiff) -> tuple[int, float]:
    # what is not merely rounded comes first
    odd = tensor.status in ("missing", "added", "shape") or tensor.relative is None
    return (0 if odd else 1, -(tensor.relative or 0.0))


def _how(tensor: TensorDiff) -> str:
    if tensor.relative is not None and tensor.status in ("changed", "dtype"):
        return number(tensor.relative)
    return tensor.status


def _short(name: str) -> str:
    return name.removeprefix(CLEF_PREFIX)


def _kinds(tensor: TensorDiff) -> str:
    """The sides, base first; what both have is said once."""
    sides = [side for side in (tensor.base, tensor.model) if side is not None]
    dtypes = list(dict.fromkeys(str(side["dtype"]) for side in sides))
    shapes = list(dict.fromkeys(str(side["shape"]) for side in sides))
    text = f"{' → '.join(dtypes)} {' → '.join(shapes)}"
    return f"{text}; {tensor.note}" if tensor.note else text


def _beside(found: FolderDiff) -> Iterator[RenderableType]:
    differing = {name: word for name, word in found.files.items() if word != "identical"}
    for line in found.config:
        yield Text(f"config.json: {line}")
    for name, word in differing.items():
        yield Text(f"file {name}: {word}")
    if found.files and not differing:
        yield Text(f"\n{len(found.files)} files beside the weights are identical")
