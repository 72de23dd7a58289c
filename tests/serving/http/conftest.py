"""The nano tokenizer, and apps over a backend without engines."""

from __future__ import annotations

from pathlib import Path

import pytest

import clefq.nano
from clefq.serving.prompts import PromptMaker
from tests.serving.http.client import Asker
from tests.serving.http.fake import FakeBackend

NANO = Path(clefq.nano.__file__).parent / "weights"


@pytest.fixture(scope="session")
def prompts() -> PromptMaker:
    return PromptMaker(NANO, max_images=4)


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def asker(prompts: PromptMaker) -> Asker:
    return Asker(prompts)
