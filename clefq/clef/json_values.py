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
    stack: list[tuple[Any, str, int]] = [(value, "", 0)]
    while stack:
        node, path, depth = stack.pop()
        if isinstance(node, str):
            _check_text(node, path, faults)
        elif node is None or isinstance(node, bool | int):
            continue
        elif isinstance(node, float):
            if not math.isfinite(node):
                faults.append(f"{path or 'value'}: the number {node} is not finite")
        elif not isinstance(node, dict | list):
            faults.append(f"{path or 'value'}: a {type(node).__name__} is not JSON")
        elif depth == MAX_DEPTH:
            faults.append(f"{path[:40]}…: nested deeper than {MAX_DEPTH} levels")
        elif isinstance(node, list):
            stack += [(child, f"{path}[{i}]", depth + 1) for i, child in enumerate(node)]
        else:
            for key, child in node.items():
                if not isinstance(key, str):
                    faults.append(f"{path or 'value'}: key {key!r} is not a string")
                    continue
                _check_text(key, f"{path}: key", faults)
                stack.append((child, f"{path}.{key}" if path else key, depth + 1))
    return faults


def _check_text(text: str, path: str, faults: list[str]) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        faults.append(f"{path or 'value'}: lone surrogate at character {error.start}")


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
