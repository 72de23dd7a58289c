"""Clef in a few lines: load a checkpoint under vLLM, ask it, read probabilities.

from clefq.serving import Clef

with Clef("models/clef-flash-nvfp4") as clef:
clef.systemone({"model": "clef", "state": "…", "questions": {…}})
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clefq.clef.answers import answer
from clefq.clef.checkpoint import open_checkpoint
from clefq.clef.encoding import EncodeSpec
from clefq.clef.records import Record, parse_record
from clefq.errors import InputError, RecordError
from clefq.names.hub import resolve_model
from clefq.serving.layout import LayoutError, split_flat
from clefq.serving.media import load_image
from clefq.serving.probabilities import as_released, exact
from clefq.serving.prompts import PromptMaker
from clefq.serving.runtime import Prompt, Runtime
from clefq.serving.settings import ServeSettings


@dataclass(frozen=True, slots=True)
class Answered:
    """One record as the engine answered it.

    Attributes:
        logits: Question id to float64 logits, options in prompt order.
        input_tokens: Length of the prompt as run.
        truncated_tokens: Tokens cut from the end of the state.
    """

    logits: dict[str, NDArray[np.float64]]
    input_tokens: int
    truncated_tokens: int


class Clef:
    """A Clef checkpoint under vLLM, in this process.

    Args:
        model: Checkpoint folder, or a hub id with optional `@revision`.
        settings: See `ServeSettings`; its defaults when None.
        quiet: Keep vLLM's own log below errors.

    Raises:
        CheckpointError: Not a whole Clef checkpoint, or one for a newer runner.
        MissingDependencyError: No vLLM in this environment.
    """

    def __init__(
        self,
        model: str | Path,
        settings: ServeSettings | None = None,
        *,
        quiet: bool = True,
    ) -> None:
        folder = resolve_model(str(model))
        self.checkpoint = open_checkpoint(folder)
        self.settings = settings or ServeSettings()
        self._prompts = PromptMaker(folder, self.settings.max_images)
        self.tokenizer = self._prompts.tokenizer
        self.runtime = Runtime(folder, self.settings, quiet=quiet)

    def __enter__(self) -> Clef:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the model; harmless when called twice."""
        self.runtime.close()

    def systemone(self, request: Mapping[str, Any], *, digits: int | None = 4) -> dict[str, Any]:
        """Answers a SystemOne request.

        Args:
            request: `model`, `state`, `questions`, optionally `images`: PIL images, paths,
                base64 text or data URLs.
            digits: Decimals of the answers' numbers; None keeps full precision.

        Raises:
            RecordError: The request is malformed or too long.
            InputError: An image cannot be read, or there are too many.
        """
        record, images = _record_of(request)
        result = self._answer_all([(record, images)], EncodeSpec(self.settings.max_length))[0]
        probabilities = exact if digits is None else as_released
        answers = {
            question.id: answer(
                question, probabilities(question, result.logits[question.id]), digits
            )
            for question in record.questions
        }
        return {
            "model": request["model"],
            "answers": answers,
            "usage": {"input_tokens": result.input_tokens, "output_tokens": 0},
        }

    def probabilities(
        self, records: Sequence[Record | Mapping[str, Any]], media_root: Path | None = None
    ) -> list[dict[str, dict[str, float]]]:
        """Probabilities of many records, batched by the engine.

        Args:
            records: Records, or their JSON form (`id`, `cohort`, `state`, `questions`, …).
            media_root: Folder that image paths are relative to.

        Returns:
            Per record, question id to option id to probability, options in prompt order.

        Raises:
            RecordError: A record is malformed or too long.
        """
        parsed = [
            record if isinstance(record, Record) else parse_record(record, f"record {number}")
            for number, record in enumerate(records, start=1)
        ]
        items = [(record, self.load_images(record, media_root)) for record in parsed]
        results = self._answer_all(items, EncodeSpec(self.settings.max_length))
        return [self._named(record, result) for record, result in zip(parsed, results, strict=True)]

    def load_images(self, record: Record, media_root: Path | None) -> tuple[Any, ...]:
        """The images of a record, in prompt order."""
        return tuple(load_image(path, media_root) for path in record.images)

    def prompt(self, record: Record, images: Sequence[Any], spec: EncodeSpec) -> Prompt:
        """Encodes a record for the engine.

        Raises:
            RecordTooLongError: It does not fit and `spec.truncate_state` is off.
            InputError: More images than the engine was started for, or videos.
        """
        return self._prompts.prompt(record, images, spec)

    def answered(self, prompts: Sequence[Prompt]) -> Iterator[Answered | str]:
        """Runs prompts; yields per prompt its logits, or one line that says why there are none."""
        for prompt, scored in zip(prompts, self.runtime.score(prompts), strict=True):
            try:
                slices = split_flat(scored.flat, prompt.encoded)
            except LayoutError as error:
                yield str(error)
                continue
            logits = {name: np.asarray(part, dtype=np.float64) for name, part in slices.items()}
            yield Answered(logits, scored.input_tokens, prompt.encoded.truncated_tokens)

    def _answer_all(
        self, items: Sequence[tuple[Record, tuple[Any, ...]]], spec: EncodeSpec
    ) -> list[Answered]:
        prompts = [self.prompt(record, images, spec) for record, images in items]
        results = []
        for (record, _), result in zip(items, self.answered(prompts), strict=True):
            if isinstance(result, str):
                raise RecordError(f"record {record.id!r}: {result}.")
            results.append(result)
        return results

    def _named(self, record: Record, result: Answered) -> dict[str, dict[str, float]]:
        return {q.id: exact(q, result.logits[q.id]) for q in record.questions}


def _record_of(request: Mapping[str, Any]) -> tuple[Record, tuple[Any, ...]]:
    if not isinstance(request.get("model"), str) or "state" not in request:
        raise RecordError("a request needs model (text), state and questions.")
    body = {
        "id": "request",
        "cohort": "request",
        "state": request["state"],
        "questions": request.get("questions"),
    }
    record = parse_record(body, "request")
    sources = list(request.get("images") or ())
    if request.get("videos"):
        raise InputError("the request has videos.", fix="send images.")
    images = tuple(load_image(source) for source in sources)
    names = tuple(f"image-{number}" for number in range(len(images)))
    return Record(record.id, record.cohort, record.state, record.questions, names), images
