"""Every source of records, one file each; definitions name them by their key here."""

from __future__ import annotations

from clefq.data.sources import banking77, boolq, clinc150
from clefq.data.sources.base import Example, HubRef, Source

SOURCES: dict[str, Source] = {
    "banking77": banking77.SOURCE,
    "boolq": boolq.SOURCE,
    "clinc150": clinc150.SOURCE,
}

__all__ = ["SOURCES", "Example", "HubRef", "Source"]
