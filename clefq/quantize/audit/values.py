"""Audit of the stored numbers: NaN, infinity, absurd ones, and zeros where no weight has them.

A download or a copy that stopped leaves a file of the right size whose rest is zero. Header, index
and shapes are then as they should be, and without a source or recorded hashes only the numbers
tell: no trained matrix ends in hundreds of exact zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from clefq.clef.config_match import NVFP4, ModuleFormat
from clefq.clef.tensor_files import Buffer, TensorInfo
from clefq.errors import CheckpointError, ClefqError
from clefq.plain_files import read_json
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.values import impossible
from clefq.quantize.workers import in_threads

Refs = Mapping[str, TensorInfo]
Flags = npt.NDArray[np.bool_]

IMPOSSIBLE = "values that are NaN, infinite or beyond 2^24"
# bytes of zeros at the end of a matrix, and anywhere in it, that no trained weights have
_TAIL = 512
_PAGE = 4096
_RUN = 8 * _PAGE
# groups of 16 codes: 256 bytes
_GROUP_RUN = 32
_GROUP_BYTES = 8
# the sign of a zero is free: the magnitude bits of 16 codes
_MAGNITUDES = np.uint64(0x7777_7777_7777_7777)
# scales of a group whose weights all round to zero, as E4M3 codes: zero, the smallest number, and
# the 0.125 that compressed-tensors puts for zero
_SCALES_OF_ZERO = (0, 1, 0x20)
# rows of these may be padding up to a round vocabulary
_PADDED = ("embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True, slots=True)
class Zeros:
    """Where a matrix is zero.

    Attributes:
        at: First byte of the zeros, counted from the tensor's start.
        count: How many bytes, one after the other.
        whole: Whether nothing else is in it.
    """

    at: int
    count: int
    whole: bool


def check(
    report: AuditReport, refs: Refs, schemes: Mapping[str, ModuleFormat], folder: Path, proven: bool
) -> None:
    """Looks at every stored number.

    Args:
        report: Takes the breaches.
        refs: Every backbone tensor.
        schemes: Format of every quantized module.
        folder: The checkpoint, for its tokenizer.
        proven: Whether a source is at hand: zeros that it has too are then no damage, and others
            are found by the comparison.
    """
    numbers = [ref for name, ref in refs.items() if not name.endswith("_scale")]
    report.looked_at("values", len(numbers))
    zeros = {}
    for ref, (bad, found) in zip(numbers, in_threads(scan, numbers), strict=True):
        if bad:
            report.breach(
                "values", ref.name, f"holds {bad} {IMPOSSIBLE}", "answers are NaN or noise"
            )
        if found is not None and not _is_padding(ref, found, folder):
            zeros[ref.name] = ref, found
    _matrices(report, zeros, proven)
    if not proven:
        _groups(report, refs, schemes)
    _vectors(report, numbers)


def refuse_impossible(refs: Refs, folder: Path) -> None:
    """Refuses a source with numbers that no model has, before hours go into it.

    Raises:
        CheckpointError: Names every such tensor.
    """
    floats = [ref for ref in refs.values() if ref.dtype in ("BF16", "F16", "F32")]

    def count(ref: TensorInfo) -> int:
        return sum(impossible(block, ref.dtype) for block in ref.blocks())

    faults = [
        f"{ref.name} holds {bad} {IMPOSSIBLE}"
        for ref, bad in zip(floats, in_threads(count, floats), strict=True)
        if bad
    ]
    if faults:
        raise CheckpointError(
            f"{folder}: {faults[0]}.",
            fix="download it again; where the hub's files are so too, the training broke it.",
            faults=faults[1:],
        )


def _matrices(
    report: AuditReport, found: Mapping[str, tuple[TensorInfo, Zeros]], proven: bool
) -> None:
    same = []
    for name, (ref, zeros) in found.items():
        if zeros.whole:
            report.breach("values", name, "holds nothing but zeros", _EFFECT)
        elif proven:
            same.append(name)
        else:
            report.breach("values", name, _where(ref, zeros), _EFFECT)
    if same:
        report.notes.append(
            f"{len(same)} matrices hold long runs of zeros (first: {same[0]}): "
            "look whether the source is whole."
        )


_EFFECT = "those weights do nothing; most likely the file was cut short and filled up"


def _where(ref: TensorInfo, zeros: Zeros) -> str:
    width = ref.nbytes // ref.shape[0]
    if zeros.at + zeros.count == ref.nbytes:
        return f"is zero from row {zeros.at // width:,} of {ref.shape[0]:,} to its end"
    return f"has {zeros.count:,} bytes of zeros in one run, from row {zeros.at // width:,} on"


def _is_padding(ref: TensorInfo, zeros: Zeros, folder: Path) -> bool:
    if zeros.whole or not ref.name.endswith(_PADDED) or zeros.at + zeros.count != ref.nbytes:
        return False
    words = vocabulary(folder)
    first_zero_row = -(-zeros.at // (ref.nbytes // ref.shape[0]))
    return words is not None and first_zero_row >= words


def vocabulary(folder: Path) -> int | None:
    """One more than the largest token id of a folder's tokenizer, or None if it has none."""
    try:
        body = read_json(folder / "tokenizer.json")
        ids = [*body["model"]["vocab"].values(), *(t["id"] for t in body["added_tokens"])]
        return int(max(ids)) + 1
    except (ClefqError, KeyError, TypeError, ValueError, AttributeError):
        return None


def scan(ref: TensorInfo) -> tuple[int, Zeros | None]:
    """One reading of a tensor.

    Returns:
        How many of its numbers are NaN, infinite or absurd; and, for a matrix, the zeros at its
        end, or else its longest run inside, where no trained weights have them.
    """
    matrix = len(ref.shape) > 1 and ref.nbytes >= _TAIL
    tail = _tail(ref) if matrix else 0
    whole = matrix and tail == ref.nbytes
    packed = ref.name.endswith(".weight_packed")
    if packed and ref.dtype == "U8":
        # a small weight has codes of zero: groups and their scales tell more
        return 0, Zeros(0, tail, whole) if whole else None
    bad, pages = 0, []
    for block in ref.blocks():
        bad += impossible(block, ref.dtype)
        pages.append(_zero_pages(block))
    if whole or tail >= _TAIL:
        return bad, Zeros(ref.nbytes - tail, tail, whole)
    at, count = _longest(pages)
    # zero bytes of packed INT4 are no zeros: 8,192 weights in a row that are the lowest code
    long = matrix and count * _PAGE >= (_PAGE if packed else _RUN)
    return bad, Zeros(at * _PAGE, count * _PAGE, whole=False) if long else None


def _tail(ref: TensorInfo) -> int:
    """Zero bytes at the end, read from there, so that a usual tensor costs a few bytes."""
    count, step = 0, 64
    while count < ref.nbytes:
        step = min(step, ref.nbytes - count)
        piece = np.frombuffer(ref.slice(ref.nbytes - count - step, step), dtype=np.uint8)
        nonzero = np.flatnonzero(piece)
        if len(nonzero):
            return count + step - 1 - int(nonzero[-1])
        count += step
        step = min(2 * step, 1 << 22)
    return count


def _zero_pages(block: Buffer) -> Flags:
    whole = len(block) // _PAGE * _PAGE
    words = np.frombuffer(memoryview(block)[:whole], dtype=np.uint64)
    return np.logical_not(words.reshape(-1, _PAGE // 8).any(axis=1))


def _longest(blocks: Iterable[Flags]) -> tuple[int, int]:
    """Start and length of the longest run of True over consecutive blocks."""
    best, open_run, seen = (0, 0), 0, 0
    for block in blocks:
        edges = np.flatnonzero(np.diff(block.view(np.int8), prepend=0, append=0))
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            start = seen + begin - (open_run if begin == 0 else 0)
            best = max(best, (start, seen + end - start), key=lambda run: run[1])
        if not block.all():
            open_run = 0 if not len(edges) or edges[-1] < len(block) else len(block) - edges[-2]
        else:
            open_run += len(block)
        seen += len(block)
    return best


def _groups(report: AuditReport, refs: Refs, schemes: Mapping[str, ModuleFormat]) -> None:
    modules = [
        module
        for module, scheme in schemes.items()
        if scheme.format == NVFP4
        and scheme.group_size == 16
        and f"{module}.weight_packed" in refs
        and f"{module}.weight_scale" in refs
    ]
    found = in_threads(partial(_lost_groups, refs), modules)
    for module, (first, count) in zip(modules, found, strict=True):
        if count >= _GROUP_RUN:
            packed = refs[f"{module}.weight_packed"]
            row = first // (packed.nbytes // packed.shape[0] // _GROUP_BYTES)
            report.breach(
                "values",
                packed.name,
                f"has {16 * count:,} codes of zero in one run, from row {row:,} on, under scales "
                "that are not",
                _EFFECT,
            )


def _lost_groups(refs: Refs, module: str) -> tuple[int, int]:
    """The longest run of groups whose codes are all zero though their scale says otherwise.

    A group's largest weight has one of the largest codes: only a group of zeros has none, and that
    shows in its scale.
    """
    packed, scales = refs[f"{module}.weight_packed"], refs[f"{module}.weight_scale"]
    if packed.nbytes != _GROUP_BYTES * scales.nbytes or packed.dtype != "U8":
        return 0, 0  # another layout, which the config check reports

    def lost() -> Iterator[Flags]:
        for block, scale in zip(packed.blocks(), _eighths(scales), strict=True):
            codes = np.frombuffer(block, dtype=np.uint64) & _MAGNITUDES
            usual = ~np.isin(np.frombuffer(scale, dtype=np.uint8), _SCALES_OF_ZERO)
            yield np.asarray((codes == 0) & usual)

    return _longest(lost())


def _eighths(scales: TensorInfo) -> Iterator[Buffer]:
    """Blocks that lie beside those of the codes."""
    from clefq.clef.tensor_files import COPY_BLOCK

    return (block for _, block in scales.pieces(COPY_BLOCK // _GROUP_BYTES))


def _vectors(report: AuditReport, refs: list[TensorInfo]) -> None:
    """Norms and biases may be zero before training only: worth a word, no breach."""
    long = [ref for ref in refs if len(ref.shape) == 1 and ref.nbytes >= _TAIL]
    zero = [ref.name for ref in long if _tail(ref) == ref.nbytes]
    if zero:
        report.notes.append(
            f"{len(zero)} norms or biases hold nothing but zeros (first: {zero[0]}): untrained, "
            "or a file that was cut short and filled up."
        )
