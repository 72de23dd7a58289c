"""Layouts that do not describe their prompt, in all the ways that a client can get them wrong."""

from __future__ import annotations

import random
from typing import Any

from clefq.clef.encoding import Encoded
from clefq.serving import schema_layout
from clefq.serving.layout import LAYOUT_KEY

JUNK: list[Any] = [
    None,
    True,
    -1,
    10**12,
    0.5,
    float("nan"),
    "text",
    b"bytes",
    [],
    [None],
    [[1, 2]],
    {},
    {"a": 1},
    [10**9] * 4,
    [-1, 0],
    ["0", "1"],
]


def broken_layout(rng: random.Random, encoded: Encoded) -> Any:
    """A layout with one fault; now and then it stays sound by chance."""
    value: Any = schema_layout(encoded)
    body = value[LAYOUT_KEY]
    key = rng.choice(sorted(body))
    how = rng.randrange(7)
    if how == 0:
        body[key] = rng.choice(JUNK)
    elif how == 1:
        del body[key]
    elif how == 2:
        body[rng.choice(["extra", "", "Types"])] = 1
    elif how == 3:
        return rng.choice([*JUNK, {LAYOUT_KEY: rng.choice(JUNK)}])
    elif how == 4 and isinstance(body[key], list):
        body[key] = body[key] * rng.choice([2, 50])
    elif how == 5 and isinstance(body[key], list):
        rng.shuffle(body[key])
    elif isinstance(body[key], list):
        index = rng.randrange(len(body[key]))
        body[key][index] += rng.choice([-10_000, -37, -1, 1, 2, 19, 10**15])
    return value
