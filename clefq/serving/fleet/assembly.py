"""From a model and options to a fleet: names, devices, command lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clefq.clef.checkpoint import open_checkpoint, scheme_of
from clefq.errors import InputError
from clefq.serving.fleet.devices import check_cores, engine_environments, visible_gpus
from clefq.serving.fleet.fingerprint import fingerprint
from clefq.serving.fleet.fleet import Fleet
from clefq.serving.fleet.process import Launch
from clefq.serving.fleet.spec import FleetSpec, ModelInfo, Timeouts
from clefq.serving.fleet.wire import Start
from clefq.serving.fleet.worker import command
from clefq.serving.http.names import model_names
from clefq.serving.settings import ServeSettings, engine_arguments


@dataclass(frozen=True, slots=True)
class Engines:
    """What to run, and on what.

    Attributes:
        folder: The checkpoint.
        own_name: Of the model: its folder's, variant's or hub name.
        further_names: That requests may use as well; the first is the one that is reported.
        settings: Of each engine.
        copies: Engines.
        timeouts: See `Timeouts`.
        max_restarts: See `FleetSpec`.
        verbose: Show vLLM's own log.
    """

    folder: Path
    own_name: str
    further_names: Sequence[str] = ()
    settings: ServeSettings = field(default_factory=ServeSettings)
    copies: int = 1
    timeouts: Timeouts = field(default_factory=Timeouts)
    max_restarts: int = 10
    verbose: bool = False

    def __post_init__(self) -> None:
        if self.copies < 1:
            raise InputError(f"--dp is {self.copies}, expected at least 1.")
        if self.max_restarts < 0:
            raise InputError(f"--max-restarts is {self.max_restarts}, expected at least 0.")


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """A fleet that has not been started.

    Attributes:
        spec: For `Fleet`.
        scheme: Of the checkpoint.
        places: Per engine, the GPUs or cores that it gets.
    """

    spec: FleetSpec
    scheme: str
    places: tuple[str, ...]

    def fleet(
        self,
        log: Callable[[str], None],
        on_give_up: Callable[[BaseException], None] | None = None,
    ) -> Fleet:
        """The fleet; `Fleet.start` starts it."""
        return Fleet(self.spec, log, on_give_up)


def plan_fleet(engines: Engines, environment: Mapping[str, str]) -> FleetPlan:
    """Checks the model and the machine; starts nothing.

    Args:
        engines: What to run.
        environment: Of this process.

    Raises:
        CheckpointError: Not a whole Clef checkpoint.
        InputError: Too few GPUs, or longer prompts than the model was made for.
    """
    checkpoint = open_checkpoint(engines.folder)
    gpus = visible_gpus(environment)
    if not gpus:
        check_cores(engines.copies)
    environments = engine_environments(engines.settings, engines.copies, environment, gpus)
    scheme = scheme_of(checkpoint)
    engine_arguments(engines.folder, engines.settings, cpu=not gpus)  # a check: before any load
    spec = FleetSpec(
        start=Start(
            engines.folder.absolute(),
            engines.settings,
            engines.verbose,
            fingerprint(engines.folder),
        ),
        launches=[Launch(command(), variables) for variables in environments],
        card=ModelInfo(_names(engines), scheme),
        timeouts=engines.timeouts,
        max_restarts=engines.max_restarts,
        first_alone=bool(gpus) and not engines.settings.eager,
    )
    places = [
        f"GPU {variables['CUDA_VISIBLE_DEVICES']}"
        if gpus
        else f"cores {variables['VLLM_CPU_OMP_THREADS_BIND']}"
        for variables in environments
    ]
    return FleetPlan(spec, scheme, tuple(places))


def _names(engines: Engines) -> tuple[str, ...]:
    """Of the model; without that of its folder where it is known under another."""
    given = (*engines.further_names, engines.own_name)
    hidden = {engines.folder.resolve().name} - set(given)
    return tuple(name for name in model_names(engines.folder, given) if name not in hidden)
