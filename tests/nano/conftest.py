from __future__ import annotations

from typing import Any

import pytest

from clefq.clef.tokenizer import PromptTokenizer
from clefq.nano.build import SETS, WEIGHTS
from clefq.store.sets import SetFolder, open_set


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
