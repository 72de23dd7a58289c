"""Prompts of every size and kind, run before the first request is let in.

On a GPU the first prompt of a new shape compiles or tunes kernels for seconds; a server that is
`ready` has done that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from clefq.clef.encoding import EncodeSpec
from clefq.clef.records import Record, parse_record
from clefq.errors import InputError
from clefq.serving.fleet.wire import EngineAsk
from clefq.serving.prompts import PromptMaker
from clefq.serving.settings import ServeSettings

_LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
# Width and height: the smallest useful one, a photograph, and a tall page.
_PICTURES = ((64, 64), (1024, 768), (600, 1400))


def warmup_prompts(
    folder: Path, settings: ServeSettings, *, cpu: bool
) -> Iterator[list[EngineAsk]]:
    """Groups of prompts; those of one group run at the same time.

    Args:
        folder: The checkpoint.
        settings: Its limits decide how long prompts get and whether there are images.
        cpu: Nothing is compiled there, so that a few short prompts do.
    """
    maker = PromptMaker(folder, settings.max_images)
    if not cpu:
        lengths = {min(length, settings.max_length) for length in _LENGTHS}
        # one that is prefilled in chunks
        lengths.add(min(settings.max_length, 2 * settings.step_tokens))
        for length in sorted(lengths):
            yield list(_asks(maker, [_record("short", words=length)], length))
    small = [_record(kind, words=40) for kind in _QUESTIONS]
    for copies in (1,) if cpu else (1, 2, 4, 8):
        yield list(_asks(maker, small * copies, settings.max_length))
    if settings.max_images:
        yield from _with_images(maker, settings, _PICTURES[:1] if cpu else _PICTURES)


def _asks(maker: PromptMaker, records: Sequence[Record], length: int) -> Iterator[EngineAsk]:
    spec = EncodeSpec(length, truncate_state=True)
    for number, record in enumerate(records):
        # where the questions alone are longer than the limit, no request can have them either
        with suppress(InputError):
            yield EngineAsk.of(-1 - number, maker.prompt(record, (), spec))


def _with_images(
    maker: PromptMaker, settings: ServeSettings, sizes: Sequence[tuple[int, int]]
) -> Iterator[list[EngineAsk]]:
    from PIL import Image

    for size in sizes:
        for count in sorted({1, settings.max_images}):
            images = [Image.new("RGB", size, (90, 120, 150))] * count
            record = _record("short", words=40, images=count)
            with suppress(InputError):
                prompt = maker.prompt(record, images, EncodeSpec(settings.max_length))
                yield [EngineAsk.of(-1, prompt)]


def _record(kind: str, *, words: int, images: int = 0) -> Record:
    value: dict[str, Any] = {
        "id": kind,
        "cohort": "warm-up",
        "state": "The parcel has not arrived and nobody answers. " * (words // 4 + 1),
        "questions": _QUESTIONS[kind],
    }
    if images:
        value["images"] = [f"{number}.png" for number in range(images)]
    return parse_record(value, "the warm-up")


_NOUL = {"type": "noul", "instructions": "Is something late?"}
_LEVELS = {"type": "score", "criteria": [f"level {number}" for number in range(10)]}
_QUESTIONS: dict[str, dict[str, Any]] = {
    "short": {"late": _NOUL},
    "questions": {f"q{number}": _NOUL for number in range(16)},
    "options": {"which": {"type": "choice", "criteria": {f"o{n}": None for n in range(100)}}},
    "levels": {"how": _LEVELS, "late": _NOUL},
}
