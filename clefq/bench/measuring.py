"""One checkpoint in one engine, measured in a process of its own.

`python -m clefq.bench.measuring` is that process: in the environment that has the engine, with
nothing in memory but it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clefq.bench.source import Loaded, RecordSource, opened
from clefq.bench.timing import Percentiles, Turns, one_by_one, peak_memory, summary, take_turns
from clefq.child import answer_parent
from clefq.clef.checkpoint import open_checkpoint, scheme_of
from clefq.console import Console
from clefq.engines.base import Engine, EngineInfo, EngineName, EngineSpec, RecordResult
from clefq.engines.select import open_engine
from clefq.errors import ClefqError

if TYPE_CHECKING:
    from clefq.clef.records import Record

_WARM = 8  # records of a group that run beforehand
STEADY = 0.1  # passes that differ by more are not of one machine in one state


@dataclass(frozen=True, slots=True)
class OneJob:
    """What to measure in this process.

    Attributes:
        name: Row name.
        folder: The checkpoint.
        engine: `transformers` or `vllm`.
        spec: How to run it.
        source: The records.
        runs: Passes over the records that are timed; the median counts.
        alone: Records that run one by one, for the latency.
        spawned: `time.time()` when the process was asked for.
    """

    name: str
    folder: Path
    engine: EngineName
    spec: EngineSpec
    source: RecordSource
    runs: int
    alone: int
    spawned: float

    def to_json(self) -> dict[str, Any]:
        """For the way to the other process."""
        value = asdict(self)
        value["folder"] = str(self.folder.absolute())
        source = value["source"]
        for key in ("set_path", "tokenizer"):
            source[key] = None if source[key] is None else str(Path(source[key]).absolute())
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> OneJob:
        """What `to_json` wrote."""
        source = value["source"]
        path = source["set_path"]
        return cls(
            **{
                **value,
                "folder": Path(value["folder"]),
                "spec": EngineSpec(**value["spec"]),
                "source": RecordSource(
                    None if path is None else Path(path),
                    tuple(source["kinds"]),
                    source["count"],
                    Path(source["tokenizer"]),
                ),
            }
        )


@dataclass(frozen=True, slots=True)
class Speed:
    """One group of records.

    Attributes:
        records: What they are.
        n_records: Answered records of a pass.
        failed: Records of a pass that the engine could not answer.
        tokens: Prompt tokens of the answered ones.
        seconds: Wall time of each pass: encoding, images, model and answers.
        cpu_seconds: CPU seconds of this process in each pass.
        latency: Seconds of records that ran one by one; None where none did.
    """

    records: str
    n_records: int
    failed: int
    tokens: int
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    latency: Percentiles | None

    @property
    def spread(self) -> float:
        """How much longer the slowest pass took than the fastest, as a fraction of it."""
        return max(self.seconds) / min(self.seconds) - 1


@dataclass(frozen=True, slots=True)
class Measured:
    """One checkpoint in one engine.

    Attributes:
        name: Row name.
        engine: `transformers` or `vllm`.
        engine_version: Version of its package.
        scheme: What the checkpoint is.
        kernels: `real` or `simulated`.
        arithmetic: As executed.
        device: `cpu` or the accelerator's name.
        start_seconds: From asking for the process until its first answer.
        disk_bytes: Weights on disk, head included.
        peak_bytes: Highest resident memory of the process.
        device_peak_bytes: Highest memory that torch held on the GPU, what vLLM reserves included;
            None on a CPU.
        weight_bytes: Weights in memory as the kernels read them; None where that is not known
            (simulations, vLLM on a CPU).
        speeds: One per group of records.
        warnings: Of the engine, and what else the reader must know.
    """

    name: str
    engine: str
    engine_version: str
    scheme: str
    kernels: str
    arithmetic: str
    device: str
    start_seconds: float
    disk_bytes: int
    peak_bytes: int
    device_peak_bytes: int | None
    weight_bytes: int | None
    speeds: tuple[Speed, ...]
    warnings: tuple[str, ...]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Measured:
        """What the other process sent."""
        speeds = []
        for speed in value["speeds"]:
            latency = speed["latency"]
            lists = {key: tuple(speed[key]) for key in ("seconds", "cpu_seconds")}
            took = None if latency is None else Percentiles(**latency)
            speeds.append(Speed(**{**speed, **lists, "latency": took}))
        return cls(**{**value, "speeds": tuple(speeds), "warnings": tuple(value["warnings"])})


def measure(job: OneJob, console: Console) -> Measured:
    """Loads the checkpoint and measures it.

    Raises:
        ClefqError: The engine cannot run it, or answers no record of a group.
    """
    checkpoint = open_checkpoint(job.folder)
    with opened(job.source) as loaded:
        groups = _groups(loaded)
        engine = open_engine(job.engine, job.folder, job.spec, console)
        try:
            _run(engine, loaded.records[:1], loaded.root)
            start = time.time() - job.spawned
            speeds = []
            for name, records in groups:
                with console.progress(f"{job.name}: {name}", None):
                    speeds.append(_speed(engine, name, records, (loaded.root, job)))
            info: EngineInfo = engine.info
            weights = _weight_bytes(engine)
            peak, device_peak = peak_memory(), _device_peak(info.device)
        finally:
            engine.close()
    return Measured(
        name=job.name,
        engine=info.engine,
        engine_version=info.engine_version,
        scheme=scheme_of(checkpoint),
        kernels=info.kernels,
        arithmetic=info.arithmetic,
        device=info.device,
        start_seconds=start,
        disk_bytes=checkpoint.nbytes,
        peak_bytes=peak,
        device_peak_bytes=device_peak,
        weight_bytes=weights,
        speeds=tuple(speeds),
        warnings=(*getattr(engine, "warnings", ()), *_unsteady(job.name, speeds)),
    )


def _groups(loaded: Loaded) -> list[tuple[str, list[Record]]]:
    """A set is one group; synthetic records are one group per kind."""
    if loaded.set_sha256 is not None:
        return [(loaded.name, list(loaded.records))]
    kinds: dict[str, list[Record]] = {}
    for record in loaded.records:
        kinds.setdefault(record.cohort, []).append(record)
    return list(kinds.items())


def _speed(
    engine: Engine, name: str, records: Sequence[Record], rest: tuple[Path, OneJob]
) -> Speed:
    root, job = rest
    _run(engine, records[:_WARM], root)
    turns: Turns = take_turns({"pass": lambda: _run(engine, records, root)}, job.runs)["pass"]
    results: list[RecordResult] = turns.result
    good = [result for result in results if not result.errors]
    if not good:
        error = next(iter(results[0].errors.values()))
        raise ClefqError(f"{job.name} answers no record of {name}: {error}.")
    answered = {result.record_id for result in good}
    few = [record for record in records if record.id in answered][: job.alone]
    alone = one_by_one(lambda record: _run(engine, [record], root), few) if few else []
    return Speed(
        records=name,
        n_records=len(good),
        failed=len(results) - len(good),
        tokens=sum(result.input_tokens for result in good),
        seconds=turns.seconds,
        cpu_seconds=turns.cpu,
        latency=summary(alone) if alone else None,
    )


def _run(engine: Engine, records: Sequence[Record], root: Path) -> list[RecordResult]:
    """All results; they are on the CPU, so that nothing is left to wait for."""
    return [result for part in engine.predict(records, root) for result in part]


def _unsteady(name: str, speeds: Sequence[Speed]) -> list[str]:
    found = []
    for speed in speeds:
        if speed.spread > STEADY:
            found.append(
                f"{name}, {speed.records}: passes differ by {speed.spread:.0%}: is something else "
                "running?"
            )
        if speed.failed:
            found.append(f"{name}, {speed.records}: {speed.failed:,} records have no answer")
    return found


def _device_peak(device: str) -> int | None:
    torch = sys.modules.get("torch")
    if device == "cpu" or torch is None or not torch.cuda.is_available():
        return None
    return int(torch.cuda.max_memory_reserved())


def _weight_bytes(engine: Any) -> int | None:
    if engine.info.kernels != "real":
        return None  # a simulation holds its weights in another form than kernels do
    if engine.info.engine == "vllm":
        if engine.clef.runtime.on_cpu:
            return None  # its CPU build keeps packed weights where no parameter shows them
        return int(sum(engine.clef.runtime.apply_model(module_bytes)))
    return module_bytes(engine.backbone.model) + module_bytes(engine.head)


def module_bytes(module: Any) -> int:
    """Bytes of a torch module's parameters and buffers (runs inside the engine)."""
    storages = {}
    for tensor in (*module.parameters(), *module.buffers()):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _work(value: dict[str, Any], console: Console) -> dict[str, Any]:
    return asdict(measure(OneJob.from_json(value), console))


if __name__ == "__main__":
    sys.exit(answer_parent(_work))
