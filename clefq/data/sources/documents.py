"""Long texts of a folder: one subfolder per kind (legal, news, science …), UTF-8 `.txt` files.

Makes long calibration states out of texts that one has. Each text is cut at blanks into pieces
whose lengths are spread evenly on a logarithmic scale between two limits, so that every length
band is met; the question asks for the kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefq.data.readers import Row, RowError
from clefq.data.sources.base import Example, ReadSpec, Source, choice, single
from clefq.plain_files import stable_key
from clefq.store.reading import Stored

INSTRUCTIONS = "Which kind of text is this?"


@dataclass(frozen=True, slots=True)
class Options(Stored):
    """Options of a definition.

    Attributes:
        folder: Folder under the data folder.
        min_chars: Shortest piece in characters; what is left over at a text's end is dropped
            when it is shorter.
        max_chars: Longest piece in characters.
    """

    folder: str = "documents"
    min_chars: int = 4_000
    max_chars: int = 350_000


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {kind, kinds, text}, one per piece."""
    options: Options = spec.options
    kinds = sorted({name.split("/")[0] for name in spec.files})
    for name in spec.files:
        try:
            text = (spec.folder / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            yield Row(name, 1, None, "not UTF-8")
            continue
        for number, piece in enumerate(pieces(text, name, options), start=1):
            value = {"kind": name.split("/")[0], "kinds": kinds, "text": piece}
            yield Row(name, number, value)


def pieces(text: str, key: str, options: Options) -> Iterator[str]:
    """Cuts a text into consecutive pieces, at blanks where there are any."""
    start, number = 0, 0
    while start < len(text):
        share = int.from_bytes(stable_key(key, str(number))[:8], "big") / 2**64
        low, high = math.log(options.min_chars), math.log(options.max_chars)
        end = min(len(text), start + round(math.exp(low + share * (high - low))))
        if end < len(text):
            blank = text.rfind(" ", start + 1, end)
            end = blank if blank > start + options.min_chars // 2 else end
        piece = text[start:end].strip()
        if len(piece) >= options.min_chars // 2:
            yield piece
        start, number = end, number + 1


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Not on the hub."""
    raise RowError("not on the hub")


def build(value: dict[str, Any], record_id: str, options: Options) -> Iterable[Example]:
    """One record: the piece, one choice question."""
    if len(value["kinds"]) < 2:
        raise RowError("only one kind of text in the folder; make a subfolder per kind")
    question = choice("kind", INSTRUCTIONS, dict.fromkeys(value["kinds"]))
    cohort = f"{Path(options.folder).name}/{value['kind']}"
    yield single(record_id, cohort, value["text"], question, value["kind"])


SOURCE = Source(
    name="documents",
    title="Long texts of a folder",
    licence="see the folder's own notice",
    attribution=None,
    revision=None,
    splits={"all": (("*/*.txt",),)},
    hub=None,
    read=read,
    from_hub=from_hub,
    build=build,
    options=Options,
)
