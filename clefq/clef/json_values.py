"""JSON values: strict reading, what counts as JSON, and the text a value has in a prompt."""

from __future__ import annotations

import json
import math
from typing import Any

MAX_DEPTH = 200


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
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def json_faults(value: Any) -> list[str]:
    """Every way in which a Python value is not sound JSON, with the path to it.

    Refused: types JSON does not have, keys that are not strings, numbers that are not finite,
    lone surrogates (they have no UTF-8 form) and nesting deeper than `MAX_DEPTH`.
    """
    faults: list[str] = []
    stack: list[tuple[Any, str, int]] = [(value, "value", 0)]
    while stack:
        node, path, depth = stack.pop()
        if not isinstance(node, dict | list):
            _check_scalar(node, path, faults)
        elif depth == MAX_DEPTH:
            faults.append(f"{path[:40]}… is nested deeper than {MAX_DEPTH} levels")
        elif isinstance(node, list):
            stack += [(child, f"{path}[{i}]", depth + 1) for i, child in enumerate(node)]
        else:
            for key, child in node.items():
                if isinstance(key, str):
                    _check_scalar(key, f"{path}: key", faults)
                    stack.append((child, f"{path}.{key}", depth + 1))
                else:
                    faults.append(f"{path}: key {key!r} is not a string")
    return faults


def _check_scalar(node: Any, path: str, faults: list[str]) -> None:
    if isinstance(node, str):
        if not node.isascii():
            try:
                node.encode("utf-8")
            except UnicodeEncodeError as error:
                faults.append(f"{path}: lone surrogate at character {error.start}")
    elif isinstance(node, float):
        if not math.isfinite(node):
            faults.append(f"{path}: the number {node} is not finite")
    elif node is not None and not isinstance(node, bool | int):
        faults.append(f"{path}: a {type(node).__name__} is not JSON")


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
