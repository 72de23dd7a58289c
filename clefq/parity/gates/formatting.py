"""Figures as text, one way in every report: terminal, Markdown and HTML."""

from __future__ import annotations

NONE = "–"
MARKS = {
    "pass": "✓",
    "fail": "✗",
    "inconclusive": "?",
    "not_gated": "·",
    "invalid": "!",
}


def figure(value: float | None, unit: str = "fraction", *, signed: bool = False) -> str:
    """A figure for people: shares in percent, differences of shares in points, nats as they are.

    Args:
        value: The figure, or None.
        unit: `fraction`, or anything else for a plain number.
        signed: Whether it is a difference, shown with its sign and in points.
    """
    if value is None:
        return NONE
    if unit != "fraction":
        return _minus(_plain(value, signed))
    return _minus(f"{100 * value:+.2f} pt" if signed else f"{100 * value:.2f}%")


def interval(
    lower: float | None, upper: float | None, unit: str = "fraction", *, signed: bool = False
) -> str:
    """An interval for people, without repeating the unit."""
    if lower is None or upper is None:
        return "no interval"
    if unit != "fraction":
        return _minus(f"[{_plain(lower, signed)}, {_plain(upper, signed)}]")
    form = "+.2f" if signed else ".2f"
    return _minus(f"[{100 * lower:{form}}, {100 * upper:{form}}]")


def _plain(value: float, signed: bool) -> str:
    """A plain number: four decimals, fewer where it is large."""
    sign = "+" if signed else ""
    if abs(value) >= 1000:
        return f"{value:{sign},.0f}"
    return f"{value:{sign}.4f}" if abs(value) < 10 else f"{value:{sign}.4g}"


def _minus(text: str) -> str:
    """A true minus sign: a hyphen before a figure is easily missed."""
    return text.replace("-", "−")


def count(value: int | None) -> str:
    """A whole number with thousands separators."""
    return NONE if value is None else f"{value:,}"


def signed_count(value: int) -> str:
    """A difference of counts, with its sign; 0 has none."""
    return _minus(f"{value:+,d}") if value else "0"


def gigabytes(count: int | None) -> str:
    """Bytes as decimal gigabytes, or megabytes below 0.1 GB; three digits."""
    if count is None:
        return NONE
    return f"{count / 1e9:.3g} GB" if count >= 1e8 else f"{count / 1e6:.3g} MB"


def short_hash(value: str | None) -> str:
    """The first 12 hex digits of a hash."""
    return NONE if value is None else value[:12]


def markdown_cell(text: object) -> str:
    """Text that cannot break a table or start markup."""
    safe = _escaped(" ".join(str(text).split()))
    return safe if len(safe) <= 200 else safe[:197] + "..."


def markdown_prose(text: object) -> str:
    """A sentence of ours, whose `commands` stay code; nothing else in it starts markup."""
    pieces = " ".join(str(text).split()).split("`")
    if len(pieces) % 2 == 0:  # a backtick without its partner
        return _escaped("`".join(pieces))
    return "`".join(p if i % 2 else _escaped(p) for i, p in enumerate(pieces))


def _escaped(text: str) -> str:
    for char in "\\`*_|<>[]":
        text = text.replace(char, f"\\{char}")
    return text
