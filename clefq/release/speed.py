"""Throughput on a card: what was measured, on what, and with which command."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Speed:
    """One measurement.

    Attributes:
        what: What was run, for example `offline, 500 tokens`.
        value: The figure with its unit.
        hardware: Device and engine.
        source: Where it comes from.
    """

    what: str
    value: str
    hardware: str
    source: str
