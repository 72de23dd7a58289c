"""The streaming method: fused groups flow from the source's shards to the output's.

No model is loaded. Every worker takes one unit (a fused group, a Linear, a tensor to copy) and
goes through its rows block by block, writing each result at its final place in the output file.
An NVFP4 group is read twice, first for its largest magnitude; the second time it comes from the
page cache. So memory is a few blocks per core, whatever the shards and the groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clefq.clef.formats import RECIPE_FORMATS, Format, format_of_weights
from clefq.clef.tensor_files import TensorInfo
from clefq.errors import InputError
from clefq.quantize.layout import Unit, copy_tensor
from clefq.quantize.tensors import OutTensor, ShardFile
from clefq.quantize.workers import default_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from clefq.quantize.kernels import Rounding

_BLOCK_ELEMENTS = 1 << 19
_GPU_BLOCKS = 16  # blocks on a GPU are this many times larger
_GPU_WORKERS = 16
_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def stream_outputs(
    modules: Mapping[str, Any], refs: Mapping[str, TensorInfo], dtype: str
) -> dict[str, list[OutTensor]]:
    """The tensors that replace each quantized weight.

    Args:
        modules: Module to compressed-tensors scheme.
        refs: The source's tensors.
        dtype: The model's dtype in safetensors' words: that of FP8 scales.
    """
    outputs: dict[str, list[OutTensor]] = {}
    for module, scheme in modules.items():
        ref = refs.get(f"{module}.weight")
        if ref is None:  # plan_units reports it
            outputs[module] = []
            continue
        # what is not streamed weighs about as much as what is, at the same width
        row = format_of_weights(scheme.weights) or next(
            row for row in RECIPE_FORMATS.values() if row.weights.bits == scheme.weights.num_bits
        )
        stored = row.tensors(ref.shape[0], ref.shape[1], dtype)
        outputs[module] = [OutTensor(f"{module}.{name}", *kind) for name, kind in stored.items()]
    return outputs


@dataclass(frozen=True)
class Stream:
    """Quantizes units into an output file.

    Attributes:
        modules: Module to compressed-tensors scheme.
        refs: The source's tensors.
        dtype: The model's dtype in safetensors' words.
        device: Where the arithmetic runs.
    """

    modules: Mapping[str, Any]
    refs: Mapping[str, TensorInfo]
    dtype: str
    device: str

    def write_unit(self, file: ShardFile, unit: Unit) -> None:
        """Quantizes or copies one unit."""
        if not unit.modules:
            copy_tensor(file, self.refs[unit.name])
            return
        divisor = None
        if self._rounding(unit.modules[0]).shared:
            divisor = self.shared_divisor(unit.modules)
        for module in unit.modules:
            self._quantize(file, module, divisor)

    def _rounding(self, module: str) -> Rounding:
        from clefq.quantize.kernels import ROUNDINGS

        return ROUNDINGS[self._format(module).name]

    def _format(self, module: str) -> Format:
        row = format_of_weights(self.modules[module].weights)
        assert row is not None  # the plan refuses what is not streamed
        return row

    def shared_divisor(self, members: Iterable[str]) -> torch.Tensor:
        """The global scale of a fused group: that of its largest magnitude, `[1]`, F32."""
        import torch

        from clefq.quantize import kernels

        largest = torch.stack(
            [kernels.absmax(block) for module in members for _, block in self._blocks(module)]
        ).max()
        return kernels.global_scale(largest)

    def _quantize(self, file: ShardFile, module: str, divisor: torch.Tensor | None) -> None:
        args, codes_name = self.modules[module].weights, self._format(module).storage.codes[0]
        quantize = self._rounding(module).quantize
        for row, block in self._blocks(module):
            for name, rows in zip(
                (codes_name, "weight_scale"), quantize(block, args, divisor), strict=True
            ):
                width = rows.shape[1] * rows.element_size()
                file.put(f"{module}.{name}", row * width, _bytes(rows))
        others = {"weight_global_scale": divisor, "weight_shape": self._shape(module)}
        for name in self._format(module).storage.others:
            value = others[name]
            assert value is not None
            file.put(f"{module}.{name}", 0, _bytes(value))

    def _shape(self, module: str) -> torch.Tensor:
        import torch

        return torch.tensor(self.refs[f"{module}.weight"].shape, dtype=torch.int64)

    def _blocks(self, module: str) -> Iterator[tuple[int, torch.Tensor]]:
        """Blocks of rows of a weight in the model's dtype, with the number of their first row."""
        ref = self.refs[f"{module}.weight"]
        return row_blocks(ref, self.dtype, self.device)


def row_blocks(
    ref: TensorInfo, dtype: str, device: str = "cpu", multiple: int = 1
) -> Iterator[tuple[int, torch.Tensor]]:
    """Reads a matrix block by block.

    Args:
        ref: A 2-D float tensor.
        dtype: Dtype to convert to, in safetensors' words.
        device: Where to put the blocks.
        multiple: Every block but the last has a multiple of this many rows.

    Yields:
        Number of the block's first row, and the block `[rows, columns]`.
    """
    import torch

    rows, columns = ref.shape
    stored, wanted = getattr(torch, _NAMES[ref.dtype]), getattr(torch, _NAMES[dtype])
    scale = 1 if device == "cpu" else _GPU_BLOCKS
    step = max(1, scale * _BLOCK_ELEMENTS // columns // multiple) * multiple
    width = ref.nbytes // rows
    for row, data in ref.pieces(step * width):
        block = torch.frombuffer(data, dtype=stored).view(-1, columns)
        yield row // width, block.to(device=device, dtype=wanted)


def _bytes(tensor: torch.Tensor) -> memoryview:
    import torch

    flat = tensor.contiguous().view(-1).view(torch.uint8).cpu()
    return memoryview(flat.numpy().data)


@contextmanager
def one_thread_per_worker() -> Iterator[None]:
    """The workers are the threads: torch's own would fight over the same cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def stream_workers(device: str) -> int:
    """Units in flight: one per core; few feed a GPU, and each takes of its memory."""
    return default_workers() if device == "cpu" else min(default_workers(), _GPU_WORKERS)


def default_device() -> str:
    """`cuda` where there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def chosen_device(name: str) -> str | None:
    """What a user's `--device` means; None for what `default_device` finds.

    Raises:
        InputError: No such device, or not here.
    """
    if name == "auto":
        return None
    if name not in ("cpu", "cuda"):
        raise InputError(f"unknown device {name!r}.", fix="use auto, cpu or cuda.")
    if name == "cuda" and default_device() != name:
        raise InputError("this machine has no GPU that torch can use.", fix="use --device cpu.")
    return name
