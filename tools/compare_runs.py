"""What differs between two run folders that were made of the same inputs.

    python tools/compare_runs.py BEFORE AFTER

A change that only moves code must leave all that `clefq demo` makes as it was: checkpoints,
predictions, `parity.json`, the words of the reports. Clocks, durations, memory and what is
hashed together with them are left out. Prints one line a difference and exits with 1 where there
is one.
"""

from __future__ import annotations

import difflib
import hashlib
import html
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

CLOCKS = {
    "created_at",
    "predicted_at",
    "committed_at",
    "seconds",
    "peak_memory_bytes",
    "digest",
    "command",
}
TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2})?(Z|[+-]\d{2}:\d{2}| UTC)?")
LONG_HEX = re.compile(r"\b[0-9a-f]{12,64}\b")


def timeless(value: Any, key: str = "") -> Any:
    """A JSON value without clocks, and without the hashes of files that hold clocks."""
    if isinstance(value, dict):
        if key == "predictions":
            value = {name: inner for name, inner in value.items() if name != "sha256"}
        return {name: timeless(inner, name) for name, inner in value.items() if name not in CLOCKS}
    if isinstance(value, list):
        return [timeless(inner) for inner in value]
    return value


def words(text: str) -> list[str]:
    """The lines of a report as a person reads them; times and hashes are masked."""
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]+>", "\n", text))
    text = LONG_HEX.sub("HASH", TIME.sub("TIME", text))
    return [line.strip() for line in text.splitlines() if line.strip()]


def facts(path: Path) -> list[str]:
    """What is compared of one file, as lines."""
    if path.suffix == ".json":
        value = timeless(json.loads(path.read_text(encoding="utf-8")))
        return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).splitlines()
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        kept = (table.schema.metadata or {}).get(b"clefq", b"{}")
        lines = json.dumps(timeless(json.loads(kept)), indent=1, sort_keys=True).splitlines()
        return [*lines, *(repr(row) for row in table.to_pylist())]
    if path.suffix in {".html", ".md", ".xml"}:
        return words(path.read_text(encoding="utf-8"))
    return [hashlib.sha256(path.read_bytes()).hexdigest()]


def differences(before: Path, after: Path) -> Iterator[str]:
    """One line a difference, at most eight a file."""
    names = {
        path.relative_to(root).as_posix()
        for root in (before, after)
        for path in root.rglob("*")
        if path.is_file()
    }
    for name in sorted(names):
        missing = [root for root in (before, after) if not (root / name).is_file()]
        if missing:
            yield f"{name}: only {'after' if missing[0] == before else 'before'}"
            continue
        old, new = facts(before / name), facts(after / name)
        changed = [
            line
            for line in difflib.unified_diff(old, new, lineterm="", n=0)
            if not line.startswith(("---", "+++", "@@"))
        ]
        yield from (f"{name}: {line[:160]}" for line in changed[:8])
        if len(changed) > 8:
            yield f"{name}: and {len(changed) - 8} more lines"


def main() -> None:
    """Compares two folders."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    found = list(differences(Path(sys.argv[1]), Path(sys.argv[2])))
    print("\n".join(found) or "no difference")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
