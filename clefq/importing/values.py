"""Numbers and faults of imported files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clefq.errors import PredictionsError
from clefq.importing.answers import Answer, Key, first_faults

_MOST_TOKENS = 2**31  # the column is INT32
# What reading raises where JSON has another form than was expected.
_OTHER_FORM = (TypeError, KeyError, IndexError, AttributeError)


class Gathered:
    """The answers of one file, and its faults, which are raised together.

    Args:
        path: The file, for messages.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[Key, Answer] = {}
        self._faults: list[str] = []

    def add(self, key: Key, answer: Answer) -> None:
        """Adds an answer.

        Raises:
            ValueError: There is one already.
        """
        if key in self.answers:
            raise ValueError(f"{'/'.join(part for part in key if part)} appears twice")
        self.answers[key] = answer

    def fault(self, line: int, text: str) -> None:
        """Notes a malformed line."""
        self._faults.append(f"{self.path}:{line}: {text}")

    @contextmanager
    def reading(self, line: int) -> Iterator[None]:
        """Around the reading of a line: what is wrong is noted, and the next line follows."""
        try:
            yield
        except ValueError as error:
            self.fault(line, str(error))
        except _OTHER_FORM as error:
            self.fault(line, f"is not of this form ({type(error).__name__}: {error})")

    def lines(self, file: Iterable[str]) -> Iterator[tuple[int, Any]]:
        """Number and value of every line of a JSON Lines file that is JSON."""
        for line, text in enumerate(file, start=1):
            if text.strip():
                try:
                    yield line, json.loads(text)
                except (ValueError, RecursionError) as error:
                    self.fault(line, str(error))

    def result(self) -> dict[Key, Answer]:
        """The answers.

        Raises:
            PredictionsError: Some lines are malformed.
        """
        if self._faults:
            raise PredictionsError(
                f"{self.path} has {len(self._faults)} malformed lines.",
                faults=first_faults(self._faults),
            )
        return self.answers


def number(value: Any, what: str) -> float:
    """A number, also written as text; NaN for null.

    Raises:
        ValueError: It is none.
    """
    if value is None:
        return math.nan
    if isinstance(value, bool):
        raise ValueError(f"{what} is {value}, expected a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{what} is {str(value)[:40]!r}, expected a number") from None


def tokens(value: Any, what: str) -> int:
    """A count of tokens.

    Raises:
        ValueError: It is none.
    """
    found = number(value, what)
    if not (0 <= found < _MOST_TOKENS and found == int(found)):
        raise ValueError(f"{what} is {value!r}, expected a whole number")
    return int(found)


def label(value: Any) -> str:
    """A chosen option: text, a level's number, true or false.

    Raises:
        ValueError: It is none of these.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value)
    raise ValueError(f"the chosen option is {value!r}, expected text")


def mapping(value: Any, what: str) -> dict[str, Any]:
    """An object.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no object")
    return value
