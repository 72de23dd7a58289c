"""Reads a mapping from YAML strictly: collects every fault, one line each, instead of the first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_MISSING: Any = object()
_HEX64 = re.compile(r"[0-9a-f]{64}")


class Fields:
    """The keys of one mapping, taken one by one; what is not taken is unknown.

    Every reader returns a usable value even when it is at fault, so that reading goes on and
    all faults are found together; the caller refuses the whole when `faults` is not empty.

    Args:
        value: The mapping as YAML gave it (anything else is a fault).
        where: Name of the place for messages, for example `gates[2]`.
        faults: The list that faults are appended to.
    """

    def __init__(self, value: object, where: str, faults: list[str]) -> None:
        self._faults = faults
        self._where = where
        self._values: dict[str, Any] = {}
        if isinstance(value, Mapping):
            self._values = {str(key): entry for key, entry in value.items()}
        else:
            self.fault(None, f"is {_shown(value)}, expected a mapping")
        self._left = set(self._values)

    def fault(self, key: str | None, text: str) -> None:
        """Appends a fault about a key of this mapping (None: about the mapping itself)."""
        place = ".".join(part for part in (self._where, key) if part)
        self._faults.append(f"{place or 'the file'}: {text}")

    def take(self, key: str, default: Any = _MISSING) -> Any:
        """The raw value, or the default; without a default a missing key is a fault."""
        self._left.discard(key)
        if key in self._values:
            return self._values[key]
        if default is _MISSING:
            self.fault(key, "is missing")
            return None
        return default

    def text(self, key: str, default: Any = _MISSING) -> str:
        """A string that is not empty."""
        value = self.take(key, default)
        if isinstance(value, str) and (value.strip() or value == default):
            return value
        if key in self._values:
            self.fault(key, f"is {_shown(value)}, expected text")
        return "?"

    def optional_text(self, key: str) -> str | None:
        """A string, or None where the key is absent or null."""
        return None if self.take(key, None) is None else self.text(key)

    def choice(self, key: str, options: Sequence[str], default: Any = _MISSING) -> str:
        """One of a few words."""
        value = self.take(key, default)
        if value in options:
            return str(value)
        if key in self._values:
            self.fault(key, f"is {_shown(value)}, expected one of {', '.join(options)}")
        return options[0]

    def boolean(self, key: str, default: Any = _MISSING) -> bool:
        """True or false."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            if key in self._values:
                self.fault(key, f"is {_shown(value)}, expected true or false")
            return True
        return value

    def number(self, key: str, low: float, high: float, default: Any = _MISSING) -> float:
        """A number within [low, high]; booleans and NaN are faults."""
        value = self.take(key, default)
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        if numeric and low <= value <= high:
            return float(value)
        if key in self._values:
            self.fault(key, f"is {_shown(value)}, expected a number from {low:g} to {high:g}")
        return low

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        """A number within [low, high], or None where the key is absent or null."""
        return None if self.take(key, None) is None else self.number(key, low, high)

    def integer(self, key: str, low: int, default: Any = _MISSING) -> int:
        """A whole number of at least `low`."""
        value = self.take(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and value >= low:
            return value
        if key in self._values:
            self.fault(key, f"is {_shown(value)}, expected a whole number from {low}")
        return low

    def digest(self, key: str) -> str:
        """A SHA-256 as 64 lower-case hex digits."""
        value = self.take(key)
        if isinstance(value, str) and _HEX64.fullmatch(value):
            return value
        if key in self._values:
            self.fault(key, f"is {_shown(value)}, expected 64 lower-case hex digits")
        return "0" * 64

    def optional_digest(self, key: str) -> str | None:
        """A SHA-256, or None where the key is absent or null."""
        return None if self.take(key, None) is None else self.digest(key)

    def sequence(self, key: str, default: Any = _MISSING) -> list[Any]:
        """A list."""
        value = self.take(key, default)
        if isinstance(value, list):
            return value
        if key in self._values:
            self.fault(key, f"is {_shown(value)}, expected a list")
        return []

    def done(self) -> None:
        """Makes every key that was not taken a fault."""
        for key in sorted(self._left):
            self.fault(key, "is not a known key")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
