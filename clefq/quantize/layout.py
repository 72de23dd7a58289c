"""The output's shards, planned before anything is written.

The plan depends on the source, the recipe and the shard size alone, so a run that was killed
finds the shards it has finished under their final names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from clefq.clef.family import group_key
from clefq.clef.tensor_files import COPY_BLOCK, TensorInfo, read_header
from clefq.errors import CheckpointError
from clefq.quantize.tensors import OutTensor, ShardFile

MAX_SHARD_BYTES = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Unit:
    """What is read, computed and written together.

    Attributes:
        name: Name of the fused group, module or tensor.
        modules: Modules to quantize, in stacking order; empty for a tensor that is copied.
        tensors: What is written, in order.
    """

    name: str
    modules: tuple[str, ...]
    tensors: tuple[OutTensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes written."""
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One output file and what it holds."""

    name: str
    units: tuple[Unit, ...]

    @property
    def tensors(self) -> tuple[OutTensor, ...]:
        """Every tensor of the file, in order."""
        return tuple(tensor for unit in self.units for tensor in unit.tensors)


def plan_units(
    refs: Mapping[str, TensorInfo], outputs: Mapping[str, Sequence[OutTensor]]
) -> list[Unit]:
    """Cuts a checkpoint into units, in source order.

    Args:
        refs: The source's tensors.
        outputs: Module to quantize to the tensors that replace its weight.

    Raises:
        CheckpointError: The source lacks the weight of a module that is to be quantized.
    """
    missing = [f"{module}.weight" for module in outputs if f"{module}.weight" not in refs]
    if missing:
        raise CheckpointError(
            f"the source has no {missing[0]}.",
            fix="download the model again.",
            faults=[f"no {name}" for name in missing[1:]],
        )
    groups: dict[str, list[str]] = {}
    for module in outputs:
        groups.setdefault(group_key(module) or module, []).append(module)
    units, done = [], set()
    for name, ref in refs.items():
        module = name.removesuffix(".weight")
        if module not in outputs or module == name:
            copied = OutTensor(name, ref.dtype, ref.shape)
            units.append(Unit(name, (), (copied,)))
            continue
        key = group_key(module) or module
        if key not in done:
            done.add(key)
            tensors = tuple(tensor for member in groups[key] for tensor in outputs[member])
            units.append(Unit(key, tuple(groups[key]), tensors))
    return units


def plan_shards(units: Iterable[Unit], max_bytes: int = MAX_SHARD_BYTES) -> list[OutputFile]:
    """Packs units into shards of at most `max_bytes` (a larger unit has a shard of its own)."""
    packs: list[list[Unit]] = [[]]
    size = 0
    for unit in units:
        if packs[-1] and size + unit.nbytes > max_bytes:
            packs.append([])
            size = 0
        packs[-1].append(unit)
        size += unit.nbytes
    if len(packs) == 1:
        return [OutputFile("model.safetensors", tuple(packs[0]))]
    return [
        OutputFile(f"model-{number:05d}-of-{len(packs):05d}.safetensors", tuple(pack))
        for number, pack in enumerate(packs, start=1)
    ]


def finished(path: Path, shard: OutputFile) -> bool:
    """Whether a shard is there already, whole, as planned."""
    if not path.is_file():
        return False
    try:
        refs = read_header(path)
    except CheckpointError:
        return False
    there = [OutTensor(ref.name, ref.dtype, ref.shape) for ref in refs.values()]
    return there == list(shard.tensors)


WriteUnit = Callable[[ShardFile, Unit], None]


def write_shards(
    folder: Path,
    shards: Iterable[OutputFile],
    write_unit: WriteUnit,
    workers: int,
    advance: Callable[[int], None],
) -> int:
    """Writes every shard that is not there yet; a finished one survives a kill.

    Args:
        folder: Where to write.
        shards: The plan.
        write_unit: Puts the bytes of all tensors of a unit into the file; runs in any thread.
        workers: Units in flight.
        advance: Called with the number of finished tensors.

    Returns:
        How many shards were there already.
    """
    kept = 0
    with ThreadPoolExecutor(workers) as pool:
        for shard in shards:
            path = folder / shard.name
            if finished(path, shard):
                kept += 1
                advance(len(shard.tensors))
                continue
            with ShardFile(path, shard.tensors) as file:
                jobs = [pool.submit(write_unit, file, unit) for unit in shard.units]
                try:
                    for job, unit in zip(jobs, shard.units, strict=True):
                        job.result()
                        advance(len(unit.tensors))
                except BaseException:
                    for job in jobs:
                        job.cancel()
                    wait(jobs)  # nobody may write once the file is closed
                    raise
    return kept


def copy_tensor(file: ShardFile, ref: TensorInfo) -> None:
    """Copies a tensor's bytes into the file under the same name."""
    for at, piece in ref.pieces(COPY_BLOCK):
        file.put(ref.name, at, piece)
