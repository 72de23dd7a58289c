"""Prompts that are far too long are refused by a part of them: counting all takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from clefq.clef.json_values import render
from clefq.serving.http.errors import TOO_LONG, ApiError

if TYPE_CHECKING:
    from clefq.clef.encoding import EncodeSpec
    from clefq.clef.records import Record
    from clefq.clef.tokenizer import PromptTokenizer
    from clefq.serving.http.request import Ask

# Fewer characters than this many per allowed token are encoded without a look.
_CHARS_PER_TOKEN = 8
# Tokenized at a time; a cut adds a token or two, and room is left for far more.
_SLICE = 1 << 15
_ROOM = 2


def refuse_hopeless(tokenizer: PromptTokenizer, ask: Ask, spec: EncodeSpec) -> None:
    """Refuses a prompt of more than twice the tokens that fit, without counting all of it.

    Args:
        tokenizer: The checkpoint's.
        ask: The request.
        spec: With `truncate_state`, the state may be as long as it likes.

    Raises:
        ApiError: Names the field where the count went beyond it.
    """
    if ask.chars <= _CHARS_PER_TOKEN * spec.max_length:
        return
    most = _ROOM * spec.max_length
    tokens = 0
    for path, text in _texts(ask.record, state=not spec.truncate_state):
        for start in range(0, len(text), _SLICE):
            tokens += len(tokenizer.encode(text[start : start + _SLICE]))
            if tokens > most:
                message = f"the prompt takes more than {most} tokens, the limit is"
                raise ApiError.of(TOO_LONG, f"{message} {spec.max_length}", *path)


def _texts(record: Record, *, state: bool) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text of a prompt that a request decides, with its field."""
    if state:
        yield ("state",), render(record.state)
    for question in record.questions:
        place = ("questions", question.id)
        yield place, question.id
        if question.instructions is not None:
            yield (*place, "instructions"), render(question.instructions)
        if question.criteria is not None:
            yield (*place, "criteria"), render(question.criteria)
