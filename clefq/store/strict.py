"""Reads plain JSON or YAML values into frozen dataclasses, strictly, reporting every fault.

Nothing is guessed: an unknown key, a missing key without default, or a value of another type is
a fault with its path (`sources.0.count`). The dataclass's own type hints are the schema.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def read_strict(cls: type[T], value: object, faults: list[str], where: str = "") -> T | None:
    """Builds `cls` from `value`.

    Args:
        cls: A dataclass whose fields are str, int, float, bool, Literal, nested dataclasses,
            `tuple[X, ...]`, `Mapping[str, X]`, unions with None, or Any.
        value: What was parsed from the file.
        faults: Every fault found is appended, one line each, with its path.
        where: Path of `value` inside the file.

    Returns:
        The instance, or None if a fault was found.
    """
    before = len(faults)
    if not isinstance(value, Mapping):
        faults.append(f"{where or 'the file'} must be a mapping, found {_kind(value)}")
        return None
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    for key in value:
        if key not in known:
            names = ", ".join(known)
            faults.append(f"{_join(where, str(key))} is unknown; known here: {names}")
    built: dict[str, Any] = {}
    for name, field in known.items():
        if name in value:
            built[name] = _read(hints[name], value[name], faults, _join(where, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            faults.append(f"{_join(where, name)} is missing")
    return cls(**built) if len(faults) == before else None


def to_plain(value: Any) -> Any:
    """The JSON form of a dataclass tree: the inverse of `read_strict`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def _read(hint: Any, value: object, faults: list[str], where: str) -> Any:
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _read_union(hint, value, faults, where)
    if origin is typing.Literal:
        allowed = typing.get_args(hint)
        if value in allowed and not isinstance(value, bool):
            return value
        words = ", ".join(str(item) for item in allowed)
        faults.append(f"{where} is {value!r}, expected one of {words}")
        return None
    if origin is tuple:
        return _read_tuple(typing.get_args(hint)[0], value, faults, where)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _read_mapping(typing.get_args(hint)[1], value, faults, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return read_strict(hint, value, faults, where)
    return _read_scalar(hint, value, faults, where)


def _read_union(hint: Any, value: object, faults: list[str], where: str) -> Any:
    arms = typing.get_args(hint)
    if value is None and type(None) in arms:
        return None
    arms = tuple(arm for arm in arms if arm is not type(None))
    if len(arms) == 1:
        return _read(arms[0], value, faults, where)
    for arm in arms:
        tried: list[str] = []
        result = _read(arm, value, tried, where)
        if not tried:
            return result
    faults.append(f"{where} has the wrong type: {_kind(value)}")
    return None


def _read_tuple(item: Any, value: object, faults: list[str], where: str) -> Any:
    if not isinstance(value, list | tuple):
        faults.append(f"{where} must be a list, found {_kind(value)}")
        return ()
    return tuple(_read(item, v, faults, _join(where, str(i))) for i, v in enumerate(value))


def _read_mapping(item: Any, value: object, faults: list[str], where: str) -> Any:
    if not isinstance(value, Mapping):
        faults.append(f"{where} must be a mapping, found {_kind(value)}")
        return {}
    for key in value:
        if not isinstance(key, str):
            faults.append(f"{where} has the key {key!r}, which is not text; quote it")
    return {str(k): _read(item, v, faults, _join(where, str(k))) for k, v in value.items()}


def _read_scalar(hint: Any, value: object, faults: list[str], where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    # bool is an int in Python, but `count: true` is a mistake
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    faults.append(f"{where} must be {_WORDS.get(hint, hint.__name__)}, found {_kind(value)}")
    return None


_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"{value!r}"


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
