"""Questions about a captioned photo, shared by the sources that have photos and captions.

A photo gets up to four questions: whether a caption describes it (noul; half the captions are
another photo's), which of four captions describes it (choice), how far a caption fits (score:
another photo's, its own joined with another's, its own), and the photo's orientation (choice).
Which captions are shown is decided by the photo's id alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from clefq.clef.records import Question, Record
from clefq.data.readers import Row, RowError
from clefq.data.sources.base import Example, choice, letters, noul, score
from clefq.data.tokens import image_size
from clefq.errors import DefinitionError
from clefq.plain_files import stable_key, stable_order

STATE = "One photo is attached."
ORIENTATION = choice(
    "orientation",
    "Which shape does the photo have?",
    {"landscape": "wider than high", "portrait": "higher than wide", "square": "as wide as high"},
)
LEVELS = (
    "The caption describes another photo.",
    "Part of the caption describes the photo, part does not.",
    "The caption describes the photo.",
)
OTHERS = 3


def link_captions(rows: Iterable[Row]) -> Iterator[Row]:
    """Adds to each row three captions of other photos."""
    kept = list(rows)
    captions = {
        row.value["image"]: row.value["captions"][0]
        for row in kept
        if row.fault is None and row.value["captions"]
    }
    pool = sorted(set(captions.values()))
    for row in kept:
        if row.fault is not None:
            yield row
            continue
        own = set(row.value["captions"])
        others = _pick(pool, own, row.value["image"])
        yield Row(row.file, row.number, {**row.value, "others": others})


def _pick(pool: Sequence[str], own: set[str], key: str) -> list[str]:
    """Three captions from the pool that are not the photo's own, by hashed probes."""
    found: list[str] = []
    for probe in range(64 * OTHERS):
        if not pool or len(found) == OTHERS:
            break
        caption = pool[int.from_bytes(stable_key(key, str(probe))[:8], "big") % len(pool)]
        if caption not in own and caption not in found:
            found.append(caption)
    return found


def caption_example(
    value: dict[str, Any], record_id: str, cohort: str, questions: Sequence[str]
) -> Example:
    """The record of one photo.

    Args:
        value: {image: path in the source, file: Path or bytes, captions, others}.
        record_id: Id of the record.
        cohort: Cohort of the record.
        questions: Which of `describes`, `caption`, `fit`, `orientation` are asked.

    Raises:
        RowError: No caption, too few other captions, or not an image.
    """
    own = [caption.strip() for caption in value["captions"] if caption.strip()]
    if not own:
        raise RowError("no caption")
    if len(value["others"]) < OTHERS:
        raise RowError("too few captions of other photos")
    asked = [_ASK[name](own, value["others"], record_id) for name in questions if name in _ASK]
    if "orientation" in questions:
        asked.append((ORIENTATION, _orientation(value)))
    name = "images/" + record_id + Path(value["image"]).suffix.lower()
    record = Record(
        id=record_id,
        cohort=cohort,
        state=STATE,
        questions=tuple(question for question, _ in asked),
        images=(name,),
        gold={question.id: answer for question, answer in asked},
    )
    return Example(record, label=asked[0][1], media={name: value["file"]})


def _describes(own: list[str], others: list[str], key: str) -> tuple[Question, str]:
    right = stable_key(key, "describes")[0] % 2 == 0
    text = own[0] if right else others[0]
    question = noul("describes", f"Does this caption describe the photo? Caption: {text}")
    return question, "true" if right else "false"


def _caption(own: list[str], others: list[str], key: str) -> tuple[Question, str]:
    texts = stable_order([own[-1], *others], f"{key} caption")
    keys = letters(len(texts))
    question = choice(
        "caption", "Which caption describes the photo?", dict(zip(keys, texts, strict=True))
    )
    return question, keys[texts.index(own[-1])]


def _fit(own: list[str], others: list[str], key: str) -> tuple[Question, str]:
    level = stable_key(key, "fit")[0] % 3
    text = (others[1], f"{own[0]} {others[1]}", own[0])[level]
    question = score("fit", f"How far does this caption fit the photo? Caption: {text}", LEVELS)
    return question, str(level)


def _orientation(value: dict[str, Any]) -> str:
    file = value["file"]
    if not isinstance(file, Path):
        raise RowError("the photo is no file")
    try:
        width, height = image_size(file)
    except DefinitionError as error:
        raise RowError(error.message) from error
    if width == height:
        return "square"
    return "landscape" if width > height else "portrait"


_ASK = {"describes": _describes, "caption": _caption, "fit": _fit}
