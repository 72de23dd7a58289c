"""Prompt encoding: a record becomes token ids and the spans that the joint head reads.

Every piece of the prompt is tokenized on its own and the ids are concatenated, so a span is
exactly the ids of its piece. Fixed pieces, option texts and whole schemas repeat from record to
record; their ids are kept (`PromptTokenizer.pieces`), states are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from clefq.clef.json_values import render
from clefq.clef.records import Question, Record
from clefq.clef.tokenizer import PromptTokenizer
from clefq.errors import RecordError

__all__ = [
    "DEFAULT_MAX_LENGTH",
    "EncodeSpec",
    "Encoded",
    "EncodedQuestion",
    "PromptTokenizer",
    "RecordTooLongError",
    "encode_record",
    "spans_from_end",
]

DEFAULT_MAX_LENGTH = 16384

SYSTEM_PROMPT = (
    "Read the complete state and schema. Decide every field jointly. Each answer must be exactly "
    "one of that field's allowed options."
)
_PREFIX = f"<|im_start|>system\n{SYSTEM_PROMPT}<|im_end|>\n<|im_start|>user\nSTATE:\n"
_SCHEMA = "\n\nSCHEMA FIELDS:\n"
_OPTIONS = "\nALLOWED OPTIONS:\n"
_END_FIELD = "END FIELD\n"
_SUFFIX = "\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nJOINT SCHEMA DECISIONS:"

FIXED_PIECES = frozenset({_PREFIX, _SUFFIX})
"""Pieces whose special tokens are the prompt's own, whatever a record holds."""

Span = tuple[int, int]


class RecordTooLongError(RecordError):
    """A record that does not fit the token limit.

    Args:
        message: One line.
        fix: One line.
        tokens: What the whole prompt would take.
        limit: What it may take.
        fixed: What its questions and media take without the state.
    """

    def __init__(self, message: str, *, fix: str, tokens: int, limit: int, fixed: int) -> None:
        super().__init__(message, fix=fix)
        self.tokens = tokens
        self.limit = limit
        self.fixed = fixed


@dataclass(frozen=True, slots=True)
class EncodeSpec:
    """How to fit records into the model.

    Attributes:
        max_length: Token limit of a whole prompt.
        truncate_state: Cut the end of an over-long state, as the release does silently, instead
            of raising.
    """

    max_length: int = DEFAULT_MAX_LENGTH
    truncate_state: bool = False


@dataclass(frozen=True, slots=True)
class EncodedQuestion:
    """Where a question lies in the prompt; spans are half-open token ranges.

    Attributes:
        id: Question id.
        type_id: noul 0, choice 1, score 2.
        span: The instructions.
        option_ids: Option ids in prompt order.
        option_spans: One span per option: its JSON text.
    """

    id: str
    type_id: int
    span: Span
    option_ids: tuple[str, ...]
    option_spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A record as the model reads it.

    Attributes:
        record_id: Id of the record.
        token_ids: The whole prompt.
        questions: In prompt order, spans counted from the start of `token_ids`.
        truncated_tokens: Tokens cut from the end of the state.
        media_span: The media block, placeholders and final newline; empty when there is none.
        state_span: The state.
    """

    record_id: str
    token_ids: tuple[int, ...]
    questions: tuple[EncodedQuestion, ...]
    truncated_tokens: int = 0
    media_span: Span = (0, 0)
    state_span: Span = (0, 0)


def encode_record(
    tokenizer: PromptTokenizer,
    record: Record,
    spec: EncodeSpec = EncodeSpec(),
    media_token_counts: Sequence[int] = (),
    media_ids: Sequence[int] | None = None,
) -> Encoded:
    """Encodes one record, token for token as the release code does.

    Args:
        tokenizer: The checkpoint's tokenizer.
        record: The record.
        spec: Token limit and what to do beyond it.
        media_token_counts: Pad tokens per image, then per video. 1 each gives the unexpanded
            placeholders of the release, which a serving engine expands itself.
        media_ids: The media block as a processor tokenized it (for videos with time stamps);
            takes the place of `media_token_counts`.

    Raises:
        RecordTooLongError: More than `spec.max_length` tokens and `spec.truncate_state` is off,
            or the schema and media alone exceed the limit.
        RecordError: The counts do not match the record's images and videos, the record has no
            questions, or instructions give no token.
    """
    prefix = tokenizer.piece(_PREFIX)
    suffix = tokenizer.piece(_SUFFIX)
    media = _media_block(tokenizer, record, media_token_counts, media_ids)
    schema, questions = _encode_schema(tokenizer, record)
    state = tokenizer.encode(render(record.state))
    fixed = len(prefix) + len(media) + len(schema) + len(suffix)
    room = spec.max_length - fixed
    truncated = max(0, len(state) - room)
    if room < 0 or (truncated and not spec.truncate_state):
        raise _too_long(record, spec, fixed, len(state))
    if truncated:
        state = state[:room]
    media_start = len(prefix)
    state_start = media_start + len(media)
    schema_start = state_start + len(state)
    return Encoded(
        record_id=record.id,
        token_ids=(*prefix, *media, *state, *schema, *suffix),
        questions=tuple(_shift(question, schema_start) for question in questions),
        truncated_tokens=truncated,
        media_span=(media_start, state_start),
        state_span=(state_start, schema_start),
    )


def spans_from_end(encoded: Encoded) -> tuple[EncodedQuestion, ...]:
    """The questions with spans counted from the end of the prompt.

    The offsets are negative, as Python slices count from the end (`ids[start:end]`; the prompt's
    suffix follows every span, so `end` is never 0). They stay right when an engine expands media
    placeholders in front of them.
    """
    length = len(encoded.token_ids)
    return tuple(_shift(question, -length) for question in encoded.questions)


def _shift(question: EncodedQuestion, by: int) -> EncodedQuestion:
    start, end = question.span
    spans = tuple((first + by, last + by) for first, last in question.option_spans)
    return replace(question, span=(start + by, end + by), option_spans=spans)


def _encode_schema(
    tokenizer: PromptTokenizer, record: Record
) -> tuple[list[int], list[EncodedQuestion]]:
    """Ids of the schema and its questions, spans counted from the start of the schema."""
    if not record.questions:
        raise RecordError(f"record {record.id!r} has no questions.", fix="ask at least one.")
    ids = list(tokenizer.piece(_SCHEMA))
    questions = []
    for number, question in enumerate(record.questions, start=1):
        header = f"\nFIELD {number}\nID: {question.id}\nTYPE: {question.type}\nINSTRUCTION: "
        ids += tokenizer.piece(header)
        body, encoded = _encode_body(tokenizer, question)
        questions.append(_shift(encoded, len(ids)))
        ids += body
    return ids, questions


def _encode_body(
    tokenizer: PromptTokenizer, question: Question
) -> tuple[tuple[int, ...], EncodedQuestion]:
    """A question from its instructions on; the same schema recurs in many records."""
    instructions = question.instructions
    if instructions is None or instructions == "":
        instructions = question.id
    text = render(instructions)
    key = (question.id, question.type, text, render(question.criteria))
    known: tuple[tuple[int, ...], EncodedQuestion] | None = tokenizer.bodies.get(key)
    if known is not None:
        return known
    ids = list(tokenizer.piece(text))
    if not ids:
        raise RecordError(
            f"question {question.id!r}: its instructions give no token.", fix="write them in words."
        )
    span = (0, len(ids))
    ids += tokenizer.piece(_OPTIONS)
    spans: list[Span] = []
    options = question.options
    newline = tokenizer.piece("\n")
    for number, option in enumerate(options, start=1):
        ids += tokenizer.piece(f"OPTION {number}: ")
        start = len(ids)
        value = {"option_id": option.id}
        if option.description is not None:
            value["description"] = option.description
        ids += tokenizer.piece(render(value))
        spans.append((start, len(ids)))
        ids += newline
    ids += tokenizer.piece(_END_FIELD)
    encoded = EncodedQuestion(
        question.id, question.type_id, span, tuple(option.id for option in options), tuple(spans)
    )
    result = (tuple(ids), encoded)
    # the criteria text in the key and the spans weigh about as much as the ids
    tokenizer.bodies.put(key, result, 2 * len(ids))
    return result


def _media_block(
    tokenizer: PromptTokenizer,
    record: Record,
    counts: Sequence[int],
    media_ids: Sequence[int] | None,
) -> list[int]:
    if media_ids is not None:
        return list(media_ids)
    images, videos = len(record.images), len(record.videos)
    if len(counts) != images + videos:
        raise RecordError(
            f"record {record.id!r} has {images} image(s) and {videos} video(s), but token counts "
            f"for {len(counts)}.",
            fix="use an engine that reads media, or a set without them.",
        )
    if not counts:
        return []
    special = tokenizer.special
    ids: list[int] = []
    for index, count in enumerate(counts):
        pad = special.image_pad if index < images else special.video_pad
        ids += [special.vision_start, *[pad] * count, special.vision_end]
    return [*ids, *tokenizer.piece("\n")]


def _too_long(record: Record, spec: EncodeSpec, fixed: int, state: int) -> RecordTooLongError:
    limit, tokens = spec.max_length, fixed + state
    if fixed > limit:
        message = f"its questions and media alone take {fixed} tokens, the limit is {limit}."
        return RecordTooLongError(
            f"record {record.id!r}: {message}",
            fix=f"raise --max-length to {tokens}, or ask fewer questions or options.",
            tokens=tokens,
            limit=limit,
            fixed=fixed,
        )
    return RecordTooLongError(
        f"record {record.id!r} takes {tokens} tokens, the limit is {limit}.",
        fix=f"raise --max-length to {tokens}, or cut the state with --truncate-state.",
        tokens=tokens,
        limit=limit,
        fixed=fixed,
    )
