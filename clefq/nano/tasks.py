"""The tasks that the miniature is trained and judged on, written by clefq's own generator.

`generate(task, split, count, seed)` yields records that depend on these four and their index
only. A record with an image names it `images/<record id>.png`; `images_of` draws it from that id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clefq.clef.records import Record
from clefq.errors import DefinitionError
from clefq.nano.draw import SPLITS, Draft, Draw
from clefq.nano.lookup_tasks import catalogue, extraction, needle
from clefq.nano.message_tasks import form, policy, rating, request, routing, triage
from clefq.nano.scenes import Scene, draw_scene, pixels, png, scenes

TASKS: dict[str, Callable[[Draw], Draft]] = {
    "catalogue": catalogue,
    "extraction": extraction,
    "form": form,
    "needle": needle,
    "policy": policy,
    "rating": rating,
    "request": request,
    "routing": routing,
    "scenes": scenes,
    "triage": triage,
}


@dataclass(frozen=True, slots=True)
class RecordKey:
    """What a generated record depends on.

    Attributes:
        task: One of `TASKS`.
        split: `train`, `calibration` or `eval`.
        seed: Any whole number.
        index: Position, from 0.
    """

    task: str
    split: str
    seed: int
    index: int

    @property
    def record_id(self) -> str:
        """For example `routing-eval-7-00012`."""
        return f"{self.task}-{self.split}-{self.seed}-{self.index:05d}"

    @classmethod
    def of(cls, record_id: str) -> RecordKey:
        """The key of a record id.

        Raises:
            DefinitionError: The id is none of a generated record.
        """
        parts = record_id.split("-")
        if len(parts) != 4 or not (parts[2] + parts[3]).isdigit():
            raise DefinitionError(f"{record_id!r} is not the id of a generated record.")
        return cls(parts[0], parts[1], int(parts[2]), int(parts[3]))

    def draw(self, level: float = 1.0) -> Draw:
        """The record's random choices, from the start.

        Raises:
            DefinitionError: Unknown task or split.
        """
        if self.task not in TASKS or self.split not in SPLITS:
            raise DefinitionError(
                f"no generated records for task {self.task!r}, split {self.split!r}.",
                fix=f"tasks are {', '.join(TASKS)}; splits are {', '.join(SPLITS)}.",
            )
        return Draw(f"{self.record_id}/{level}", self.split, level)


def generate(task: str, split: str, count: int, seed: int) -> Iterator[Record]:
    """Yields the first `count` records of a task.

    Args:
        task: One of `TASKS`; also the records' cohort.
        split: `train`, `calibration` or `eval`; their records never meet.
        count: How many.
        seed: Any whole number from 0.

    Raises:
        DefinitionError: Unknown task or split.
    """
    for index in range(count):
        yield record_of(RecordKey(task, split, seed, index))


def record_of(key: RecordKey, level: float = 1.0) -> Record:
    """One record; every question has its gold."""
    draw = key.draw(level)
    draft = TASKS[key.task](draw)
    name = key.record_id
    return Record(
        id=name,
        cohort=key.task,
        state=draft.state,
        questions=tuple(question for question, _ in draft.asked),
        images=(f"images/{name}.png",) if draft.images else (),
        gold={question.id: gold for question, gold in draft.asked},
    )


def scene_of(key: RecordKey, level: float = 1.0) -> Scene:
    """What the image of a generated record shows."""
    return draw_scene(key.draw(level))


def images_of(record: Record) -> dict[str, bytes]:
    """The images that a generated record names, drawn anew: path in the set → PNG file."""
    return {path: png(pixels(scene_of(RecordKey.of(record.id)))) for path in record.images}
