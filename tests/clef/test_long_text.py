"""Long texts piece by piece: the ids of the whole text, or the text stays whole."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import trainers as tokenizer_trainers

import clefq
from clefq.clef.long_text import _QWEN2, _QWEN3_5, may_cut, pieces
from clefq.clef.tokenizer import PromptTokenizer
from tests.clef.generate import text

NANO = Path(clefq.__file__).parent / "nano" / "weights"


def trained(pattern: str) -> Tokenizer:
    """A byte-level BPE with the split rules, trained on texts of every kind."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(0)
    corpus = [text(rng, 40) + " the order is late and the refund is not here" for _ in range(300)]
    trainer = tokenizer_trainers.BpeTrainer(
        vocab_size=1500,
        show_progress=False,
        special_tokens=["<|im_end|>", "<think>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


@pytest.fixture(scope="module", params=[_QWEN2, _QWEN3_5], ids=["qwen2", "qwen3.5"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return trained(request.param)


def ids(tokenizer: Tokenizer, value: str) -> list[int]:
    return tokenizer.encode(value, add_special_tokens=False).ids


def test_the_patterns_are_those_of_transformers() -> None:
    from transformers.models.qwen2 import tokenization_qwen2
    from transformers.models.qwen3_5 import tokenization_qwen3_5

    assert _QWEN2 == tokenization_qwen2.PRETOKENIZE_REGEX
    assert _QWEN3_5 == tokenization_qwen3_5.PRETOKENIZE_REGEX


SPACED = ["a", "b c", "x  y", "a b", " ", "\n", "a \n b", "a\tb", "\r\n", "1 a", "a 1", ".", " ."]
QUOTED = ["don't", "'s", " 's", "I 'll", "''", "a 's b 't", "a .", "<|im_end|>", "<think> a"]
MARKED = ["e\u0301 a", "é", "\u0301 b", "a \u0301b", "ﬁ n", "Å ngstrom"]
OTHER = ["中 a b", "\u00a0", "a\u2028b", "😀 a", "\x00 a"]
WORDS = st.sampled_from([*SPACED, *QUOTED, *MARKED, *OTHER])


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, max_size=60), st.integers(1, 40), st.sampled_from(["", " "]))
def test_pieces_have_the_ids_of_the_whole(
    tokenizer: Tokenizer, words: list[str], size: int, between: str
) -> None:
    value = between.join(words)
    parts = pieces(value, size)
    assert "".join(parts) == value
    assert all(parts) or value == ""
    assert all(len(part) >= size for part in parts[:-1])
    assert [token for part in parts for token in ids(tokenizer, part)] == ids(tokenizer, value)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200), st.integers(0, 10**9))
def test_so_have_pieces_of_any_text(tokenizer: Tokenizer, value: str, seed: int) -> None:
    value = f"{value} is it so {text(random.Random(seed), 60)} or not so {value}"
    parts = pieces(value, 1)
    assert len(parts) >= 4
    assert [token for part in parts for token in ids(tokenizer, part)] == ids(tokenizer, value)


def test_long_states_are_cut_and_unchanged() -> None:
    ours = PromptTokenizer.from_folder(NANO)
    plain = Tokenizer.from_file(str(NANO / "tokenizer.json"))
    rng = random.Random(1)
    for _ in range(5):
        value = " the parcel ".join(text(rng, 300) for _ in range(40))
        assert len(pieces(value)) > 2
        assert ours.encode(value) == ids(plain, value)
    # without a place to cut
    value = "中文字符" * 20_000
    assert pieces(value) == [value]
    assert ours.encode(value) == ids(plain, value)


def changed(path: list[Any], value: Any) -> Tokenizer:
    body = json.loads((NANO / "tokenizer.json").read_text())
    place = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return Tokenizer.from_str(json.dumps(body))


def test_only_known_rules_may_be_cut() -> None:
    assert may_cut(Tokenizer.from_file(str(NANO / "tokenizer.json")))
    assert may_cut(changed(["normalizer"], None))
    split = ["pre_tokenizer", "pretokenizers", 0]
    for path, value in (
        (["normalizer"], {"type": "NFKC"}),
        (["normalizer"], {"type": "Sequence", "normalizers": [{"type": "NFC"}]}),
        ([*split, "pattern"], {"Regex": r"\w+ ?\w+|\s+"}),
        ([*split, "pattern"], {"String": " "}),
        ([*split, "behavior"], "MergedWithNext"),
        ([*split, "invert"], True),
        (["pre_tokenizer", "pretokenizers", 1, "add_prefix_space"], True),
        (["pre_tokenizer", "pretokenizers", 1, "use_regex"], True),
        (["pre_tokenizer"], None),
        (["model", "end_of_word_suffix"], "</w>"),
        (["added_tokens", 0, "rstrip"], True),
        (["added_tokens", 0, "lstrip"], True),
        (["added_tokens", 0, "single_word"], True),
    ):
        assert not may_cut(changed(path, value)), path
    spaced = Tokenizer.from_file(str(NANO / "tokenizer.json"))
    spaced.add_tokens([AddedToken("new york")])
    assert not may_cut(spaced)
