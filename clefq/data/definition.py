"""Set definitions: YAML files in `calibration/` and `evals/`, or a user's own.

Strict: an unknown key, source, split or option is an error, and every fault of a file is reported
at once. The definition is part of the set's manifest, and with the seed it fixes the set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from clefq.data.hub_files import HubChoice
from clefq.data.sources import SOURCES
from clefq.errors import DefinitionError
from clefq.store.atomic import can_name_folder
from clefq.store.data_files import DataFolder, data_folder
from clefq.store.sets import Role
from clefq.store.strict import read_strict
from clefq.store.yaml_text import load_yaml, yaml_fault

SCHEMA_VERSION = 1
FOLDERS: dict[Role, DataFolder] = {"calibration": "calibration", "eval": "evals"}

Dimension = Literal["label", "length", "options", "cohort"]
Keys = Literal["natural", "letters", "opaque"]
Order = Literal["natural", "shuffled"]
Layout = Literal["natural", "decision-index"]
Allocation = Literal["proportional", "equal"]


@dataclass(frozen=True, slots=True)
class SourceUse:
    """Records taken from one split of one source.

    Attributes:
        source: Name of the source (`clefq.data.sources.SOURCES`).
        split: Split of the source.
        count: Records to take; None takes all that remain after decontamination.
        options: The source's own options.
        hub: Another data set of the hub that holds the source, or None.
        cohort: Replaces the records' cohort, or None to keep the source's.
        stratify: Dimensions that the sample keeps in proportion, the most important first.
        allocate: `proportional` to the pool, or `equal` shares along the first dimension.
        keys: Option keys of choice questions: the source's own, letters, or `option_0`….
        order: `shuffled` deals the options to letters or opaque keys in an order of their own
            per record; natural keys cannot be shuffled, because Clef sorts options by key.
        layout: `decision-index` moves the state into the instructions of a question `q1`.
        min_tokens: Shortest prompt taken.
        max_tokens: Longest prompt taken.
        token_budget: Most tokens of all records from here together.
    """

    source: str
    split: str = ""
    count: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    hub: HubChoice | None = None
    cohort: str | None = None
    stratify: tuple[Dimension, ...] = ("label", "length")
    allocate: Allocation = "proportional"
    keys: Keys = "natural"
    order: Order = "natural"
    layout: Layout = "natural"
    min_tokens: int | None = None
    max_tokens: int | None = None
    token_budget: int | None = None

    @property
    def title(self) -> str:
        """Source and split, as messages name them; a user's own data have no split."""
        return f"{self.source} {self.split}".rstrip()


@dataclass(frozen=True, slots=True)
class Decontaminate:
    """What is compared.

    Attributes:
        within: Remove duplicates inside the set.
        held_out: For calibration: compare with the held-out splits of the same sources.
        near: Look for near duplicates besides exact and normalised ones.
        ngram: Characters in a shingle.
        threshold: Jaccard similarity from which two records are near duplicates.
        canaries: Further strings that forbid calibration on a source.
    """

    within: bool = True
    held_out: bool = True
    near: bool = True
    ngram: int = 5
    threshold: float = 0.8
    canaries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Definition:
    """A set to build.

    Attributes:
        name: Name of the set and of its folder.
        role: `calibration` or `eval`.
        description: One or two sentences for people.
        sources: What it is made of, in the order of the file.
        seed: Text that fixes the sample.
        max_tokens: Longest prompt of any record; longer ones are passed over.
        decontaminate: What is compared.
        metrics: For eval sets: the metrics that matter for it (names of the metric cards).
        schema_version: Version of this format.
    """

    name: str
    role: Role
    sources: tuple[SourceUse, ...]
    description: str = ""
    seed: str = "clefq-1"
    max_tokens: int | None = 16384
    decontaminate: Decontaminate = Decontaminate()
    metrics: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION


def definition_path(role: Role, name_or_file: str) -> Path:
    """Path of a shipped definition (by name) or of a user's file.

    Raises:
        DefinitionError: There is no such file; lists the names that are shipped.
    """
    given = Path(name_or_file)
    if given.suffix in (".yaml", ".yml"):
        if not given.is_file():
            raise DefinitionError(f"no definition {given}.")
        return given
    folder = data_folder(FOLDERS[role])
    path = folder / f"{name_or_file}.yaml"
    if not path.is_file():
        if given.is_file():
            raise DefinitionError(
                f"{given} is no definition (.yaml).",
                fix="write one that names the file as its source; docs/data.md shows how.",
            )
        names = ", ".join(sorted(p.stem for p in folder.glob("*.yaml"))) or "none"
        raise DefinitionError(
            f"no {role} definition {name_or_file!r}.",
            fix=f"name a .yaml file or one of: {names}.",
        )
    return path


def load_definition(path: Path, role: Role) -> Definition:
    """Reads a definition.

    Raises:
        DefinitionError: Not YAML, or not of this schema; lists every fault.
    """
    try:
        value = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f"cannot read {path}: {error}.") from error
    except yaml.YAMLError as error:
        raise DefinitionError(
            f"{path} {yaml_fault(error)}",
            fix="put texts that hold a question mark, colon or comma in quotes.",
        ) from error
    faults: list[str] = []
    definition = read_strict(Definition, value, faults)
    if definition is not None:
        faults += definition_faults(definition, role)
    if definition is None or faults:
        raise DefinitionError(
            f"{path}: {faults[0]}.",
            fix=_fix(definition, role),
            faults=faults[1:],
        )
    return definition


def _fix(definition: Definition | None, role: Role) -> str:
    if definition is None or definition.role == role:
        return "see docs/data.md for the format of definitions."
    return (
        f"copy it with `role: {role}` and a name of its own, and build the copy "
        f"`--against` the {definition.role} set."
    )


def definition_faults(definition: Definition, role: Role) -> list[str]:
    """Faults that types cannot show, each with its path."""
    found = []
    if definition.schema_version != SCHEMA_VERSION:
        found.append(f"schema_version is {definition.schema_version}, expected {SCHEMA_VERSION}")
    if definition.role != role:
        found.append(f"role is {definition.role}, but `clefq build {role}` was asked for")
    name = definition.name
    if not can_name_folder(name):
        found.append(f"name {name!r} cannot be a folder's name")
    if not definition.sources:
        found.append("sources is empty")
    if not 0 < definition.decontaminate.threshold <= 1:
        found.append("decontaminate.threshold must be above 0 and at most 1")
    if definition.decontaminate.ngram < 1:
        found.append("decontaminate.ngram must be at least 1")
    if definition.metrics and definition.role == "calibration":
        found.append("metrics belong to eval sets only")
    unknown = [name for name in definition.metrics if name.split("@")[0] not in metric_names()]
    if unknown:
        found.append(f"metrics names {', '.join(unknown)}, which metrics/cards.yaml does not know")
    found += _number_faults("", definition.max_tokens, "max_tokens")
    for index, use in enumerate(definition.sources):
        found += _use_faults(use, f"sources.{index}")
    return found


def _use_faults(use: SourceUse, where: str) -> list[str]:
    source = SOURCES.get(use.source)
    if source is None:
        known = ", ".join(SOURCES)
        return [f"{where}.source {use.source!r} is unknown; known: {known}"]
    found: list[str] = []
    if source.splits and use.split not in source.splits:
        known = ", ".join(source.splits)
        found.append(f"{where}.split {use.split!r} is unknown; {use.source} has {known}")
    read_strict(source.options, use.options, found, f"{where}.options")
    if use.hub is not None:
        found += use.hub.faults(f"{where}.hub")
        if source.origin != "public":
            found.append(f"{where}.hub: {use.source} is not on the hub")
    if use.order == "shuffled" and use.keys == "natural":
        found.append(f"{where}.order: shuffled needs keys: letters or opaque")
    if len(set(use.stratify)) != len(use.stratify):
        found.append(f"{where}.stratify names a dimension twice")
    for name in ("count", "min_tokens", "max_tokens", "token_budget"):
        found += _number_faults(f"{where}.", getattr(use, name), name)
    return found


def _number_faults(where: str, value: int | None, name: str) -> list[str]:
    return [f"{where}{name} must be at least 1"] if value is not None and value < 1 else []


def metric_names() -> frozenset[str]:
    """Names of the metric cards, without their parameters."""
    text = (data_folder("metrics") / "cards.yaml").read_text(encoding="utf-8")
    return frozenset(name.split("@")[0] for name in yaml.safe_load(text)["metrics"])


def source_options(use: SourceUse) -> Any:
    """The source's options dataclass; the definition has been checked."""
    faults: list[str] = []
    options = read_strict(SOURCES[use.source].options, use.options, faults)
    if options is None:
        raise DefinitionError(f"{use.source}: {faults[0]}.", faults=faults[1:])
    return options
