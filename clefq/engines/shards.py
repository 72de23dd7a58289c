"""Shards of one prediction for job arrays, and the file that they make together.

A shard is every N-th window of the windows that one engine would run, so that its answers are
those of a single run. `merge` refuses what is not the rest of the same run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from clefq.errors import InputError
from clefq.plain_files import sha256_file
from clefq.store.predictions import Predictions, read_how, read_predictions, write_predictions
from clefq.store.sets import SetFolder

_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")
_FREE = ("created_at",)


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several parts of a prediction.

    Attributes:
        index: Which, from 1.
        of: How many there are.
    """

    index: int
    of: int

    @property
    def name(self) -> str:
        """As in its file's name."""
        return f"{self.index}-of-{self.of}"

    def choose(self, windows: Sequence[Any]) -> Sequence[Any]:
        """Its windows: every N-th, so that long records are spread evenly."""
        return windows[self.index - 1 :: self.of]


def parse_shard(text: str) -> Shard:
    """`I/N`, with I from 1 to N.

    Raises:
        InputError: It is not of that form.
    """
    match = _SHARD.fullmatch(text)
    shard = Shard(int(match[1]), int(match[2])) if match else Shard(0, 0)
    if not 1 <= shard.index <= shard.of:
        raise InputError(
            f"--shard is {text!r}.", fix="give I/N with I from 1 to N, for example 1/4."
        )
    return shard


def merge(files: Sequence[Path], folder: SetFolder, out: Path) -> Predictions:
    """Makes one predictions file of all shards of a run.

    Args:
        files: The shards, in any order.
        folder: The set that they are about.
        out: The file to write.

    Raises:
        InputError: They are not the shards of one run on this set; lists every fault.
        PredictionsError: A file is none.
    """
    parts = [read_predictions(path) for path in files]
    hows = [read_how(path) for path in files]
    faults = [
        *_foreign(files, parts, hows),
        *_incomplete(files, hows),
        *_wrong_set(files, parts, folder),
    ]
    if not faults:
        frame = pd.concat([part.frame for part in parts], ignore_index=True)
        faults = list(_wrong_questions(frame, folder))
    if faults:
        raise InputError(
            f"these are not the shards of one run: {faults[0]}.",
            fix="predict what is missing with --shard I/N, and give every shard once.",
            faults=faults[1:],
        )
    meta = replace(parts[0].meta, created_at=min(part.meta.created_at for part in parts))
    merged = [
        {"shard": how["shard"], "sha256": sha256_file(p)} for how, p in _by_shard(hows, files)
    ]
    write_predictions(
        out, _in_set_order(frame, folder), meta, {**hows[0], "shard": None, "merged": merged}
    )
    return read_predictions(out)


def _by_shard(
    hows: Sequence[Mapping[str, Any]], files: Sequence[Path]
) -> list[tuple[Mapping[str, Any], Path]]:
    return sorted(zip(hows, files, strict=True), key=lambda pair: pair[0]["shard"]["index"])


def _foreign(
    files: Sequence[Path], parts: Sequence[Predictions], hows: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """What a shard does not share with the first."""
    first = _identity(parts[0], hows[0])
    for path, part, how in zip(files[1:], parts[1:], hows[1:], strict=True):
        theirs = _identity(part, how)
        for name, value in first.items():
            if theirs[name] != value:
                yield f"{path} has {name} {theirs[name]}, {files[0]} has {value}"


def _identity(part: Predictions, how: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: value for key, value in asdict(part.meta).items() if key not in _FREE}
    return {**values, "options": how.get("spec"), "image settings": how.get("images")}


def _incomplete(files: Sequence[Path], hows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Shards that miss, are there twice, or are none."""
    found: list[Shard] = []
    for path, how in zip(files, hows, strict=True):
        shard = how.get("shard")
        if shard is None:
            yield f"{path} is no shard"
        else:
            found.append(Shard(int(shard["index"]), int(shard["of"])))
    counts = Counter(shard.of for shard in found)
    if len(counts) > 1:
        yield f"they are of {' and '.join(map(str, sorted(counts)))} shards"
    elif counts:
        (of,) = counts
        given = Counter(shard.index for shard in found)
        yield from (f"shard {i}/{of} is missing" for i in range(1, of + 1) if not given[i])
        yield from (f"shard {i}/{of} is there {n} times" for i, n in given.items() if n > 1)


def _wrong_set(
    files: Sequence[Path], parts: Sequence[Predictions], folder: SetFolder
) -> Iterator[str]:
    sha256 = folder.manifest.sha256
    for path, part in zip(files, parts, strict=True):
        if part.meta.eval_set_sha256 != sha256:
            yield f"{path} is not about {folder.path} as it is now ({sha256[:12]})"


def _questions(folder: SetFolder) -> list[tuple[str, str]]:
    return [
        (record.id, question.id) for record in folder.records() for question in record.questions
    ]


def _wrong_questions(frame: pd.DataFrame, folder: SetFolder) -> Iterator[str]:
    there = Counter(zip(frame.record_id, frame.question_id, strict=True))
    wanted = set(_questions(folder))
    for what, pairs in (
        ("is missing", sorted(wanted - there.keys())),
        ("is there more than once", sorted(key for key, n in there.items() if n > 1)),
        ("is not in the set", sorted(there.keys() - wanted)),
    ):
        if pairs:
            record, question = pairs[0]
            more = f", and {len(pairs) - 1:,} more" if len(pairs) > 1 else ""
            yield f"{record}/{question} {what}{more}"


def _in_set_order(frame: pd.DataFrame, folder: SetFolder) -> pd.DataFrame:
    place = {key: number for number, key in enumerate(_questions(folder))}
    keys = zip(frame.record_id, frame.question_id, strict=True)
    order = pd.Series([place[key] for key in keys], index=frame.index).sort_values().index
    return frame.loc[order].reset_index(drop=True)
