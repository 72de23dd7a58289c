"""What a fleet is told: the model, the engines, and how long things may take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from clefq.errors import InputError
from clefq.serving.fleet.process import Launch
from clefq.serving.fleet.wire import Start


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long things may take, in seconds.

    Attributes:
        start: From an engine's start until it is warm; large checkpoints compile for minutes.
        request: From a request's arrival until it is answered, waiting and retry included.
        stall: An engine that has work and has answered nothing for so long is replaced.
        stop: For an engine to exit by itself.
    """

    start: float = 1800.0
    request: float = 180.0
    stall: float = 60.0
    stop: float = 15.0

    def __post_init__(self) -> None:
        faults = [
            f"{name} is {getattr(self, name)}, expected more than 0 seconds"
            for name in self.__slots__
            # written so that NaN is refused too
            if not getattr(self, name) > 0
        ]
        if faults:
            raise InputError(f"timeouts: {faults[0]}.", faults=faults[1:])


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known of the model before an engine runs.

    Attributes:
        names: Model names that requests may use, the reported one first.
        scheme: Of the checkpoint.
        created: Unix time, seconds.
    """

    names: tuple[str, ...]
    scheme: str
    created: int = field(default_factory=lambda: int(time.time()))


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """What to run.

    Attributes:
        start: What every engine loads.
        launches: One per engine.
        card: What the model is called.
        timeouts: See `Timeouts`.
        first_alone: Start the first engine alone, so that the others find its compiled kernels.
        max_restarts: Failed starts of an engine in a row after which the server ends with the
            reason; 0 for any number.
    """

    start: Start
    launches: Sequence[Launch]
    card: ModelInfo
    timeouts: Timeouts = Timeouts()
    first_alone: bool = False
    max_restarts: int = 10
