"""Who gets the next prompt: one queue for all engines, served in order of arrival.

A prompt goes to an engine only when that engine can use it soon. What waits, waits here: it can
still go to whichever engine is free first, it is dropped at no cost when its client goes away,
and it is not lost when an engine dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clefq.serving.settings import ServeSettings

# Steps' worth of work that an engine holds: the one that runs, the next one, which vLLM schedules
# while that runs, and enough behind them that it never waits for this process.
_STEPS_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Room:
    """How much an engine takes at once.

    Attributes:
        tokens: Most tokens in flight; a longer prompt runs alone.
        requests: Most prompts in flight.
    """

    tokens: int
    requests: int

    @classmethod
    def of(cls, settings: ServeSettings) -> Room:
        """Enough to keep every step of the engine full."""
        return cls(_STEPS_AHEAD * settings.step_tokens, _STEPS_AHEAD * settings.max_requests)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine has in flight.

    Attributes:
        tokens: Tokens of its prompts.
        requests: Its prompts.
    """

    tokens: int
    requests: int


def least_loaded(loads: Sequence[EngineLoad | None], tokens: int, room: Room) -> int | None:
    """The engine for a prompt: the one with the fewest tokens in flight that has room for it.

    Args:
        loads: Per engine; None for one that takes nothing now.
        tokens: Of the prompt.
        room: Of each engine.

    Returns:
        The engine's number, or None when the prompt has to wait.
    """
    best: int | None = None
    for number, load in enumerate(loads):
        if load is None or not _fits(load, tokens, room):
            continue
        current = None if best is None else loads[best]
        if current is None or (load.tokens, load.requests) < (current.tokens, current.requests):
            best = number
    return best


def _fits(load: EngineLoad, tokens: int, room: Room) -> bool:
    if load.requests == 0:
        return True
    return load.requests < room.requests and load.tokens + tokens <= room.tokens


def restart_delay(failures: int) -> float:
    """Seconds to wait before the next start: 1, 2, 4 … at most 60.

    Args:
        failures: Deaths in a row, this one included.
    """
    return float(min(60, 2 ** min(failures - 1, 6)))
