"""What lies on disk is a frozen dataclass that derives from `Stored`; here it is read, strictly.

The dataclass is the schema: pydantic checks a file against its type hints and makes the published
JSON Schema of them. Nothing is guessed: an unknown key, a missing key without default, a value of
another type or a number that is not finite is a fault, and every fault of a file is reported, one
line each, with the path of its key (`sources.0.count`).

What types cannot say stands beside them: a `Rule` on one value, `Stored.faults` on several. To
read and to make schemas costs an import of pydantic (0.1 s); to import this module does not.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from clefq.errors import InputError
from clefq.plain_files import read_text

T = TypeVar("T", bound="Stored")


class Stored:
    """Base of the dataclasses that files are read into.

    Fields are str, int, float, bool, Literal, other `Stored` dataclasses, `tuple[X, ...]`,
    `Mapping[str, X]`, unions of these, or Any; `Annotated` adds rules.
    """

    __slots__ = ()
    # pydantic's own setting: in JSON, arrays are tuples and whole numbers may be floats
    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
    }

    def faults(self) -> Iterable[str]:
        """What is wrong between fields, one line each; a line begins with the key at fault."""
        return ()

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        """Pydantic's hook: the docstrings describe the schema."""
        schema = handler(core)
        target = handler.resolve_ref_schema(schema)
        target["description"] = (cls.__doc__ or "").partition("\n")[0]
        words = _attributes_of(cls)
        for name, value in target["properties"].items():
            value.pop("title", None)
            if name in words:
                value["description"] = words[name]
        return schema


@dataclass(frozen=True, eq=False)  # pydantic hashes it
class Rule:
    """A rule that a value of the right type must meet; stands in an `Annotated`.

    Attributes:
        test: Whether a value meets it.
        words: What it asks, after the key: `must be at least 1`.
        schema: The same in the words of JSON Schema, where it has them.
    """

    test: Callable[[Any], bool]
    words: str
    schema: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Pydantic's hook."""
        from pydantic_core import core_schema

        return core_schema.with_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> Any:
        """Pydantic's hook."""
        return {**handler(core), **self.schema}

    def _checked(self, value: Any, info: Any) -> Any:
        from pydantic_core import PydanticCustomError

        if info.context == _TYPES_ONLY or self.test(value):
            return value
        raise PydanticCustomError("rule", "{words}", {"words": self.words})


def sha256_digits() -> Rule:
    """The rule of a SHA-256."""
    pattern = "[0-9a-f]{64}"
    return Rule(
        lambda text: re.fullmatch(pattern, text) is not None,
        "must be 64 hex digits",
        {"pattern": f"^{pattern}$"},
    )


def at_least(least: int) -> Rule:
    """The rule of a smallest number."""
    return Rule(lambda value: value >= least, f"must be at least {least}", {"minimum": least})


Count = Annotated[int, at_least(0)]


def expected(value: int | str) -> Rule:
    """The rule of a format's version, the only one that is read."""
    return Rule(lambda found: found == value, f"must be {value}", {"const": value})


def _attributes_of(cls: type[Stored]) -> dict[str, str]:
    """Field → its words in the docstring of the class, or of the one that it derives from."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        entries = re.findall(r"^    (\w+): (.*(?:\n      .*)*)", section, flags=re.MULTILINE)
        found |= {
            name: re.sub(r"\bNone\b", "null", " ".join(text.split())) for name, text in entries
        }
    return found


def read_value(cls: type[T], value: object, faults: list[str], where: str = "") -> T | None:
    """Builds `cls` from plain values, as JSON or YAML give them.

    Args:
        cls: A frozen dataclass.
        value: What was parsed from the file.
        faults: Every fault found is appended, one line each, with its path.
        where: Path of `value` inside the file.

    Returns:
        The instance, or None if a fault was found.
    """
    found = _foreign_keys(value, where)
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        found.append(f"{where or 'the file'} holds what JSON cannot: {error}")
        text = ""
    built = _read_text(cls, text, found, where) if text else None
    faults += found
    return None if found else built


def read_stored(
    cls: type[T], path: Path, *, error: type[InputError] = InputError, fix: str | None = None
) -> T:
    """Reads a JSON file.

    Args:
        cls: A frozen dataclass.
        path: The file.
        error: What is raised where the file does not follow `cls`.
        fix: The command or change that mends it.

    Raises:
        InputError: The file is missing, not UTF-8, not JSON, or at fault; lists every fault.
    """
    found: list[str] = []
    value = _read_text(cls, read_text(path), found, "")
    if value is None:
        raise error(f"{path}: {found[0]}.", fix=fix, faults=found[1:])
    return value


def faults_of(value: Stored) -> list[str]:
    """Every fault that a file with this value would have; empty when it would be read back."""
    faults: list[str] = []
    read_value(type(value), to_plain(value), faults)
    return faults


def json_schema(cls: type[Stored]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of the files that are read into `cls`."""
    schema: dict[str, Any] = _adapter(typing.cast(Any, cls)).json_schema()
    return schema


def to_plain(value: Any) -> Any:
    """The JSON form of a dataclass tree: the inverse of `read_value`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


@functools.cache
def _adapter(cls: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


_TYPES_ONLY = "types only"
_UNKNOWN = "unexpected_keyword_argument"


def _read_text(cls: type[T], text: str, faults: list[str], where: str) -> T | None:
    from pydantic import ValidationError

    adapter, lines = _adapter(typing.cast(Any, cls)), []
    try:
        value: T = adapter.validate_json(text)
    except ValidationError as error:
        lines = _lines(cls, text, error)
        kinds = {item["type"] for item in error.errors()}
        if kinds - {"rule", _UNKNOWN}:
            faults += [_join(where, line) for line in lines]
            return None
        # an unknown key, or a value that breaks its own rule, does not hide what is wrong
        # between others
        if _UNKNOWN in kinds:
            text = _without(text, error)
        value = adapter.validate_json(text, context=_TYPES_ONLY)
    lines += _faults_between(value, "")
    faults += [_join(where, line) for line in lines]
    return None if lines else value


def _without(text: str, error: Any) -> str:
    """The JSON without its unknown keys."""
    whole = json.loads(text)
    for item in error.errors():
        if item["type"] == _UNKNOWN:
            at = whole
            for part in item["loc"][:-1]:
                if isinstance(part, int) or part in at:  # pydantic names arms of unions too
                    at = at[part]
            at.pop(item["loc"][-1], None)
    return json.dumps(whole)


def _faults_between(value: object, where: str) -> list[str]:
    """What `Stored.faults` finds in a value and in all below it."""
    if isinstance(value, Stored):
        found = [_join(where, line) for line in value.faults()]
        names = [field.name for field in dataclasses.fields(typing.cast(Any, value))]
        items: Iterable[tuple[Any, Any]] = ((name, getattr(value, name)) for name in names)
    elif isinstance(value, tuple):
        found, items = [], enumerate(value)
    elif isinstance(value, Mapping):
        found, items = [], value.items()
    else:
        return []
    for key, item in items:
        if isinstance(item, Stored | tuple | Mapping):
            found += _faults_between(item, _join(where, str(key)))
    return found


# --- pydantic's errors as our lines


@dataclass(frozen=True, slots=True)
class _Fault:
    """One error: where it is, in which arm of which union, and its words."""

    path: tuple[str, ...]
    union: tuple[str, ...] | None
    arm: str
    kind: str
    found: Any
    words: Sequence[str]


def _lines(cls: type[Stored], text: str, error: Any) -> list[str]:
    items = error.errors(include_url=False)
    if items[0]["type"] == "json_invalid":
        return [f"it is not valid JSON: {items[0]['ctx']['error']}"]
    whole = json.loads(text)
    found = [_fault(cls, whole, item) for item in items]
    lines: list[str] = []
    for fault in found:
        if fault.union is None:
            lines += fault.words
        elif (arms := [other for other in found if other.union == fault.union])[0] is fault:
            lines += _union_lines(fault.union, arms)
    return lines


def _fault(cls: type[Stored], whole: Any, item: Mapping[str, Any]) -> _Fault:
    path: list[str] = []
    union, arm, at = None, "", whole
    for index, part in enumerate(item["loc"]):
        absent = item["type"] == "missing" and index == len(item["loc"]) - 1
        if absent or (isinstance(at, dict) and part in at) or isinstance(part, int):
            path.append(str(part))
            at = None if absent else at[part]
        elif union is None:  # pydantic names the arm of a union that it tried
            union, arm = tuple(path), str(part)
    words = _words(cls, tuple(path), item)
    return _Fault(tuple(path), union, arm, item["type"], item["input"], words)


def _union_lines(union: tuple[str, ...], faults: Sequence[_Fault]) -> list[str]:
    """The faults inside the arm that was meant, or that none was."""
    arms: dict[str, list[_Fault]] = {}
    for fault in faults:
        arms.setdefault(fault.arm, []).append(fault)
    meant = [arm for arm in arms.values() if not any(_is_other_kind(f, union) for f in arm)]
    if meant:
        return [line for fault in min(meant, key=len) for line in fault.words]
    kinds = dict.fromkeys(_KINDS.get(f.kind, f.kind) for f in faults if f.path == union)
    return [f"{'.'.join(union)} must be {' or '.join(kinds)}, found {_kind(faults[0].found)}"]


def _is_other_kind(fault: _Fault, union: tuple[str, ...]) -> bool:
    return fault.path == union and fault.kind in _KINDS


_KINDS = {
    "bool_type": "true or false",
    "dataclass_type": "a mapping",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "a whole number",
    "mapping_type": "a mapping",
    "none_required": "null",
    "string_type": "text",
    "tuple_type": "a list",
}


def _words(cls: type[Stored], path: tuple[str, ...], item: Mapping[str, Any]) -> list[str]:
    where, kind, found = ".".join(path) or "the file", item["type"], _kind(item["input"])
    if kind in _KINDS:
        return [f"{where} must be {_KINDS[kind]}, found {found}"]
    if kind == "missing":
        return [f"{where} is missing"]
    if kind == _UNKNOWN:
        known = ", ".join(_keys(cls, path[:-1])) or "none"
        return [f"{where} is unknown; known here: {known}"]
    if kind == "literal_error":
        words = item["ctx"]["expected"].replace("' or '", "', '").replace("'", "")
        return [f"{where} is {item['input']!r}, expected one of {words}"]
    if kind == "rule":
        return [f"{where} {item['ctx']['words']}, found {found}"]
    raise AssertionError(f"pydantic's {kind} has no words here: {item['msg']}")


def _keys(hint: Any, path: tuple[str, ...]) -> tuple[str, ...]:
    """Keys that are known at a path of a type."""
    if dataclasses.is_dataclass(hint):
        if path:
            return _keys(typing.get_type_hints(hint)[path[0]], path[1:])
        return tuple(field.name for field in dataclasses.fields(hint) if field.init)
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next((keys for arm in arguments if (keys := _keys(arm, path))), ())
    # the items of a tuple, the values of a mapping
    at = 1 if len(arguments) == 2 and arguments[1] is not ... else 0
    return _keys(arguments[at], path[1:]) if arguments and path else ()


def _foreign_keys(value: object, where: str) -> list[str]:
    """Keys that YAML allows and JSON does not."""
    found: list[str] = []
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                words = f"has the key {key!r}, which is not text; quote it"
                found.append(f"{where or 'the file'} {words}")
            found += _foreign_keys(item, _join(where, str(key)))
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            found += _foreign_keys(item, _join(where, str(at)))
    return found


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"{value!r}"


def _join(where: str, line: str) -> str:
    """A line under a path; a line about a whole value keeps its sentence."""
    if not where:
        return line
    if line.startswith("the file "):
        return where + line.removeprefix("the file")
    return f"{where}.{line}"
