"""What travels with a prompt into the engine: where its questions and options stand.

The layout goes through `PoolingParams.extra_kwargs`. Spans count from the **end** of the prompt
(both ends zero or negative), because image placeholders, which stand before the schema, grow
inside the engine. Reading is strict: spans must be in order, non-empty and disjoint, so that no
layout, however malformed, can ask the engine for more work than its prompt is long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clefq.clef.encoding import Encoded

ARCHITECTURE = "ClefqForJointSchema"
TASK = "token_classify"
LAYOUT_KEY = "clefq_layout"
LAYOUT_VERSION = 1
TYPE_COUNT = 3

_KEYS = frozenset({"version", "types", "question_spans", "option_counts", "option_spans"})

Span = tuple[int, int]


class LayoutError(ValueError):
    """A layout that does not describe its prompt; answered, never raised out of the engine."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The questions of one prompt, as absolute token positions.

    Attributes:
        types: Question type ids (0 noul, 1 choice, 2 score), one per question.
        question_spans: Half-open token ranges of the instructions, one per question.
        option_spans: Half-open token ranges of the options, per question in prompt order.
    """

    types: tuple[int, ...]
    question_spans: tuple[Span, ...]
    option_spans: tuple[tuple[Span, ...], ...]

    @property
    def option_counts(self) -> tuple[int, ...]:
        """Number of options per question."""
        return tuple(len(spans) for spans in self.option_spans)


def schema_layout(encoded: Encoded) -> dict[str, Any]:
    """The `PoolingParams.extra_kwargs` of an encoded record.

    Args:
        encoded: A record as `clefq.clef.encoding.encode_record` gives it, with or without its
            image placeholders expanded.
    """
    length = len(encoded.token_ids)
    options = [span for question in encoded.questions for span in question.option_spans]
    return {
        LAYOUT_KEY: {
            "version": LAYOUT_VERSION,
            "types": [question.type_id for question in encoded.questions],
            "question_spans": _flat([q.span for q in encoded.questions], length),
            "option_counts": [len(q.option_spans) for q in encoded.questions],
            "option_spans": _flat(options, length),
        }
    }


def parse_layout(extra_kwargs: object, prompt_length: int) -> Layout:
    """Reads and checks what `schema_layout` wrote.

    Args:
        extra_kwargs: `PoolingParams.extra_kwargs` of a request, any value.
        prompt_length: Tokens of the prompt, placeholders expanded.

    Raises:
        LayoutError: Anything is missing, of the wrong type, out of range or out of order.
    """
    body = extra_kwargs.get(LAYOUT_KEY) if isinstance(extra_kwargs, Mapping) else None
    if not isinstance(body, Mapping) or set(body) != _KEYS:
        raise LayoutError(f"extra_kwargs carries no whole {LAYOUT_KEY!r}")
    if body["version"] != LAYOUT_VERSION:
        stated = repr(body["version"])[:40]
        raise LayoutError(f"layout version {stated}, this plugin reads {LAYOUT_VERSION}")
    types = _integers(body["types"], "types")
    counts = _integers(body["option_counts"], "option_counts")
    if not types or any(not 0 <= value < TYPE_COUNT for value in types):
        raise LayoutError("types must be a non-empty list of 0, 1 or 2")
    if len(counts) != len(types) or any(count < 1 for count in counts):
        raise LayoutError("option_counts must be one positive number per question")
    questions = _spans(body["question_spans"], "question_spans", prompt_length)
    options = _spans(body["option_spans"], "option_spans", prompt_length)
    if len(questions) != len(types) or len(options) != sum(counts):
        raise LayoutError("spans do not match the numbers of questions and options")
    grouped = tuple(_groups(options, counts))
    _check_order(questions, grouped, prompt_length)
    return Layout(types=types, question_spans=questions, option_spans=grouped)


def split_flat(flat: Any, encoded: Encoded) -> dict[str, Any]:
    """Splits an engine's flat output into one slice per question, options in prompt order.

    Args:
        flat: One value per option of the record: list, array or tensor.
        encoded: The record that was run.

    Raises:
        LayoutError: The number of values is not the number of options; an empty output means
            that the engine refused the layout.
    """
    counts = [len(question.option_spans) for question in encoded.questions]
    if len(flat) != sum(counts):
        raise LayoutError(
            f"the engine returned {len(flat)} values for {sum(counts)} options"
            + ("; it refused the layout" if len(flat) == 0 else "")
        )
    slices = {}
    start = 0
    for question, count in zip(encoded.questions, counts, strict=True):
        slices[question.id] = flat[start : start + count]
        start += count
    return slices


def _flat(spans: Sequence[Span], length: int) -> list[int]:
    return [position - length for span in spans for position in span]


def _integers(value: object, name: str) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or any(type(item) is not int for item in value):
        raise LayoutError(f"{name} must be a list of integers")
    return tuple(value)


def _spans(value: object, name: str, prompt_length: int) -> tuple[Span, ...]:
    numbers = _integers(value, name)
    if len(numbers) % 2 or len(numbers) > 2 * prompt_length:
        raise LayoutError(f"{name} must hold a start and an end per span")
    absolute = [number + prompt_length for number in numbers]
    return tuple(zip(absolute[::2], absolute[1::2], strict=True))


def _groups(options: Sequence[Span], counts: Sequence[int]) -> Iterator[tuple[Span, ...]]:
    start = 0
    for count in counts:
        yield tuple(options[start : start + count])
        start += count


def _check_order(
    questions: Sequence[Span], options: Sequence[Sequence[Span]], prompt_length: int
) -> None:
    """Each question's span, then its options', then the next question's: no overlap."""
    end = 0
    for question, group in zip(questions, options, strict=True):
        for span in (question, *group):
            if not end <= span[0] < span[1] <= prompt_length:
                raise LayoutError(f"span {span} is empty, out of the prompt or out of order")
            end = span[1]
