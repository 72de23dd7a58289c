"""Rendered images: coloured shapes on a plain ground, drawn and encoded without an image library.

A scene's name holds what it is made from, so the same name always gives the same pixels.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clefq.clef.records import Question
from clefq.nano.draw import Draft, Draw
from clefq.nano.lexicon import SHADES, SHAPES
from clefq.nano.message_tasks import Asked, distinct, noul

if TYPE_CHECKING:
    import numpy as np

CELL = 32  # pixels: one shape per cell, the reach of one merged vision token
_GROUNDS = ((228, 228, 220), (180, 190, 200), (120, 110, 100))
_COLUMNS = ("left", "middle", "right")


@dataclass(frozen=True, slots=True)
class Scene:
    """What an image shows.

    Attributes:
        columns: Width in cells.
        rows: Height in cells.
        ground: Background, RGB.
        shapes: (row, column, shape, colour) of each shape; at most one per cell.
        noise: Largest change of a pixel's channels.
        seed: Of the noise.
    """

    columns: int
    rows: int
    ground: tuple[int, int, int]
    shapes: tuple[tuple[int, int, str, str], ...]
    noise: int
    seed: int


def scenes(draw: Draw) -> Draft:
    """Questions on colour, shape and number of what an image shows."""
    scene = draw_scene(draw)
    asked = [draw.one(_ASKERS)(draw, scene) for _ in range(draw.whole(1, draw.upto(2, 4)))]
    text = draw.one(("A drawing of shapes.", "See the picture.", "One image is attached."))
    state = {"drawing": draw.code(), "note": text} if draw.chance(0.5) else text + " " + draw.code()
    return Draft(state, distinct(asked), images=1)


def draw_scene(draw: Draw) -> Scene:
    """The scene of a record: always the first thing that the record draws."""
    columns, rows = draw.whole(2, draw.upto(2, 4)), draw.whole(2, draw.upto(2, 4))
    cells = [(row, column) for row in range(rows) for column in range(columns)]
    taken = draw.some(cells, draw.whole(1, min(len(cells), draw.upto(2, 7))))
    palette = draw.some(list(SHADES), draw.whole(1, 3))
    shapes = tuple((r, c, draw.one(SHAPES), draw.one(palette)) for r, c in sorted(taken))
    noise = draw.one((0, 10, 30))
    return Scene(columns, rows, draw.one(_GROUNDS), shapes, noise, draw.whole(0, 1 << 30))


def _ask_count(draw: Draw, scene: Scene) -> Asked:
    number = len(scene.shapes)
    levels = [f"{n} shapes" for n in range(1, 8)]
    return Question("count", "score", "How many shapes are there?", levels), str(number - 1)


def _ask_colour(draw: Draw, scene: Scene) -> Asked:
    colour = draw.one(scene.shapes)[3] if draw.chance(0.5) else draw.one(list(SHADES))
    shown = any(shape[3] == colour for shape in scene.shapes)
    question = noul(draw, ("colour",), f"Something in the picture is {colour}.")
    return question, "true" if shown else "false"


def _ask_shape(draw: Draw, scene: Scene) -> Asked:
    kind = draw.one(scene.shapes)[2] if draw.chance(0.5) else draw.one(SHAPES)
    shown = any(shape[2] == kind for shape in scene.shapes)
    question = noul(draw, ("shape",), f"The picture shows a {kind}.")
    return question, "true" if shown else "false"


def _ask_first_colour(draw: Draw, scene: Scene) -> Asked:
    kind = draw.one(scene.shapes)[2]
    colours = [shape[3] for shape in scene.shapes if shape[2] == kind]
    gold = draw.one(colours)  # several of the kind: any of them may be meant
    options = {gold, *draw.some(list(SHADES), draw.whole(2, 5))}
    text = f"Which colour has the {kind}?"
    return Question("which_colour", "choice", text, dict.fromkeys(sorted(options))), gold


_ASKERS = (_ask_count, _ask_colour, _ask_shape, _ask_first_colour)


def pixels(scene: Scene) -> np.ndarray[Any, Any]:
    """The image, uint8 [height, width, 3]."""
    import numpy as np

    height, width = scene.rows * CELL, scene.columns * CELL
    image = np.empty((height, width, 3), dtype=np.int16)
    image[:] = scene.ground
    for row, column, kind, colour in scene.shapes:
        cell = image[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
        cell[_mask(kind)] = SHADES[colour]
    if scene.noise:
        # A fixed linear congruential sequence: no library's random stream is involved.
        count = image.size
        steps = np.arange(count, dtype=np.uint64) + np.uint64(scene.seed)
        mixed = (steps * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)) >> 33
        noise = (mixed % np.uint64(2 * scene.noise + 1)).astype(np.int16) - scene.noise
        image += noise.reshape(image.shape)
    return np.clip(image, 0, 255).astype(np.uint8)


def _mask(kind: str) -> np.ndarray[Any, Any]:
    import numpy as np

    centre, radius = (CELL - 1) / 2, 11.5
    y, x = np.mgrid[0:CELL, 0:CELL] - centre
    far = np.hypot(x, y)
    masks = {
        "circle": far <= radius,
        "square": (abs(x) <= radius - 1.5) & (abs(y) <= radius - 1.5),
        "triangle": (y <= radius - 1) & (abs(x) <= (y + radius) / 1.9),
        "diamond": abs(x) + abs(y) <= radius + 1,
        "cross": ((abs(x) <= 3) | (abs(y) <= 3)) & (abs(x) <= radius) & (abs(y) <= radius),
        "ring": (far <= radius) & (far >= radius - 4),
    }
    return masks[kind]


def png(image: np.ndarray[Any, Any]) -> bytes:
    """A PNG file of uint8 [height, width, 3]."""
    height, width, _ = image.shape
    lines = b"".join(b"\0" + image[row].tobytes() for row in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    body = name + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
