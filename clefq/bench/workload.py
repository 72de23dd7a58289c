"""Synthetic records of a wanted size: deterministic, and counted by the real encoder.

Their texts mean nothing; their shape is that of real requests. Schemas recur from record to
record, as they do in production; states never repeat.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clefq.clef.encoding import EncodeSpec, encode_record
from clefq.clef.json_values import render
from clefq.clef.records import Question, Record
from clefq.errors import InputError

if TYPE_CHECKING:
    from clefq.clef.tokenizer import PromptTokenizer

_NO_LIMIT = EncodeSpec(1 << 40)
# how close to the wanted length a text comes whose last word does not fit
TOLERANCE = 4
_SHORT_STATE = 40  # words
_MOST_DIGITS = 6  # of a number of tokens: no model takes more
_TEXT = """
account address after again agent agreed already amount answer april because before box branch
broken card carrier change charge check claim clear close code confirm contract corner country
credit customer damaged date day delay delivery desk detail device door due early email error
evening every expect express fault feature few file first form free friday front full green
hold hour house hundred install invoice issue item january keep label large last late left
letter level line list long loss lunch manager march meter missing model monday month morning
move name near never next night nobody note notice number offer office often old open option
order other owner paid parcel part party pay pending people phone place plan please price
problem promise quarter question quick quiet reach reason receipt refund remain renew repair
reply report request return review right road room rule running same saturday scan school
screen second send service seven sheet shelf ship shop side sign since sister site sixty small
some soon spring staff stamp start state station still stock stop store street summer support
switch table team tell term thank third thursday ticket time today tomorrow total transfer
tuesday twelve under until update upper urgent used user valid value version visit voice wait
warm week weight which white window winter within without word work write wrong year yellow
yesterday
"""
_WORDS = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True)
class Kind:
    """One shape of records.

    Attributes:
        name: Name in tables; the records' cohort.
        tokens: Length of the prompt, a placeholder of one token per image included; None for a
            state of a few sentences, whatever the length then is.
        options: 0 for four questions of all types; otherwise one choice of so many options.
        image: Width and height of the record's image in pixels, or 0 for none.
    """

    name: str
    tokens: int | None
    options: int = 0
    image: int = 0


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("500", 500),
        Kind("1000", 1000),
        Kind("options-77", None, options=77),
        Kind("16k", 16_000),
        Kind("image-640", 500, image=640),
    )
}


def kind_of(name: str | int) -> Kind:
    """The kind of a name in `KINDS`, or of a number of tokens (four questions).

    Raises:
        InputError: Neither.
    """
    known = KINDS.get(str(name))
    if known is not None:
        return known
    if str(name).isdecimal() and len(str(name)) <= _MOST_DIGITS and int(name) > 0:
        return Kind(str(int(name)), int(name))
    raise InputError(
        f"unknown kind of record {name!r}.",
        fix=f"use a number of tokens, or one of {', '.join(KINDS)}.",
    )


def records(
    tokenizer: PromptTokenizer, kinds: Iterable[str | int | Kind], count: int, *, seed: int = 0
) -> list[Record]:
    """Builds records, the same ones for the same arguments.

    Args:
        tokenizer: The checkpoint's tokenizer: lengths are counted with it.
        kinds: Names of `KINDS`, numbers of tokens, or kinds.
        count: Records of each kind.
        seed: Another seed gives other states.

    Returns:
        `count` records per kind, kind by kind. A prompt has exactly the kind's number of tokens
        where its last word allows it, else at most `TOLERANCE` fewer. Images are named, not
        written: see `write_images`.

    Raises:
        InputError: A kind is unknown, or shorter than its questions alone.
    """
    chosen = [kind if isinstance(kind, Kind) else kind_of(kind) for kind in kinds]
    return [_record(tokenizer, kind, n, seed) for kind in chosen for n in range(count)]


def write_images(made: Sequence[Record], folder: Path) -> None:
    """Writes the images that records of `records` name, as PNG files under `folder`."""
    for record in made:
        for name in record.images:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image_bytes(name))


def image_bytes(name: str) -> bytes:
    """The PNG that an image name of `records` stands for (`images/SIDE-SEED-NUMBER.png`)."""
    side, seed, number = map(int, Path(name).stem.split("-"))
    random_numbers = np.random.default_rng([side, seed, number])
    # soft colours with a few sharp rectangles and some grain: it compresses like a screenshot
    down, across = np.mgrid[0:side, 0:side] / side
    channels = [down, across, (down + across) / 2]
    pixels = np.stack([255 * abs(c - random_numbers.random()) for c in channels], axis=-1)
    for _ in range(12):
        top, left = random_numbers.integers(0, side, 2)
        height, width = random_numbers.integers(side // 16 + 1, side // 3 + 2, 2)
        pixels[top : top + height, left : left + width] = random_numbers.integers(0, 256, 3)
    grain = random_numbers.integers(0, 4, pixels.shape)
    return _png((pixels + grain).clip(0, 255).astype(np.uint8))


def _record(tokenizer: PromptTokenizer, kind: Kind, number: int, seed: int) -> Record:
    draw = random.Random(f"{seed} {kind} {number}")
    images = (f"images/{kind.image}-{seed}-{number}.png",) if kind.image else ()
    head = {
        "channel": draw.choice(("email", "chat", "phone")),
        "customer": {"id": draw.randrange(10**6), "plan": draw.choice(("basic", "plus"))},
    }
    fits = _Fits(tokenizer, kind, head, images, f"{kind.name}-{number:05d}")
    if kind.tokens is None:
        return fits.record([draw.choice(_WORDS) for _ in range(_SHORT_STATE)])
    if fits.length([]) > kind.tokens:
        raise InputError(
            f"a record of kind {kind.name} cannot have {kind.tokens} tokens: its questions alone "
            f"take {fits.length([])}.",
            fix="ask for longer records.",
        )
    # words of one token or more: never too few of them
    words = [draw.choice(_WORDS) for _ in range(kind.tokens)]
    return fits.record(_cut(words, kind.tokens, fits))


def _cut(words: list[str], tokens: int, fits: _Fits) -> list[str]:
    """As many of the words as fit, then short ones up to the wanted length."""
    low, high = 0, len(words)
    while low < high:  # the length grows with the words
        middle = (low + high + 1) // 2
        if fits.length(words[:middle]) <= tokens:
            low = middle
        else:
            high = middle - 1
    kept = words[:low]
    for _ in range(tokens - fits.length(kept)):
        longer = [*kept, "a"]
        if fits.length(longer) > tokens:
            break
        kept = longer
    return kept


class _Fits:
    """A record that grows, and its length in tokens.

    The whole prompt is encoded once; from then on only the state, which is all that changes.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        kind: Kind,
        head: dict[str, Any],
        images: tuple[str, ...],
        record_id: str,
    ) -> None:
        self._tokenizer = tokenizer
        self._kind = kind
        self._head = head
        self._images = images
        self._id = record_id
        encoded = encode_record(tokenizer, self.record([]), _NO_LIMIT, [1] * len(images))
        start, end = encoded.state_span
        self._rest = len(encoded.token_ids) - (end - start)

    def record(self, words: list[str]) -> Record:
        return Record(
            id=self._id,
            cohort=self._kind.name,
            state=self._state(words),
            questions=_questions(self._kind.options),
            images=self._images,
        )

    def length(self, words: list[str]) -> int:
        return self._rest + len(self._tokenizer.encode(render(self._state(words))))

    def _state(self, words: list[str]) -> dict[str, Any]:
        # sentences of a dozen words
        sentences = [" ".join(words[at : at + 12]) for at in range(0, len(words), 12)]
        return {**self._head, "text": ". ".join(sentences)}


@cache
def _questions(options: int) -> tuple[Question, ...]:
    if options:
        draw = random.Random(options)
        criteria = {
            f"{draw.choice(_WORDS)}_{draw.choice(_WORDS)}_{number}": None
            for number in range(options)
        }
        return (Question("intent", "choice", "What does the customer want?", criteria),)
    teams = {
        "billing": "Invoices, refunds and payments",
        "delivery": "Parcels, carriers and dates",
        "technical": "Devices and errors",
        "other": None,
    }
    return (
        Question("refund", "noul", "Does the customer ask for a refund?"),
        Question("team", "choice", "Which team should answer?", teams),
        Question("tone", "score", "How upset is the customer?", ["calm", "annoyed", "furious"]),
        Question("urgent", "noul", "Does this need an answer today?"),
    )


def _png(pixels: np.ndarray) -> bytes:
    """An 8-bit RGB image [height, width, 3] as PNG: no imaging library is needed for it."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # filter type 0 before every row
    rows[:, 1:] = pixels.reshape(height, 3 * width)
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows.tobytes(), 6)),
        (b"IEND", b""),
    ]
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
