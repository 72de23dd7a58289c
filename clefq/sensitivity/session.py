"""One model on one set: loaded when first needed, with everything that decides its numbers."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clefq import __version__
from clefq.clef.checkpoint import checkpoint_sha256, open_checkpoint
from clefq.clef.formats import BF16
from clefq.engines.base import EngineSpec
from clefq.engines.predict import ModelFacts, provenance
from clefq.errors import InputError
from clefq.names.models import ModelRef
from clefq.names.run_folder import BASELINE
from clefq.plain_files import compact_json, sha256_bytes
from clefq.sensitivity.blocks import check_groups, find_blocks
from clefq.store.predictions import PredictionsMeta
from clefq.store.sets import open_set

if TYPE_CHECKING:
    from clefq.clef.records import Record
    from clefq.console import Console
    from clefq.engines.transformers_engine import BatchPrompt, TransformersEngine
    from clefq.sensitivity.quantizing import Installer

_LIBRARIES = ("torch", "transformers", "compressed-tensors")


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """What is measured.

    Attributes:
        model: BF16 checkpoint folder.
        eval_set: Set folder that damage is measured on.
        calibration: Set folder for the input scales of `nvfp4`, or None.
        schemes: Formats to try on every block.
        out: Folder of the results.
        model_id: Folder name or hub id.
        revision: Hub commit, or None.
        engine: How to run.
        records: Most records of the set, or None for all.
        memory: Most bytes of hidden states in memory.
        rounding: How four-bit weights are rounded: `nearest` or `search`.
    """

    model: Path
    eval_set: Path
    calibration: Path | None
    schemes: tuple[str, ...]
    out: Path
    model_id: str
    revision: str | None = None
    engine: EngineSpec = field(default_factory=EngineSpec)
    records: int | None = None
    memory: int = 4 << 30
    rounding: str = "nearest"

    @property
    def searched(self) -> bool:
        """Whether NVFP4 group scales are searched."""
        return self.rounding == "search"


class Session:
    """The model, the records and the hashes of a sweep.

    Args:
        spec: What is measured.
        console: Notes and progress.

    Raises:
        InputError: A quantized model, an empty set, or no calibration set where one is needed.
    """

    def __init__(self, spec: SweepSpec, console: Console) -> None:
        self.spec = spec
        self.console = console
        self.checkpoint = open_checkpoint(spec.model)
        self.blocks = find_blocks(self.checkpoint)
        check_groups(self.blocks, spec.schemes)
        if spec.rounding not in ("nearest", "search"):
            raise InputError(
                f"--rounding {spec.rounding} is not simulated: it is fitted to a whole model.",
                fix="use nearest or search; `clefq quantize --recipe` can take GPTQModifier later.",
            )
        self.eval_folder = open_set(spec.eval_set)
        self.calibration = None if spec.calibration is None else open_set(spec.calibration)
        if "nvfp4" in spec.schemes and self.calibration is None:
            raise InputError(
                "nvfp4 calibrates activations and needs a calibration set.",
                fix="add --calibration SET, or --schemes fp8,nvfp4a16.",
            )

    @cached_property
    def records(self) -> list[Record]:
        """The records to run, in set order."""
        every = list(self.eval_folder.records())
        if not every:
            raise InputError(f"{self.eval_folder.path} holds no records.", fix="build a set.")
        limit = self.spec.records
        if limit is None or limit >= len(every):
            return every
        # by a hash of the id: the same sample whatever the order of the file
        order = sorted(every, key=lambda r: hashlib.sha256(r.id.encode()).digest())
        chosen = {record.id for record in order[:limit]}
        return [record for record in every if record.id in chosen]

    @cached_property
    def model_sha256(self) -> str:
        """Hash of the checkpoint."""
        return checkpoint_sha256(self.spec.model)

    @cached_property
    def key(self) -> str:
        """Hash of everything but the scheme that decides a measurement."""
        return sha256_bytes(compact_json(self._decides()).encode())

    def scheme_key(self, schemes: Sequence[str]) -> str:
        """The same with the calibration set, where one of the schemes uses it."""
        sha = None
        if "nvfp4" in schemes and self.calibration is not None:
            sha = self.calibration.sha256()
        return sha256_bytes(f"{self.key}\0{sha}".encode())

    def _decides(self) -> dict[str, Any]:
        return {
            "model": self.model_sha256,
            "eval_set": self.eval_folder.sha256(),
            "records": [record.id for record in self.records],
            "engine": asdict(self.spec.engine),
            "device": self._device(),
            "versions": {"clefq": __version__, **{name: _version(name) for name in _LIBRARIES}},
            **({} if self.spec.rounding == "nearest" else {"rounding": self.spec.rounding}),
        }

    def _device(self) -> str:
        import torch

        auto = self.spec.engine.device == "auto"
        return "cuda" if auto and torch.cuda.is_available() else self.spec.engine.device

    @cached_property
    def engine(self) -> TransformersEngine:
        """The loaded BF16 model."""
        from clefq.engines.transformers_engine import open_engine

        self.console.note(f"loading {self.spec.model} with transformers")
        return open_engine(self.spec.model, self.spec.engine)

    @cached_property
    def prompts(self) -> list[BatchPrompt]:
        """The records that can be run."""
        prompts, failed = self.engine.encode(self.records, self.eval_folder.path)
        if failed:
            reason = next(iter(failed[0].errors.values()))
            self.console.note(
                f"left out: {len(failed)} of {len(self.records)} records ({reason.rstrip('.')})"
            )
        if not prompts:
            raise InputError(
                f"no record of {self.eval_folder.path} can be run.", fix="see --max-length."
            )
        return prompts

    @cached_property
    def installer(self) -> Installer:
        """Quantizes blocks of the loaded model; calibrates first where a scheme needs it."""
        from clefq.sensitivity.quantizing import Installer

        divisors = self._divisors() if "nvfp4" in self.spec.schemes else {}
        return Installer(self.engine.backbone, divisors, self.spec.searched)

    def _divisors(self) -> dict[str, float]:
        from clefq.sensitivity.calibrating import StoredScales, input_divisors
        from clefq.sensitivity.schema import load, save

        assert self.calibration is not None
        path, key = self.spec.out / "input-scales.json", self.scheme_key(["nvfp4"])
        if path.is_file():
            with contextlib.suppress(InputError):
                found = load(StoredScales, path)
                if found.key == key:
                    return dict(found.divisors)
        records = list(self.calibration.records())
        media = self.calibration.path
        divisors = input_divisors(self.engine, records, media, self.blocks, self.console)
        save(path, StoredScales(key, divisors))
        return divisors

    def meta(self) -> PredictionsMeta:
        """Provenance of the baseline's answers."""
        spec = self.spec
        model = ModelRef(spec.model, spec.model_id, spec.revision, BASELINE)
        facts = ModelFacts(self.model_sha256, BF16)
        return provenance(model, self.eval_folder, self.engine.info, spec.engine, facts)

    def close(self) -> None:
        """Frees the model, if it was loaded."""
        if "engine" in self.__dict__:
            self.engine.close()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
