"""What every engine is: records in, natural-log option probabilities out, with provenance.

An engine yields groups of `RecordResult`, one result per record, in an order of its own (usually
by length). A group holds what was computed together: the caller journals it whole or not at all,
so that a resumed run forms the same batches and gets the same bits. A fault of one record is a
result with errors, never an exception: the coverage gate judges it. An exception means that the
engine itself cannot go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from clefq.clef.answers import log_softmax
from clefq.clef.encoding import DEFAULT_MAX_LENGTH
from clefq.clef.formats import Arithmetic
from clefq.errors import InputError

if TYPE_CHECKING:
    from clefq.clef.records import Record

Kernels = Literal["real", "simulated"]
EngineName = Literal["transformers", "vllm", "http"]
DTYPES = ("auto", "bfloat16", "float32", "float64")
NON_FINITE = "non-finite logits"


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What ran, as executed and not as intended: goes into the predictions file.

    Attributes:
        engine: `transformers`, `vllm` or `http`.
        engine_version: Version of that package (or of the server, for http).
        kernels: `real`, or `simulated` where an emulation stands in for the real kernels.
        arithmetic: Matrix arithmetic as executed (NVFP4 on Hopper is `w4a16`).
        dtype: Type of the activations between the matrix products, for example `bfloat16`.
        device: `cpu` or the accelerator's name.
        probability_quantum: Rounding step of the probabilities, or None for exact ones.
        model_sha256: Of the checkpoint, where its files are a server's and it says so.
        scheme: Of the checkpoint, likewise.
        api: In whose words a server was asked, a key of `clefq.engines.http_apis.APIS`.
    """

    engine: EngineName
    engine_version: str
    kernels: Kernels
    arithmetic: Arithmetic
    dtype: str
    device: str
    probability_quantum: float | None = None
    model_sha256: str | None = None
    scheme: str | None = None
    api: str | None = None


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How to run an engine. What an engine does not know it refuses, it never ignores it.

    Attributes:
        max_length: Token limit of a prompt, media tokens included.
        truncate_state: Cut an over-long state as the reference does (recorded per row); without
            it an over-long record is an error of that record.
        batch_tokens: Most tokens of one batch, padding included (a longer record runs alone), or
            None for the engine's own choice.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        dtype: `auto` (as the checkpoint says, bfloat16), or `float32`, `float64` for references.
        threads: CPU threads, or None for the library's own choice.
        concurrency: Requests in flight (http only), or None for the engine's own choice.
        copies: Engines side by side, each with GPUs or cores of its own (vllm only).
        tensor_parallel: GPUs that share one copy (vllm only).
        four_bit: How NVFP4 layers run on a GPU (vllm only): see `ServeSettings`.
        ray: Address of a Ray cluster whose nodes run the copies (vllm only), or None.
    """

    max_length: int = DEFAULT_MAX_LENGTH
    truncate_state: bool = False
    batch_tokens: int | None = None
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    concurrency: int | None = None
    copies: int = 1
    tensor_parallel: int = 1
    four_bit: str = "auto"
    ray: str | None = None

    def __post_init__(self) -> None:
        faults = [
            f"{name} is {value}, expected a positive number"
            for name, value in (
                ("max_length", self.max_length),
                ("batch_tokens", self.batch_tokens),
                ("threads", self.threads),
                ("concurrency", self.concurrency),
                ("copies", self.copies),
                ("tensor_parallel", self.tensor_parallel),
            )
            if value is not None and value < 1
        ]
        if self.dtype not in DTYPES:
            faults.append(f"dtype is {self.dtype!r}, expected one of {', '.join(DTYPES)}")
        if faults:
            raise InputError(f"engine options: {faults[0]}.", faults=faults[1:])


@dataclass(frozen=True, slots=True)
class RecordResult:
    """What an engine has to say about one record.

    Every question of the record stands in exactly one of `logprobs` and `errors`.

    Attributes:
        record_id: The record's id.
        option_ids: Per question that could be encoded, its option ids in prompt order.
        logprobs: Per answered question, natural-log probabilities, float64, in that order;
            sums to one within 1e-12.
        errors: Per failed question, one line that says why.
        input_tokens: Length of the prompt as run (0 where the record was not run).
        truncated_tokens: State tokens that were cut (0 unless `truncate_state`).
    """

    record_id: str
    option_ids: Mapping[str, tuple[str, ...]]
    logprobs: Mapping[str, NDArray[np.float64]]
    errors: Mapping[str, str] = field(default_factory=dict)
    input_tokens: int = 0
    truncated_tokens: int = 0

    @classmethod
    def failed(cls, record: Record, error: str, input_tokens: int = 0) -> RecordResult:
        """A result in which every question of the record carries the same error."""
        return cls(
            record_id=record.id,
            option_ids={q.id: q.option_ids for q in record.questions},
            logprobs={},
            errors={q.id: error for q in record.questions},
            input_tokens=input_tokens,
        )


class Engine(Protocol):
    """One loaded model. Use it as a context manager, or call `close` when done."""

    @property
    def info(self) -> EngineInfo:
        """What runs; known once the model is loaded."""
        ...

    def predict(
        self, records: Sequence[Record], media_root: Path | None = None
    ) -> Iterator[Sequence[RecordResult]]:
        """One result per record, in groups, each group as soon as it is known, in any order.

        Resuming calls this again with the records that no group has delivered yet. Where an
        engine forms batches of its own, leaving out a prefix of its groups must not change the
        groups that follow.

        Args:
            records: The records; ids are unique.
            media_root: Folder that the records' image paths are relative to.
        """
        ...

    def close(self) -> None:
        """Frees memory, processes and devices; harmless when called twice."""
        ...


@runtime_checkable
class Simulating(Protocol):
    """An engine that quantizes inputs itself, and sees what is clipped."""

    def clipped(self) -> dict[str, tuple[int, int]]:
        """How many blocks of 16 inputs exceed what a calibrated scale covers, and of how many.

        Counted since loading; by module, of those that read the same inputs the first.
        """
        ...


def result_from_logits(
    record: Record,
    logits: Mapping[str, NDArray[np.floating]],
    input_tokens: int,
    truncated_tokens: int = 0,
) -> RecordResult:
    """Turns one record's option logits into a result; non-finite questions become errors.

    Args:
        record: The record that was run.
        logits: Question id to logits, shape [options of the question], in prompt order.
        input_tokens: Length of the prompt as run.
        truncated_tokens: State tokens that were cut.
    """
    logprobs: dict[str, NDArray[np.float64]] = {}
    errors: dict[str, str] = {}
    for question in record.questions:
        values = logits.get(question.id)
        if values is None or len(values) != len(question.option_ids):
            errors[question.id] = "the engine returned no logit for some option"
            continue
        if not bool(np.isfinite(values).all()):
            errors[question.id] = NON_FINITE
            continue
        logprobs[question.id] = log_softmax(values)
    return RecordResult(
        record_id=record.id,
        option_ids={q.id: q.option_ids for q in record.questions},
        logprobs=logprobs,
        errors=errors,
        input_tokens=input_tokens,
        truncated_tokens=truncated_tokens,
    )
