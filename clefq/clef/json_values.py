"""JSON values: strict reading, what counts as JSON, and the text a value has in a prompt."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from clefq.plain_files import compact_json

MAX_DEPTH = 200
# Characters shown of a key, and of a whole path, in a message.
_SHOWN_KEY = 80
_SHOWN_PATH = 300


class DuplicateKeyError(ValueError):
    """A JSON object names the same key twice, so that one of the values would be lost."""


def load_json(text: str) -> Any:
    """Decodes JSON, refusing doubled keys and the non-JSON constants NaN and Infinity.

    Raises:
        DuplicateKeyError: An object holds a key twice.
        ValueError: Not JSON (`json.JSONDecodeError`), or a number that is not finite.
        RecursionError: Nested too deeply to be read.
    """
    return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)


def render(value: Any) -> str:
    """The text of a JSON value in the prompt.

    A string is itself; anything else is JSON with sorted keys, no spaces and non-ASCII kept.
    """
    if isinstance(value, str):
        return value
    return compact_json(value)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong inside a JSON value.

    Attributes:
        path: Keys and list indices that lead from the value to the place.
        message: What is wrong there, without the place.
    """

    path: tuple[str | int, ...]
    message: str


def json_faults(value: Any) -> list[str]:
    """Every way in which a Python value is not sound JSON, with the path to it.

    Refused: types JSON does not have, keys that are not strings, numbers that are not finite,
    lone surrogates (they have no UTF-8 form) and nesting deeper than `MAX_DEPTH`.
    """
    return [f"{_shown(fault.path)}: {fault.message}" for fault in find_faults(value)]


def find_faults(value: Any) -> list[Fault]:
    """The faults of `json_faults`, each with its path as keys and indices."""
    faults: list[Fault] = []
    stack: list[tuple[Any, _Place, int]] = [(value, None, 0)]
    while stack:
        node, place, depth = stack.pop()
        if not isinstance(node, dict | list):
            _check_scalar(node, place, faults)
        elif depth == MAX_DEPTH:
            faults.append(Fault(_path(place), f"nested deeper than {MAX_DEPTH} levels"))
        elif isinstance(node, list):
            stack += [(child, (place, i), depth + 1) for i, child in enumerate(node)]
        else:
            for key, child in node.items():
                if isinstance(key, str):
                    _check_scalar(key, place, faults, "key: ")
                    stack.append((child, (place, key), depth + 1))
                else:
                    faults.append(Fault(_path(place), f"key {key!r} is not a string"))
    return faults


# A place is linked to the one above it: written out for every node, the path of a long key with
# many values below it would take the product of the two in memory.
_Place = tuple[Any, "str | int"] | None


def _path(place: _Place) -> tuple[str | int, ...]:
    keys: list[str | int] = []
    while place is not None:
        place, key = place
        keys.append(key)
    return tuple(reversed(keys))


def _shown(path: tuple[str | int, ...]) -> str:
    steps = [f"[{key}]" if isinstance(key, int) else f".{key[:_SHOWN_KEY]}" for key in path]
    text = "value" + "".join(steps)
    return text if len(text) <= _SHOWN_PATH else f"{text[:_SHOWN_PATH]}…"


def _check_scalar(node: Any, place: _Place, faults: list[Fault], what: str = "") -> None:
    message = ""
    if isinstance(node, str):
        if not node.isascii():
            try:
                node.encode("utf-8")
            except UnicodeEncodeError as error:
                message = f"lone surrogate at character {error.start}"
    elif isinstance(node, float):
        if not math.isfinite(node):
            message = f"the number {node} is not finite"
    elif node is not None and not isinstance(node, bool | int):
        message = f"a {type(node).__name__} is not JSON"
    if message:
        faults.append(Fault(_path(place), what + message))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DuplicateKeyError(f"key {key!r} appears twice in one object")
            seen.add(key)
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
