from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from clefq.clef.encoding import (
    Encoded,
    EncodeSpec,
    PromptTokenizer,
    RecordTooLongError,
    encode_record,
    spans_from_end,
)
from clefq.clef.records import parse_record
from clefq.errors import RecordError
from tests.clef.generate import record

RECORDS = 600


def as_release(encoded: Encoded) -> tuple[Any, ...]:
    questions = tuple(
        (q.id, q.type_id, q.span, q.option_spans, q.option_ids) for q in encoded.questions
    )
    return encoded.record_id, encoded.token_ids, questions


def of_release(encoded: Any) -> tuple[Any, ...]:
    questions = tuple(
        (q.question_id, q.question_type, q.question_span, q.option_spans, q.option_ids)
        for q in encoded.questions
    )
    return encoded.record_id, encoded.input_ids, questions


def test_ids_and_spans_equal_the_release(
    release: ModuleType, release_tokenizer: Any, tokenizer: PromptTokenizer
) -> None:
    questions, options, truncated, equal = set(), set(), 0, 0
    for seed in range(RECORDS):
        raw = record(seed)
        spec = EncodeSpec(16384 if seed % 4 else 5000, truncate_state=True)
        one = parse_record(raw, "test")
        try:
            expected = release.encode_record(release_tokenizer, raw, max_length=spec.max_length)
        except ValueError:  # the schema alone is too long
            with pytest.raises(RecordTooLongError, match="alone take"):
                encode_record(tokenizer, one, spec)
            continue
        ours = encode_record(tokenizer, one, spec)
        assert as_release(ours) == of_release(expected), raw
        questions.add(len(ours.questions))
        options |= {len(q.option_ids) for q in ours.questions}
        truncated += ours.truncated_tokens > 0
        equal += 1
    assert equal >= 550
    assert {1, 64} <= questions
    assert {2, 255} <= options
    assert truncated >= 5


def test_cached_pieces_give_the_same_ids(tokenizer: PromptTokenizer) -> None:
    parsed = [parse_record(record(seed), "test") for seed in range(60)]
    spec = EncodeSpec(truncate_state=True)
    first = [encode_record(tokenizer, one, spec) for one in parsed]
    assert [encode_record(tokenizer, one, spec) for one in parsed] == first


def test_equal_texts_of_other_questions_do_not_share_a_cache_entry(
    tokenizer: PromptTokenizer,
) -> None:
    def encode(questions: dict[str, Any]) -> Encoded:
        raw = {"id": "a", "cohort": "c", "state": 1, "questions": questions}
        return encode_record(tokenizer, parse_record(raw, "test"))

    level = encode({"q": {"type": "score", "criteria": ["0", "1"]}})
    named = encode({"q": {"type": "choice", "criteria": {"0": "0", "1": "1"}}})
    true = encode({"q": {"type": "score", "criteria": [True, "1"]}})
    one = encode({"q": {"type": "score", "criteria": [1, "1"]}})
    assert named.questions[0].type_id == 1
    assert level.questions[0].type_id == 2
    assert true.token_ids != one.token_ids


def long_record(words: int) -> Any:
    raw = {
        "id": "long",
        "cohort": "c",
        "state": "word " * words,
        "questions": {"q": {"type": "noul"}},
    }
    return parse_record(raw, "test")


def test_too_long_is_an_error_that_names_the_limit_that_fits(tokenizer: PromptTokenizer) -> None:
    one = long_record(500)
    whole = encode_record(tokenizer, one)
    needed = len(whole.token_ids)
    assert whole.truncated_tokens == 0
    assert encode_record(tokenizer, one, EncodeSpec(needed)) == whole
    with pytest.raises(RecordTooLongError) as caught:
        encode_record(tokenizer, one, EncodeSpec(needed - 1))
    assert "'long'" in caught.value.message
    assert f"{needed} tokens" in caught.value.message
    assert f"--max-length to {needed}" in str(caught.value.fix)
    cut = encode_record(tokenizer, one, EncodeSpec(needed - 7, truncate_state=True))
    assert cut.truncated_tokens == 7
    assert len(cut.token_ids) == needed - 7


def test_a_schema_that_is_too_long_raises_even_when_truncating(tokenizer: PromptTokenizer) -> None:
    one = long_record(5)
    start, end = encode_record(tokenizer, one).state_span
    schema = len(encode_record(tokenizer, one).token_ids) - (end - start)
    emptied = encode_record(tokenizer, one, EncodeSpec(schema, truncate_state=True))
    assert emptied.state_span[0] == emptied.state_span[1]
    with pytest.raises(RecordTooLongError, match="questions and media alone"):
        encode_record(tokenizer, one, EncodeSpec(schema - 1, truncate_state=True))


def test_media_block_is_what_the_processor_would_tokenize(
    release_tokenizer: Any, tokenizer: PromptTokenizer
) -> None:
    raw = {
        "id": "m",
        "cohort": "c",
        "state": "\n\nseen",
        "questions": {"q": {"type": "noul"}},
        "images": ["a.png", "b.png"],
        "videos": ["c.mp4"],
    }
    one = parse_record(raw, "test")
    ours = encode_record(tokenizer, one, media_token_counts=(3, 1, 2))
    block = (
        "<|vision_start|><|image_pad|><|image_pad|><|image_pad|><|vision_end|>"
        "<|vision_start|><|image_pad|><|vision_end|>"
        "<|vision_start|><|video_pad|><|video_pad|><|vision_end|>\n"
    )
    expected = release_tokenizer(block, add_special_tokens=False).input_ids
    start, end = ours.media_span
    assert list(ours.token_ids[start:end]) == expected
    assert ours.state_span[0] == end
    text = release_tokenizer.decode(ours.token_ids[:start])
    assert text.endswith("STATE:\n")
    assert encode_record(tokenizer, one, media_ids=expected) == ours
    with pytest.raises(RecordError, match=r"2 image\(s\) and 1 video\(s\)"):
        encode_record(tokenizer, one)


def test_media_moves_spans_as_in_the_release(
    release: ModuleType, release_tokenizer: Any, tokenizer: PromptTokenizer
) -> None:
    class Processor:
        def __call__(self, text: list[str], **_: Any) -> dict[str, Any]:
            import torch

            grown = text[0].replace("<|image_pad|>", "<|image_pad|>" * 5)
            ids = release_tokenizer(grown, add_special_tokens=False).input_ids
            return {"input_ids": torch.tensor([ids])}

    raw = record(7) | {"images": ["a.png", "b.png", "c.png"]}
    expected = release.encode_record(release_tokenizer, raw, processor=Processor())
    ours = encode_record(tokenizer, parse_record(raw, "test"), media_token_counts=(5, 5, 5))
    assert as_release(ours) == of_release(expected)
    assert ours.media_span[0] == expected.media["token_offset"]


def test_spans_from_end_survive_growing_placeholders(tokenizer: PromptTokenizer) -> None:
    raw = record(9) | {"images": ["a.png"]}
    one = parse_record(raw, "test")
    small = encode_record(tokenizer, one, media_token_counts=(1,))
    grown = encode_record(tokenizer, one, media_token_counts=(900,))
    assert spans_from_end(small) == spans_from_end(grown)
    for near, far in zip(grown.questions, spans_from_end(grown), strict=True):
        assert grown.token_ids[slice(*near.span)] == grown.token_ids[slice(*far.span)]
        for a, b in zip(near.option_spans, far.option_spans, strict=True):
            assert grown.token_ids[slice(*a)] == grown.token_ids[slice(*b)]
            assert b[1] < 0


def test_spans_hold_the_text_of_their_pieces(
    release_tokenizer: Any, tokenizer: PromptTokenizer
) -> None:
    raw = {
        "id": "a",
        "cohort": "c",
        "state": {"b": 1, "a": "é"},
        "questions": {
            "q": {"type": "choice", "instructions": {"do": 1}, "criteria": {"z": None, "b": "x"}}
        },
    }
    ours = encode_record(tokenizer, parse_record(raw, "test"))
    read = [
        release_tokenizer.decode(ours.token_ids[slice(*span)])
        for span in (ours.state_span, ours.questions[0].span, *ours.questions[0].option_spans)
    ]
    assert read == [
        '{"a":"é","b":1}',
        '{"do":1}',
        '{"description":"x","option_id":"b"}',
        '{"option_id":"z"}',
    ]
