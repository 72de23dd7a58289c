"""Takes personal fields out of records: dropped, or replaced by a keyed hash.

The hash is an HMAC under a key of the user's (the environment's CLEFQ_HASH_KEY), because a plain
hash of a customer number is undone by trying all numbers. The same key gives the same hash, so
that two records of one customer stay recognisable as such.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from clefq.clef.json_values import render
from clefq.data.readers import Row
from clefq.errors import DefinitionError

KEY_VARIABLE = "CLEFQ_HASH_KEY"


class PersonalFields:
    """Which fields are dropped and hashed, by name, at any depth.

    Args:
        drop: Names of fields that vanish.
        hashed: Names of fields whose values are replaced.

    Raises:
        DefinitionError: Fields are to be hashed and there is no key, or one is in both lists.
    """

    def __init__(self, drop: Iterable[str], hashed: Iterable[str]) -> None:
        self._drop = frozenset(drop)
        self._hashed = frozenset(hashed)
        both = sorted(self._drop & self._hashed)
        if both:
            raise DefinitionError(f"{', '.join(both)} cannot be both dropped and hashed.")
        self._key = os.environ.get(KEY_VARIABLE, "").encode()
        if self._hashed and not self._key:
            raise DefinitionError(
                f"hashing {', '.join(sorted(self._hashed))} needs a secret key.",
                fix=f"set {KEY_VARIABLE} to a long random text and keep it.",
            )

    def clean(self, value: Any) -> Any:
        """The value without the fields to drop, and with the others hashed."""
        if not self._drop and not self._hashed:
            return value
        if isinstance(value, list):
            return [self.clean(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {
            name: self._hash(item) if name in self._hashed else self.clean(item)
            for name, item in value.items()
            if name not in self._drop
        }

    def clean_field(self, name: str, value: Any) -> Any:
        """A value that stands on its own under a name: hashed if its name is listed."""
        return self._hash(value) if name in self._hashed else self.clean(value)

    def watched(self, rows: Iterable[Row], pick: Callable[[Any], Any]) -> Iterator[Row]:
        """The rows; at their end, whether every listed field was in one of them.

        A field that is in no row was most likely misspelt, and then nothing was protected.

        Args:
            rows: Rows in normal form.
            pick: Row's value → what may hold the fields.

        Raises:
            DefinitionError: Names the fields that no row has.
        """
        missing = set(self._drop | self._hashed)
        read = False
        for row in rows:
            if missing and row.fault is None:
                read = True
                _strike(pick(row.value), missing)
            yield row
        if read and missing:
            raise DefinitionError(
                f"no row has a field {', '.join(sorted(missing))}, which drop or hash names.",
                fix="mend the name, or take it out; nothing was written.",
            )

    def _hash(self, value: Any) -> str:
        digest = hmac.new(self._key, render(value).encode(), hashlib.sha256)
        return f"hashed:{digest.hexdigest()[:16]}"


def _strike(value: Any, names: set[str]) -> None:
    """Takes out of `names` those that are fields of a value, at any depth."""
    if isinstance(value, Mapping):
        names.difference_update(value)
        for item in value.values():
            _strike(item, names)
    elif isinstance(value, list):
        for item in value:
            _strike(item, names)
