"""Options that every command has, in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No notes, no progress bars.")]
Run = Annotated[
    Path | None,
    typer.Option("--run", metavar="DIR", help="Run folder (default: the current folder)."),
]
