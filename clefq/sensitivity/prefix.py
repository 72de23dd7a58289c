"""Runs a set from any layer on: what comes before a changed block is computed once.

The hidden states at the input of one layer are kept for the whole set, in memory up to a limit
and beyond it on disk. Variants of that layer's blocks run from there to the end; then the states
move on by one BF16 layer. A sweep over L layers costs (L + 1)/2L of as many full runs.

What a layer is called with (rotary tables, masks) is recorded from the model's own forward pass,
so that no part of it is written a second time here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from clefq.console import Advance
    from clefq.engines.base import RecordResult
    from clefq.engines.transformers_engine import BatchPrompt, TransformersEngine


class Shelf:
    """Tensors by number: in memory up to a limit, the others in files of a temporary folder.

    Args:
        limit: Most bytes in memory.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._memory: dict[int, Tensor] = {}
        self._shapes: dict[int, tuple[torch.dtype, torch.Size]] = {}

    def put(self, number: int, tensor: Tensor) -> None:
        """Keeps a tensor in place of the one that had this number."""
        before = self._memory.pop(number, None)
        self._held -= 0 if before is None else before.nbytes
        if self._held + tensor.nbytes <= self._limit:
            self._shapes.pop(number, None)
            self._memory[number] = tensor.cpu()
            self._held += tensor.nbytes
            return
        self._shapes[number] = tensor.dtype, tensor.shape
        raw = tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy()
        raw.tofile(self._file(number))

    def get(self, number: int) -> Tensor:
        """The tensor of this number, on the CPU."""
        if number in self._memory:
            return self._memory[number]
        dtype, shape = self._shapes[number]
        raw = torch.from_numpy(np.fromfile(self._file(number), dtype=np.uint8))
        return raw.view(dtype).view(shape)

    @property
    def on_disk(self) -> int:
        """How many tensors are in files."""
        return len(self._shapes)

    def close(self) -> None:
        """Frees memory and disk."""
        self._memory.clear()
        self._shapes.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def _file(self, number: int) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="clefq-sensitivity-")
        return Path(self._folder.name) / f"{number}.bin"


class Prefix:
    """A set's hidden states at the input of one layer; a context manager.

    Args:
        engine: The loaded BF16 model.
        prompts: The set.
        memory: Most bytes of hidden states in memory; the others go to disk.

    Attributes:
        layer: The layer whose input is kept.
        passes: Layers run so far, times batches, divided by batches: one full run is L.
        batches: What runs together.
    """

    def __init__(
        self, engine: TransformersEngine, prompts: Sequence[BatchPrompt], memory: int
    ) -> None:
        self.layer = 0
        self.passes = 0
        self.batches = engine.batches(prompts)
        self._engine = engine
        self._text = engine.backbone.model.model.language_model
        self._shelf = Shelf(memory)
        self._arguments: list[list[dict[str, Any]]] = []

    @property
    def layers(self) -> int:
        """Number of layers L."""
        return len(self._text.layers)

    def __enter__(self) -> Prefix:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shelf.close()

    def baseline(self, advance: Advance) -> list[RecordResult]:
        """Runs the whole BF16 model once; the prefix is then at layer 0."""
        results: list[RecordResult] = []
        for number, batch in enumerate(self.batches):
            with _Recorder(self._text.layers) as recorder:
                results += self._engine.answer(batch, self._engine.hidden_states)
            assert recorder.first is not None
            self._shelf.put(number, recorder.first)
            self._arguments.append(recorder.arguments)
            advance(len(batch))
        self.passes += self.layers
        return results

    def run(self) -> list[RecordResult]:
        """Runs the model as it now is, from the kept layer to the end."""
        results: list[RecordResult] = []
        for number, batch in enumerate(self.batches):

            def states(prompts: Sequence[BatchPrompt], number: int = number) -> list[Tensor]:
                hidden = self._through(number, range(self.layer, self.layers))
                hidden = self._text.norm(hidden)
                return [
                    hidden[index, : len(prompt.encoded.token_ids)]
                    for index, prompt in enumerate(prompts)
                ]

            results += self._engine.answer(batch, states)
        self.passes += self.layers - self.layer
        return results

    @torch.inference_mode()
    def advance(self) -> None:
        """Moves the kept states on by one layer of the model as it now is."""
        for number in range(len(self.batches)):
            self._shelf.put(number, self._through(number, range(self.layer, self.layer + 1)))
        self.passes += 1
        self.layer += 1

    @torch.inference_mode()
    def outputs(self, path: str, tokens: int) -> Iterator[Tensor]:
        """What a module of the kept layer gives, for an even choice of batches.

        Args:
            path: Full name of the module.
            tokens: About how many tokens in all.

        Yields:
            Outputs without padding, [tokens of a prompt, hidden].
        """
        module = self._engine.backbone.model.get_submodule(path)
        seen: list[Tensor] = []

        def keep(_: object, __: object, output: Any) -> None:
            seen.append(output[0] if isinstance(output, tuple) else output)

        for number in self._sample(tokens):
            hook = module.register_forward_hook(keep)
            try:
                self._through(number, range(self.layer, self.layer + 1))
            finally:
                hook.remove()
            output = seen.pop()
            for index, prompt in enumerate(self.batches[number]):
                yield output[index, : len(prompt.encoded.token_ids)]

    def _sample(self, tokens: int) -> list[int]:
        sizes = [sum(len(p.encoded.token_ids) for p in batch) for batch in self.batches]
        wanted = max(1, min(len(sizes), round(tokens * len(sizes) / max(1, sum(sizes)))))
        return sorted({int(at) for at in np.linspace(0, len(sizes) - 1, wanted).round()})

    def _through(self, number: int, layers: range) -> Tensor:
        device = self._engine.backbone.lexical_table.device
        hidden = self._shelf.get(number).to(device)
        for layer in layers:
            hidden = self._text.layers[layer](hidden, **self._arguments[number][layer])
        self._engine.backbone.memo.clear()
        return hidden


class _Recorder:
    """Records what the layers of one forward pass are called with."""

    def __init__(self, layers: Sequence[torch.nn.Module]) -> None:
        self._layers = layers
        self._hooks: list[Any] = []
        self.first: Tensor | None = None
        self.arguments: list[dict[str, Any]] = []

    def __enter__(self) -> _Recorder:
        for layer in self._layers:
            self._hooks.append(layer.register_forward_pre_hook(self._keep, with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _keep(self, _: object, inputs: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        if self.first is None:
            self.first = inputs[0]
        self.arguments.append(named)
