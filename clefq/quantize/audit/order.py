"""The order of group scales and codes, told without a source by what training leaves in weights.

Scales that a kernel has swizzled, or the two codes of a byte exchanged, have every shape and size
that they should have. Trained weights are no noise, though:

- Rows and columns differ in size, so that scales are closer to those of their own row and column
  than to others. Of two readings of a matrix of scales, as stored and with vLLM's and cuBLAS' tiles
  of 128 × 4 undone, the right one has more of its variance between rows and between columns.
- A neuron's input and output weights grow together: along a gradient flow the difference of their
  squared norms is conserved. So the size of a row of `up_proj` tells that of the same column of
  `down_proj`, and of two neighbouring neurons the larger is larger in both. Exchanged codes turn
  that round.

Both are sums over layers of numbers that are standard normal where there is nothing to see: for
random weights neither test says anything, and the audit says that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from clefq.clef.config_match import NVFP4, ModuleFormat
from clefq.clef.family import FAMILY, MLP, reads
from clefq.clef.formats import PACKED_INT4
from clefq.clef.small_floats import E2M1, E4M3
from clefq.clef.tensor_files import TensorInfo
from clefq.quantize.audit.bounds import largest_under_scales
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.values import Floats, read_floats
from clefq.quantize.workers import in_threads

Refs = Mapping[str, TensorInfo]

# Standard deviations beyond which an order is told. On the miniature the sums are 84 for scales and
# 30 for codes, on random weights of three seeds at most 1.6.
CERTAIN = 8.0
# Share of the layers that must agree.
_MOST = 0.9
# Rows that are looked at: a whole number of tiles.
_ROWS = 512
_TILE, _WIDE = 128, 4
_FIRST = 4  # rows that a tile has beside each other
_SCALE_LOGS = np.log2(np.maximum(np.abs(np.nan_to_num(E4M3)), 2.0**-9)).astype(np.float32)
# storage to the square of what each code stands for
_SQUARES: dict[str, Floats] = {
    NVFP4: np.square(E2M1).astype(np.float32),
    **dict.fromkeys(PACKED_INT4.names, np.square(np.arange(16, dtype=np.float32) - 8)),
}


def check(report: AuditReport, refs: Refs, schemes: Mapping[str, ModuleFormat]) -> None:
    """Tells the order of 4-bit codes and their scales where the weights have anything to say."""
    four = [module for module, scheme in schemes.items() if scheme.format in _SQUARES]
    nvfp4 = [module for module in four if schemes[module].format == NVFP4]
    if not four:
        return
    scales = _certain(list(in_threads(partial(_scales, refs), nvfp4))) if nvfp4 else 1
    if scales < 0:
        report.breach(
            "group scales",
            "every weight_scale",
            "has the order of a kernel's tiles of 128 × 4: row by row it looks like noise, undone "
            "it has rows and columns",
            "groups are scaled by each other's scales",
        )
    codes = _certain(list(in_threads(partial(_codes, refs, schemes), four)))
    if codes < 0:
        report.breach(
            "values",
            "every weight_packed",
            "has the two codes of a byte exchanged: its columns have the sizes of their neighbours",
            "inputs meet each other's weights",
        )
    told = {"group scales": scales, "codes": codes}
    if open_ := [what for what, sign in told.items() if not sign]:
        report.cannot_see(
            f"the order of {' and '.join(open_)}: swizzled scales or exchanged nibbles have the "
            "right shapes and sizes, and these weights are too even to tell"
        )


def _certain(scores: Sequence[float | None]) -> int:
    """1 where the stored order is right for sure, -1 where the other one is, else 0.

    Args:
        scores: Per module, standard normal where neither order fits better; positive for the
            stored one; None where nothing can be said.
    """
    found = np.array([score for score in scores if score is not None])
    if not len(found) or abs(found.sum()) < CERTAIN * len(found) ** 0.5:
        return 0
    sign = int(np.sign(found.sum()))
    return sign if np.mean(np.sign(found) == sign) >= _MOST else 0


def _scales(refs: Refs, module: str) -> float | None:
    """By how much rows and columns of stored scales explain more than with tiles undone."""
    ref = refs.get(f"{module}.weight_scale")
    if ref is None or ref.dtype != "F8_E4M3" or len(ref.shape) != 2:
        return None
    groups = ref.shape[1]
    rows = min(ref.shape[0], _ROWS) // _TILE * _TILE
    if not rows or groups % _WIDE:
        return None
    codes = np.frombuffer(ref.slice(0, rows * groups), dtype=np.uint8)
    logs = _SCALE_LOGS[codes & 0x7F].reshape(rows, groups)
    parts = rows // _TILE, groups // _WIDE, _TILE // _FIRST, _FIRST, _WIDE
    undone = logs.reshape(parts).transpose(0, 3, 2, 1, 4).reshape(rows, groups)
    return float((_explained(logs) - _explained(undone)) / np.sqrt(4 * (rows + groups)))


def _explained(values: Floats) -> float:
    """Squares between rows and between columns, in units of the whole's variance."""
    mean, variance = float(values.mean()), float(values.var())
    if not variance:
        return 0.0
    across, down = values.mean(1) - mean, values.mean(0) - mean
    squares = values.shape[1] * np.sum(across**2) + values.shape[0] * np.sum(down**2)
    return float(squares / variance)


def _codes(refs: Refs, schemes: Mapping[str, ModuleFormat], module: str) -> float | None:
    """Correlation of neighbouring neurons' differences, in standard deviations."""
    way = reads(module)
    part = FAMILY.parts[MLP]
    if way is None or len(way.behind) != 2 or f".{part.path}." not in module:
        return None
    rows = _row_sizes(refs, schemes, way.behind[1])
    ref = refs.get(f"{module}.weight_packed")
    if rows is None or ref is None or len(ref.shape) != 2:
        return None
    width = ref.nbytes // ref.shape[0]
    if len(rows) != 2 * width:
        return None
    count = min(ref.shape[0], 2 * _ROWS)
    packed = np.frombuffer(ref.slice(0, count * width), dtype=np.uint8).reshape(count, width)
    squares = _SQUARES[schemes[module].format]
    first, second = squares[packed & 0xF].sum(0), squares[packed >> 4].sum(0)
    return _correlation(_logs(first) - _logs(second), np.diff(_logs(rows).reshape(-1, 2))[:, 0])


def _row_sizes(
    refs: Refs, schemes: Mapping[str, ModuleFormat], module: str
) -> npt.NDArray[np.float64] | None:
    scheme, ref = schemes.get(module), refs.get(f"{module}.weight")
    if scheme is not None:
        found = largest_under_scales(refs, module, scheme)
        if found is None or found.ndim != 2 or (found.shape[1] == 1 and scheme.format == NVFP4):
            return None
        return np.asarray(np.square(found.astype(np.float64)).sum(1))
    if ref is None or ref.dtype not in ("BF16", "F16", "F32"):
        return None
    return np.asarray(np.square(read_floats(ref).astype(np.float64)).sum(1))


def _logs(squares: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    return np.asarray(np.log(np.maximum(squares, 1e-30)))


def _correlation(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float | None:
    if not (a.std() and b.std()):
        return None
    # `b` is second minus first, `a` the other way round
    return -float(np.corrcoef(a, b)[0, 1]) * len(a) ** 0.5
