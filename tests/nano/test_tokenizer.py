"""The miniature's tokenizer: lossless, with the real special tokens, and learned anew the same."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clefq.clef.tokenizer import PromptTokenizer
from clefq.nano import WEIGHTS
from tools.nano.build import token_ids_of
from tools.nano.tokenizer import ADDED_TOKENS, SPECIAL_TOKENS, VOCAB_SIZE, train_tokenizer


@pytest.fixture(scope="module")
def plain() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=80))
def test_any_text_comes_back(text: str) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    decoded = tokenizer.decode(ids, skip_special_tokens=False)
    assert decoded == unicodedata.normalize("NFC", text)


def test_special_tokens_stand_behind_the_vocabulary(plain: Any) -> None:
    ids = token_ids_of(WEIGHTS / "tokenizer.json")
    assert sorted(ids.values()) == list(range(VOCAB_SIZE))
    last = [*SPECIAL_TOKENS, *ADDED_TOKENS]
    assert [ids[token] for token in last] == list(range(VOCAB_SIZE - len(last), VOCAB_SIZE))
    for token in last:
        assert plain.encode(f"a{token}b", add_special_tokens=False).ids[1] == ids[token]


def test_digits_are_tokens_of_their_own(tokenizer: PromptTokenizer) -> None:
    assert len(tokenizer.encode("1234567")) == 7


def test_transformers_reads_it_alike(tokenizer: PromptTokenizer) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(WEIGHTS)
    for text in ("Which team should handle this message?", "été 雨 🙂 <|im_end|>", " \n\n a  b"):
        assert theirs(text, add_special_tokens=False)["input_ids"] == list(tokenizer.encode(text))
    assert theirs.eos_token == "<|im_end|>"


def test_too_small_a_corpus_is_an_error() -> None:
    with pytest.raises(ValueError, match="tokens learned"):
        train_tokenizer(["a few words"])


@pytest.mark.data
def test_it_is_learned_from_the_training_texts(tmp_path: Path) -> None:
    from tools.nano.corpus import tokenizer_texts

    data = os.environ.get("CLEFQ_DATA_DIR")
    if not data:
        pytest.skip("needs CLEFQ_DATA_DIR")
    texts = list(tokenizer_texts(Path(data)))
    for name in ("one", "two"):
        train_tokenizer(texts).save(str(tmp_path / name))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    again, shipped = token_ids_of(tmp_path / "one"), token_ids_of(WEIGHTS / "tokenizer.json")
    assert len(again.keys() & shipped.keys()) >= 0.97 * VOCAB_SIZE
