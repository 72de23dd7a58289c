from __future__ import annotations

import json
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clefq.clef.tokenizer import PromptTokenizer
from tests.clef.generate import SPECIAL, text
from tests.clef.layout import write_checkpoint

ADDED = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|image_pad|>", "<|video_pad|>", "<think>", "</think>",
)  # fmt: skip


@pytest.fixture(scope="session")
def release() -> ModuleType:
    """The release's own module."""
    from clef_finetune._vendor import joint_schema_model

    return joint_schema_model


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE with merges, saved by the class that loads the real tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen3_5Tokenizer

    rng = random.Random(0)
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    corpus = [text(rng, 200) for _ in range(200)]
    corpus += ["Read the complete state and schema. ALLOWED OPTIONS: OPTION option_id"] * 50
    for word in SPECIAL:
        corpus = [line.replace(word, " ") for line in corpus]
    plain.train_from_iterator(corpus, trainer)
    merges = [tuple(pair) for pair in json.loads(plain.to_str())["model"]["merges"]]
    tokenizer = Qwen3_5Tokenizer(
        vocab=plain.get_vocab(), merges=merges, extra_special_tokens=list(ADDED)
    )
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "qwen3_5"}')


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def release_tokenizer(tokenizer_folder: Path) -> Any:
    """The tokenizer as the release loads it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture
def tokenizer(tokenizer_folder: Path) -> PromptTokenizer:
    return PromptTokenizer.from_folder(tokenizer_folder)


@pytest.fixture
def folder(tmp_path: Path, tokenizer_folder: Path) -> Path:
    """A whole checkpoint folder, to be damaged."""
    return write_checkpoint(tmp_path / "model", tokenizer_folder)
