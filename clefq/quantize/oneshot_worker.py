"""Runs llm-compressor's oneshot in a process of its own; started by `clefq.quantize.oneshot`.

A process of its own keeps llm-compressor's logs, its patches of the model class and its memory
out of the caller.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefq.child import answer_parent
from clefq.clef.family import FAMILY
from clefq.console import Console
from clefq.quantize.audit.measured import watching
from clefq.quantize.gptq import searched_gptq
from clefq.quantize.model_inputs import calibration_arguments
from clefq.quantize.shared_scales import shared_scale_tables

SHARD_SIZE = "5GB"


@dataclass(frozen=True, slots=True)
class OneshotJob:
    """What the process is asked to do.

    Attributes:
        source: BF16 checkpoint.
        recipe: Recipe file.
        saved: Folder to write llm-compressor's output to.
        prompts: JSON file, a list of `{"ids", "images"}`; None for data-free recipes.
        offload: Folder to keep weights in that do not fit into memory, or None.
        memory: With `offload`, bytes of weights that may stay in memory.
        maxima: With `prompts`: file for the largest inputs of the modules in `watched`, per prompt.
        watched: Modules whose inputs are calibrated.
        shared_scales: Share global scales as serving needs them. Off only to reproduce, in
            tests, what llm-compressor makes by itself.
    """

    source: str
    recipe: str
    saved: str
    prompts: str | None = None
    offload: str | None = None
    memory: int = 0
    maxima: str | None = None
    watched: tuple[str, ...] = ()
    shared_scales: bool = True


def run_job(job: OneshotJob) -> None:
    """Quantizes and saves, with llm-compressor alone; nothing is repaired here."""
    from llmcompressor.entrypoints.oneshot import oneshot

    from clefq.quantize import search_observer  # noqa: F401  (recipes may name it)

    model = _load(job)
    data: dict[str, Any] = {}
    if job.prompts is not None:
        prompts = json.loads(Path(job.prompts).read_text(encoding="utf-8"))
        data = calibration_arguments(prompts, job.source)
    if data.get("pipeline") == "basic" and job.offload is None:
        _onto_gpus(model)
    shared = shared_scale_tables() if job.shared_scales else nullcontext()
    ways = (shared, searched_gptq(), attention_as_at_inference())
    with ExitStack() as stack:
        for way in ways:
            stack.enter_context(way)
        maxima = stack.enter_context(watching(model, job.watched))
        oneshot(model=model, recipe=job.recipe, **data)
    if job.maxima is not None:
        Path(job.maxima).write_text(json.dumps(maxima), encoding="utf-8")
    with same_codes_everywhere():
        model.save_pretrained(job.saved, save_compressed=True, max_shard_size=SHARD_SIZE)


def _onto_gpus(model: Any) -> None:
    """The basic pipeline runs a model where it lies; the sequential one moves layers itself."""
    import torch

    if torch.cuda.is_available():
        from compressed_tensors.offload import dispatch_model

        dispatch_model(model)


@contextmanager
def attention_as_at_inference() -> Iterator[None]:
    """Keeps llm-compressor from forcing eager attention while it calibrates.

    Its calibration context sets `eager`, for models whose mask stands in the traced graph: the
    scores of every pair of tokens and a mask of the same size are then in memory, about 11 bytes
    per head and pair, and the mask once more for every record that waits for the next layer. Here
    the layers are not traced into, and prompts have no padding, so that SDPA needs no mask at all
    and memory grows with the length.
    """
    from llmcompressor.utils import helpers

    eager = helpers.use_eager_attention
    helpers.use_eager_attention = _as_it_is
    try:
        yield
    finally:
        helpers.use_eager_attention = eager


@contextmanager
def _as_it_is(model: Any) -> Iterator[None]:
    yield


@contextmanager
def same_codes_everywhere() -> Iterator[None]:
    """Makes compressed-tensors round by its torch code inside the block, on a GPU too.

    Its Triton kernels divide in F32 where its torch code divides in the model's dtype. Both are
    round-to-nearest, but in BF16 about 3% of the FP8 codes differ, and a checkpoint's bits would
    depend on the machine.
    """
    from compressed_tensors.utils import impl_backend

    before = impl_backend.ENFORCE_EAGER
    impl_backend.ENFORCE_EAGER = True
    try:
        yield
    finally:
        impl_backend.ENFORCE_EAGER = before


def _load(job: OneshotJob) -> Any:
    import transformers

    model_class = getattr(transformers, FAMILY.model_class)
    if job.offload is None:
        return model_class.from_pretrained(job.source, dtype="auto")
    from compressed_tensors.offload import load_offloaded_model

    with load_offloaded_model(model_class):
        return model_class.from_pretrained(
            job.source,
            dtype="auto",
            device_map="auto_offload",
            max_memory={"cpu": max(0, job.memory)},
            offload_folder=job.offload,
        )


def _work(job: dict[str, Any], _: Console) -> None:
    run_job(OneshotJob(**job))


if __name__ == "__main__":
    answer_parent(_work)
    os._exit(0)  # the libraries' own ends take long, and have nothing left to do
