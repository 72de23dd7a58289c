"""A fleet of fake engines, and prompts that tell which answer is theirs."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from clefq.clef.encoding import Encoded, EncodedQuestion
from clefq.serving.fleet.fleet import Fleet
from clefq.serving.fleet.process import Launch
from clefq.serving.fleet.spec import FleetSpec, ModelInfo, Timeouts
from clefq.serving.fleet.wire import Start
from clefq.serving.runtime import Prompt
from clefq.serving.settings import ServeSettings

COMMAND = (sys.executable, "-m", "tests.serving.fleet.fake_worker")
ROOT = Path(__file__).parents[3]


def prompt(token: int, length: int = 8) -> Prompt:
    """A prompt of one repeated token, with one question of two options."""
    question = EncodedQuestion("q", 0, (0, 1), ("true", "false"), ((1, 2), (2, 3)))
    return Prompt(Encoded("r", (token,) * length, (question,), 0))


class Log(list[str]):
    """Lines that the fleet logged."""

    def has(self, text: str) -> bool:
        return any(text in line for line in self)


@pytest.fixture
def log() -> Log:
    return Log()


MakeFleet = Callable[..., Fleet]


@pytest.fixture
def make_fleet(log: Log) -> MakeFleet:
    def make(*fakes: dict[str, Any], **options: Any) -> Fleet:
        settings = options.pop("settings", ServeSettings(step_tokens=1024))
        timeouts = Timeouts(**{"start": 20, "request": 20, "stall": 20, "stop": 5} | options)
        launches = [
            Launch(COMMAND, {**os.environ, "FAKE": json.dumps(fake), "PYTHONPATH": str(ROOT)})
            for fake in fakes
        ]
        start = Start(Path("model"), settings)
        return Fleet(FleetSpec(start, launches, ModelInfo(("m",), "bf16"), timeouts), log.append)

    return make


def run(body: Coroutine[Any, Any, None]) -> None:
    """Runs a test's coroutine; a hang is a failure."""
    asyncio.run(asyncio.wait_for(body, 60))
