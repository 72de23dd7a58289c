"""The serving engine: vLLM with the bundled plugin, in this process.

Records go in by windows, longest first. Inside a window vLLM forms its own batches, as it does
when it serves; a window is what is journalled as one group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clefq.clef.encoding import EncodeSpec
from clefq.engines.base import Engine, EngineInfo, EngineSpec, RecordResult, result_from_logits
from clefq.errors import InputError
from clefq.serving.arithmetic import executed
from clefq.serving.media import load_image
from clefq.serving.offline import Clef
from clefq.serving.runtime import Prompt
from clefq.serving.settings import ServeSettings

if TYPE_CHECKING:
    from clefq.clef.records import Record

# Most images of a record, as the hosted API has it.
MAX_IMAGES = 4
# Records handed to vLLM at a time: enough to keep its steps full, few enough to journal often.
WINDOW = 256
_DTYPES = ("auto", "bfloat16")
_CPU_WINDOW = 32


@dataclass(frozen=True, slots=True)
class Job:
    """A record and its prompt, without pixels."""

    record: Record
    prompt: Prompt


class VllmEngine:
    """One checkpoint under vLLM.

    Args:
        folder: A checkpoint folder.
        spec: How to run it; `batch_tokens` is the size of an engine step.

    Attributes:
        info: What runs.
        window: Records that are run together.

    Raises:
        CheckpointError: Not a whole Clef checkpoint, or one that this vLLM cannot run.
        InputError: A dtype or device that vLLM does not run here.
    """

    def __init__(self, folder: Path, spec: EngineSpec) -> None:
        if spec.dtype not in _DTYPES:
            raise InputError(
                f"the vllm engine runs in bfloat16, not {spec.dtype}.",
                fix="leave --dtype out, or use --engine transformers.",
            )
        self._spec = spec
        self._clef = Clef(folder, serve_settings(spec))
        runtime = self._clef.runtime
        _check_device(spec.device, runtime.on_cpu)
        ran = executed(runtime)
        if ran.arithmetic == "w8a16":
            raise InputError(
                f"{runtime.device} has no FP8 kernels: vLLM runs these weights with BF16 "
                "activations, which is not the scheme that would be judged.",
                fix="use a GPU of the Ada, Hopper or Blackwell generation, or transformers.",
            )
        self.window = _CPU_WINDOW if runtime.on_cpu else WINDOW
        self.info = EngineInfo(
            engine="vllm",
            engine_version=runtime.version,
            kernels=ran.kernels,
            arithmetic=ran.arithmetic,
            dtype="bfloat16",
            device=runtime.device,
        )

    def predict(
        self, records: Sequence[Record], media_root: Path | None = None
    ) -> Iterator[Sequence[RecordResult]]:
        """See `Engine.predict`: first the records that cannot be run, then window by window."""
        jobs, failed = encode_jobs(self._clef.prompt, records, media_root, self._spec)
        if failed:
            yield failed
        for start in range(0, len(jobs), self.window):
            yield self._run(jobs[start : start + self.window], media_root)

    def windows(
        self, records: Sequence[Record], media_root: Path | None = None
    ) -> list[list[Record]]:
        """The records as `predict` would group them, which a shard takes whole groups of."""
        return windows_of(self._clef.prompt, records, media_root, self._spec, self.window)

    @property
    def clef(self) -> Clef:
        """The running model."""
        return self._clef

    def close(self) -> None:
        """Frees the model and its processes."""
        self._clef.close()

    def _run(self, jobs: Sequence[Job], media_root: Path | None) -> list[RecordResult]:
        prompts = [
            replace(job.prompt, images=self._clef.load_images(job.record, media_root))
            for job in jobs
        ]
        results = []
        for job, answered in zip(jobs, self._clef.answered(prompts), strict=True):
            tokens = len(job.prompt.encoded.token_ids)
            if isinstance(answered, str):
                results.append(RecordResult.failed(job.record, answered, tokens))
                continue
            results.append(
                result_from_logits(
                    job.record, answered.logits, answered.input_tokens, answered.truncated_tokens
                )
            )
        return results


def open_engine(folder: Path, spec: EngineSpec) -> Engine:
    """Loads a checkpoint (the entry point that `clefq.engines.select` calls)."""
    if spec.ray is not None:
        from clefq.engines.ray_copies import RayCopies

        return RayCopies(folder, spec)
    if spec.copies > 1:
        from clefq.engines.vllm_copies import VllmCopies

        return VllmCopies(folder, spec)
    return VllmEngine(folder, spec)


def serve_settings(spec: EngineSpec) -> ServeSettings:
    """The settings of an engine that predicts."""
    settings = ServeSettings(
        max_length=spec.max_length,
        max_images=MAX_IMAGES,
        cpu_threads=spec.threads,
        tensor_parallel=spec.tensor_parallel,
        four_bit=spec.four_bit,  # type: ignore[arg-type]  # checked there
    )
    if spec.batch_tokens is not None:
        settings = replace(settings, step_tokens=spec.batch_tokens)
    return settings


def encode_jobs(
    prompt: Callable[[Record, Sequence[Any], EncodeSpec], Prompt],
    records: Sequence[Record],
    media_root: Path | None,
    spec: EngineSpec,
) -> tuple[list[Job], list[RecordResult]]:
    """Encodes records and puts them in order.

    Args:
        prompt: Makes a prompt of a record and its images.
        records: To run.
        media_root: Folder that image paths are relative to.
        spec: Token limit, and what to do beyond it.

    Returns:
        What can be run, longest first: what does not fit shows at once, and a resumed run has the
        same windows. And the results of the records that cannot be run.
    """
    limits = EncodeSpec(spec.max_length, spec.truncate_state)
    jobs: list[Job] = []
    failed: list[RecordResult] = []
    for record in records:
        try:
            made = prompt(record, [load_image(path, media_root) for path in record.images], limits)
        except InputError as error:
            failed.append(RecordResult.failed(record, error.message))
            continue
        # the pixels are read again when their window runs
        jobs.append(Job(record, replace(made, images=())))
    jobs.sort(key=lambda job: -len(job.prompt.encoded.token_ids))
    return jobs, failed


def windows_of(
    prompt: Callable[[Record, Sequence[Any], EncodeSpec], Prompt],
    records: Sequence[Record],
    media_root: Path | None,
    spec: EngineSpec,
    size: int,
) -> list[list[Record]]:
    """Records in windows of a size; those that cannot be run make windows of their own."""
    jobs, failed = encode_jobs(prompt, records, media_root, spec)
    found = [job.record for job in jobs]
    lost = {result.record_id for result in failed}
    apart = [record for record in records if record.id in lost]
    return [
        group[start : start + size]
        for group in (found, apart)
        for start in range(0, len(group), size)
    ]


def _check_device(name: str, on_cpu: bool) -> None:
    """Refuses a device that this vLLM build does not run on."""
    wanted = name.partition(":")[0]
    here = "cpu" if on_cpu else "cuda"
    if wanted not in ("auto", here):
        raise InputError(
            f"this vLLM runs on {here}, not on {name}.",
            fix="leave --device out, or choose a GPU with CUDA_VISIBLE_DEVICES.",
        )
