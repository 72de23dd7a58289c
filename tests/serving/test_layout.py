"""What travels with a prompt: exact round trips, and nothing malformed gets through."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clefq.clef.encoding import Encoded, EncodedQuestion
from clefq.serving import schema_layout, split_flat
from clefq.serving.layout import LAYOUT_KEY, LayoutError, parse_layout


@st.composite
def encoded_records(draw: st.DrawFn) -> Encoded:
    """Records with random gaps between random spans."""
    position = draw(st.integers(0, 40))
    questions = []
    for number in range(draw(st.integers(1, 6))):
        spans = []
        for _ in range(1 + draw(st.integers(1, 9))):
            start = position + draw(st.integers(0, 5))
            position = start + draw(st.integers(1, 12))
            spans.append((start, position))
        ids = tuple(str(option) for option in range(len(spans) - 1))
        kind = draw(st.integers(0, 2))
        questions.append(EncodedQuestion(f"q{number}", kind, spans[0], ids, tuple(spans[1:])))
    length = position + draw(st.integers(0, 20))
    return Encoded("r", tuple(range(length)), tuple(questions))


@given(encoded_records(), st.integers(0, 500))
def test_round_trip_whatever_an_image_adds_in_front(encoded: Encoded, added: int) -> None:
    layout = parse_layout(schema_layout(encoded), len(encoded.token_ids) + added)
    assert layout.types == tuple(q.type_id for q in encoded.questions)
    for question, span, options in zip(
        encoded.questions, layout.question_spans, layout.option_spans, strict=True
    ):
        assert span == (question.span[0] + added, question.span[1] + added)
        assert options == tuple((a + added, b + added) for a, b in question.option_spans)


def junk() -> st.SearchStrategy[Any]:
    leaves = (
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary()
    )
    return st.recursive(
        leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner)
    )


@st.composite
def broken_layouts(draw: st.DrawFn) -> tuple[Any, int]:
    """A sound layout with one field replaced, dropped, or one of its numbers moved."""
    encoded = draw(encoded_records())
    value = schema_layout(encoded)
    body = value[LAYOUT_KEY]
    key = draw(st.sampled_from(sorted(body)))
    how = draw(st.sampled_from(["replace", "drop", "move", "extra", "whole", "cut"]))
    length = len(encoded.token_ids)
    if how == "replace":
        body[key] = draw(junk())
    elif how == "drop":
        del body[key]
    elif how == "extra":
        body[draw(st.text(min_size=1, max_size=5))] = 1
    elif how == "whole":
        value = draw(junk())
    elif how == "cut":
        length = draw(st.integers(0, length))
    elif isinstance(body[key], list) and body[key]:
        index = draw(st.integers(0, len(body[key]) - 1))
        body[key][index] += draw(st.integers(-400, 400))
    return value, length


@settings(max_examples=300, deadline=None)
@given(broken_layouts())
def test_a_broken_layout_is_refused_or_is_sound(case: tuple[Any, int]) -> None:
    value, length = case
    try:
        layout = parse_layout(value, length)
    except LayoutError:
        return
    spans = [
        span
        for question, options in zip(layout.question_spans, layout.option_spans, strict=True)
        for span in (question, *options)
    ]
    end = 0
    for span in spans:
        assert end <= span[0] < span[1] <= length
        end = span[1]
    assert all(kind in (0, 1, 2) for kind in layout.types)
    assert all(layout.option_spans)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2"),
        ({"types": [True]}, "integers"),
        ({"types": [3]}, "0, 1 or 2"),
        ({"types": []}, "0, 1 or 2"),
        ({"option_counts": [0]}, "positive"),
        ({"option_counts": [3]}, "do not match"),
        ({"question_spans": [-20, -20]}, "empty"),
        ({"question_spans": [-20]}, "start and an end"),
        ({"option_spans": [-12, -10, -11, -5]}, "out of order"),
        ({"option_spans": [-12, -10, -5, 1]}, "out of the prompt"),
    ],
)
def test_each_fault_has_its_message(change: dict[str, Any], message: str) -> None:
    body = {
        "version": 1,
        "types": [1],
        "question_spans": [-20, -15],
        "option_counts": [2],
        "option_spans": [-12, -10, -8, -5],
    }
    parse_layout({LAYOUT_KEY: body}, 30)
    with pytest.raises(LayoutError, match=message):
        parse_layout({LAYOUT_KEY: {**body, **change}}, 30)


@given(encoded_records())
def test_flat_values_are_split_by_question(encoded: Encoded) -> None:
    total = sum(len(q.option_spans) for q in encoded.questions)
    slices = split_flat(list(range(total)), encoded)
    assert list(slices) == [q.id for q in encoded.questions]
    assert [value for part in slices.values() for value in part] == list(range(total))
    assert [len(part) for part in slices.values()] == [len(q.option_ids) for q in encoded.questions]


def test_a_refused_layout_is_named() -> None:
    encoded = Encoded("r", (0,) * 9, (EncodedQuestion("q", 0, (1, 2), ("a",), ((3, 4),)),))
    with pytest.raises(LayoutError, match="refused the layout"):
        split_flat([], encoded)
    with pytest.raises(LayoutError, match="2 values for 1 options"):
        split_flat([1.0, 2.0], encoded)


def test_importing_loads_neither_torch_nor_vllm() -> None:
    code = (
        "import sys, clefq.serving, clefq.serving.plugin, clefq.serving.settings;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'vllm', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
