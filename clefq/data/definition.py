"""Set definitions: YAML files in `calibration/` and `evals/`, or a user's own.

Strict: an unknown key, source, split or option is an error, and every fault of a file is reported
at once. The definition is part of the set's manifest, and with the seed it fixes the set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from clefq.data.hub_files import HubChoice
from clefq.data.sources import SOURCES
from clefq.errors import DefinitionError
from clefq.store.atomic import can_name_folder
from clefq.store.data_files import DataFolder, data_folder
from clefq.store.reading import Rule, Stored, at_least, expected, read_value
from clefq.store.sets import Role
from clefq.store.yaml_text import load_yaml, yaml_fault

SCHEMA_VERSION = 1
FOLDERS: dict[Role, DataFolder] = {"calibration": "calibration", "eval": "evals"}

Dimension = Literal["label", "length", "options", "cohort"]
Keys = Literal["natural", "letters", "opaque"]
Order = Literal["natural", "shuffled"]
Layout = Literal["natural", "decision-index"]
Allocation = Literal["proportional", "equal"]
Positive = Annotated[int, at_least(1)]


@dataclass(frozen=True, slots=True)
class SourceUse(Stored):
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
    count: Positive | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    hub: HubChoice | None = None
    cohort: str | None = None
    stratify: tuple[Dimension, ...] = ("label", "length")
    allocate: Allocation = "proportional"
    keys: Keys = "natural"
    order: Order = "natural"
    layout: Layout = "natural"
    min_tokens: Positive | None = None
    max_tokens: Positive | None = None
    token_budget: Positive | None = None

    @property
    def title(self) -> str:
        """Source and split, as messages name them; a user's own data have no split."""
        return f"{self.source} {self.split}".rstrip()

    def faults(self) -> Iterator[str]:
        """What does not fit the source."""
        source = SOURCES.get(self.source)
        if source is None:
            yield f"source {self.source!r} is unknown; known: {', '.join(SOURCES)}"
            return
        if source.splits and self.split not in source.splits:
            known = ", ".join(source.splits)
            yield f"split {self.split!r} is unknown; {self.source} has {known}"
        found: list[str] = []
        read_value(source.options, self.options, found, "options")
        yield from found
        if self.hub is not None and source.origin != "public":
            yield f"hub: {self.source} is not on the hub"
        if self.order == "shuffled" and self.keys == "natural":
            yield "order: shuffled needs keys: letters or opaque"
        if len(set(self.stratify)) != len(self.stratify):
            yield "stratify names a dimension twice"


@dataclass(frozen=True, slots=True)
class Decontaminate(Stored):
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
    ngram: Positive = 5
    threshold: Annotated[
        float,
        Rule(
            lambda share: 0 < share <= 1,
            "must be above 0 and at most 1",
            {"exclusiveMinimum": 0, "maximum": 1},
        ),
    ] = 0.8
    canaries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Definition(Stored):
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

    name: Annotated[str, Rule(can_name_folder, "cannot be a folder's name")]
    role: Role
    sources: Annotated[tuple[SourceUse, ...], Rule(bool, "is empty", {"minItems": 1})]
    description: str = ""
    seed: str = "clefq-1"
    max_tokens: Positive | None = 16384
    decontaminate: Decontaminate = Decontaminate()
    metrics: tuple[str, ...] = ()
    schema_version: Annotated[int, expected(SCHEMA_VERSION)] = SCHEMA_VERSION

    def faults(self) -> Iterator[str]:
        """Metrics that nobody can compute."""
        if self.metrics and self.role == "calibration":
            yield "metrics belong to eval sets only"
        unknown = [name for name in self.metrics if name.split("@")[0] not in metric_names()]
        if unknown:
            yield f"metrics names {', '.join(unknown)}, which metrics/cards.yaml does not know"


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
    definition = read_value(Definition, value, faults)
    if definition is None:
        raise DefinitionError(
            f"{path}: {faults[0]}.",
            fix="see docs/data.md for the format of definitions"
            + (
                "; YAML reads no, yes, on and off as false and true: quote them."
                if any(fault.endswith(("found False", "found True")) for fault in faults)
                else "."
            ),
            faults=faults[1:],
        )
    if definition.role != role:
        raise DefinitionError(
            f"{path}: role is {definition.role}, but `clefq build {role}` was asked for.",
            fix=f"copy it with `role: {role}` and a name of its own, and build the copy "
            f"`--against` the {definition.role} set.",
        )
    return definition


def metric_names() -> frozenset[str]:
    """Names of the metric cards, without their parameters."""
    text = (data_folder("metrics") / "cards.yaml").read_text(encoding="utf-8")
    return frozenset(name.split("@")[0] for name in yaml.safe_load(text)["metrics"])


def source_options(use: SourceUse) -> Any:
    """The source's options dataclass; the definition has been checked."""
    faults: list[str] = []
    options = read_value(SOURCES[use.source].options, use.options, faults)
    if options is None:
        raise DefinitionError(f"{use.source}: {faults[0]}.", faults=faults[1:])
    return options
