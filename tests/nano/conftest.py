from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from clefq.clef.tokenizer import PromptTokenizer
from clefq.nano import SETS, WEIGHTS
from clefq.store.sets import SetFolder, open_set


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """A model of four million weights gains nothing from more, and loses much on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tokenizer() -> PromptTokenizer:
    return PromptTokenizer.from_folder(WEIGHTS)


@pytest.fixture(scope="session")
def eval_set() -> SetFolder:
    return open_set(SETS / "nano-eval")


@pytest.fixture(scope="session")
def engine() -> Any:
    """The shipped weights in FP32: golden numbers must not hang on a processor's BF16."""
    from clefq.engines.base import EngineSpec
    from clefq.engines.transformers_engine import open_engine

    return open_engine(WEIGHTS, EngineSpec(device="cpu", dtype="float32"))
