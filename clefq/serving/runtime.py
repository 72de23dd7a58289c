"""One vLLM engine in this process: prompts in, flat logits out, and what arithmetic ran."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clefq.errors import CheckpointError, ClefqError, MissingDependencyError
from clefq.serving.layout import TASK, schema_layout
from clefq.serving.plugin import register, version_warning
from clefq.serving.settings import ServeSettings, engine_arguments, engine_environment

if TYPE_CHECKING:
    from PIL.Image import Image

    from clefq.clef.encoding import Encoded

INSTALL = "make setup-serve"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt for the engine.

    Attributes:
        encoded: The record, image placeholders expanded to their real size.
        images: Its images, in prompt order.
        engine_ids: The token ids for vLLM, one pad token per image; None without images.
    """

    encoded: Encoded
    images: tuple[Image, ...] = ()
    engine_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """What the engine returned for one prompt.

    Attributes:
        flat: Logits [options of the record], float32; empty where the layout was refused.
        input_tokens: Length of the prompt as run, placeholders expanded.
    """

    flat: NDArray[np.float32]
    input_tokens: int


class Runtime:
    """Loads a checkpoint into vLLM, inside this process.

    Args:
        folder: The checkpoint.
        settings: See `ServeSettings`.
        quiet: Keep vLLM's own log below warnings.

    Raises:
        MissingDependencyError: No vLLM in this environment.
        CheckpointError: Not a Clef checkpoint, or one for a newer runner.
    """

    def __init__(self, folder: Path, settings: ServeSettings, *, quiet: bool = True) -> None:
        _prepare_environment(settings, quiet)
        try:
            import vllm
            from vllm.platforms import current_platform
        except ImportError as error:
            raise MissingDependencyError("vLLM", INSTALL) from error
        # vLLM finds the plugin by itself where clefq is installed; from a bare checkout it cannot
        register()
        self.folder = folder
        self.settings = settings
        self.version = str(vllm.__version__)
        self.on_cpu = bool(current_platform.is_cpu())
        self.device = "cpu" if self.on_cpu else str(current_platform.get_device_name())
        self._params = vllm.PoolingParams
        arguments = engine_arguments(folder, settings, cpu=self.on_cpu)
        try:
            self._llm: Any = vllm.LLM(**arguments)
        except Exception as error:  # whatever vLLM raises, the user gets one line
            raise _load_error(folder, self.version, error) from error

    def score(self, prompts: Sequence[Prompt]) -> list[Scored]:
        """Runs prompts; the engine batches them as it sees fit. Results in the given order."""
        inputs = [_engine_input(prompt) for prompt in prompts]
        params = [
            self._params(use_activation=False, extra_kwargs=schema_layout(prompt.encoded))
            for prompt in prompts
        ]
        try:
            outputs = self._llm.encode(inputs, params, pooling_task=TASK, use_tqdm=False)
        except Exception as error:  # the engine is gone, whatever it raised
            raise ClefqError(
                f"vLLM {self.version} stopped: {_reason(error)}",
                fix="see its messages above; less memory: lower --batch-tokens or --max-length.",
            ) from error
        return [
            Scored(
                flat=output.outputs.data.float().cpu().numpy().reshape(-1),
                input_tokens=len(output.prompt_token_ids),
            )
            for output in outputs
        ]

    def apply_model(self, function: Callable[[Any], Any]) -> list[Any]:
        """Calls `function` with the loaded model, in every process that holds a part of it."""
        results: list[Any] = self._llm.apply_model(function)
        return results

    def close(self) -> None:
        """Frees the model; harmless when called twice."""
        llm, self._llm = self._llm, None
        if llm is None:
            return
        core = getattr(llm.llm_engine, "engine_core", None)
        if core is not None and hasattr(core, "shutdown"):
            core.shutdown()
        del llm
        import gc

        gc.collect()


def _load_error(folder: Path, version: str, error: Exception) -> ClefqError:
    return CheckpointError(
        f"vLLM {version} could not load {folder}: {_reason(error)}",
        fix=version_warning(version)
        or "see vLLM's messages above; `clefq doctor` shows what this machine can run.",
    )


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # pydantic heads its list of faults with a count; the fault itself says "Value error"
    faults = [line for line in lines if "error" in line.lower() and "validation error" not in line]
    return next(iter(faults or lines), repr(error))[:300]


def _engine_input(prompt: Prompt) -> dict[str, Any]:
    ids = prompt.encoded.token_ids if prompt.engine_ids is None else prompt.engine_ids
    value: dict[str, Any] = {"prompt_token_ids": list(ids)}
    if prompt.images:
        value["multi_modal_data"] = {"image": list(prompt.images)}
    return value


def _prepare_environment(settings: ServeSettings, quiet: bool) -> None:
    """Set before vLLM is imported; what the user has set stays."""
    defaults = {
        # in this process: an engine in a child would need a __main__ guard in users' scripts
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        # PyTorch's notes on memory binding
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **engine_environment(settings),
    }
    if quiet:
        defaults["VLLM_LOGGING_LEVEL"] = "ERROR"
        logging.getLogger("vllm").setLevel(logging.ERROR)
        # raised while vLLM is imported, about its own use of torch
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"vllm\.")
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
