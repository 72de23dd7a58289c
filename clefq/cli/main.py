"""The `clefq` command: one thin file per command, loaded here without heavy imports.

Every `ClefqError` is caught once, here, and printed as one line with its fix; the process exits
with the error's code. Ctrl-C exits with 130 and leaves nothing half-written.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from clefq import __version__
from clefq.errors import ClefqError, ExitCode, missing_extra

INTERRUPTED = 130  # 128 + SIGINT, as shells expect it
CRASHED = 70  # EX_SOFTWARE of sysexits.h

app = typer.Typer(
    name="clefq",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # paragraphs flow to the width of the terminal
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Command modules, in the order of the loop. Each holds a function `command`, or a `group` of
# them; light to import.
COMMANDS: dict[str, str] = {
    "init": "init",
    "build": "build",
    "check": "check",
    "quantize": "quantize",
    "predict": "predict",
    "merge": "merge",
    "import": "import_",
    "export": "export",
    "parity": "parity",
    "gate": "gate",
    "flips": "flips",
    "ci": "ci",
    "serve": "serve",
    "plan": "plan",
    "threshold": "threshold",
    "sensitivity": "sensitivity",
    "audit": "audit",
    "repair": "repair",
    "convert": "convert",
    "diff": "diff",
    "card": "card",
    "bundle": "bundle",
    "demo": "demo",
    "bench": "bench",
    "doctor": "doctor",
}

# How `clefq --help` groups them.
PANELS: dict[str, tuple[str, ...]] = {
    "Start here": ("demo", "init", "doctor"),
    "The loop": ("build", "quantize", "predict", "parity", "gate"),
    "Checkpoints": ("audit", "repair", "convert", "diff", "sensitivity"),
    "Evidence": (
        *("check", "flips", "ci", "plan", "threshold"),
        *("merge", "import", "export", "card", "bundle"),
    ),
    "Serving": ("serve", "bench"),
}

# Packages that only some commands need → the extra that brings them.
EXTRAS = {
    "accelerate": "quantize",
    "compressed_tensors": "quantize",
    "datasets": "hub",
    "llmcompressor": "quantize",
    "PIL": "quantize",
    "ray": "ray",
    "safetensors": "quantize",
    "torch": "quantize",
    "transformers": "quantize",
    "vllm": "serve",
}


def _version(value: bool) -> None:
    if value:
        typer.echo(f"clefq {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Quantize Clef decision models and prove that the result may replace BF16."""


def _register() -> None:
    from importlib import import_module

    for panel, names in PANELS.items():
        for name in names:
            found = import_module(f"clefq.cli.{COMMANDS[name]}")
            if hasattr(found, "group"):
                app.add_typer(found.group, name=name, rich_help_panel=panel)
            else:
                app.command(name, rich_help_panel=panel)(found.command)


_register()


def run() -> None:
    """Entry point: runs the command and turns errors into one line and an exit code."""
    # Read once, when torch loads: threads that spin while they wait stall a busy machine (a
    # prediction of 20 s took 10 minutes). Commands that start processes hand it on.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        app()
    except ClefqError as error:
        _print_error(error)
        sys.exit(int(error.exit_code))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            _print_crash(error)
            sys.exit(CRASHED)
        _print_error(missing_extra(package, EXTRAS[package]))
        sys.exit(int(ExitCode.USAGE))
    except (KeyboardInterrupt, SystemExit) as stop:
        # typer turns Ctrl-C into exit code 130 by itself, and says nothing about what is left
        if isinstance(stop, SystemExit) and stop.code != INTERRUPTED:
            raise
        typer.echo("clefq: interrupted; nothing half-written, run it again to resume.", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.exit(141)
    except OSError as error:  # a disk that fills, a file that vanishes or cannot have its name
        from clefq.store.atomic import disk_error

        fault = disk_error(error, Path(error.filename or "a file"))
        _print_error(fault)
        sys.exit(int(fault.exit_code))
    except Exception as error:  # our own fault: never exit 1, which means a failed gate
        _print_crash(error)
        sys.exit(CRASHED)


def _print_crash(error: Exception) -> None:
    """One line, and the traceback below it: it belongs into a report of the fault."""
    import traceback

    text = "".join(traceback.format_exception(error))
    name = type(error).__name__
    line = f"clefq: an unexpected {name}: this is a fault of clefq, and no verdict."
    if isinstance(error, MemoryError):
        line = "clefq: out of memory, and no verdict; try a machine with more."
    for part in (line, text):
        typer.echo(part.encode("utf-8", "backslashreplace").decode("utf-8"), err=True)


def _print_error(error: ClefqError) -> None:
    if "--json" in sys.argv:
        body = {"error": error.message, "fix": error.fix, "faults": list(error.faults)}
        typer.echo(json.dumps(body, ensure_ascii=False))
        return
    typer.echo(f"clefq: {error.message}", err=True)
    for fault in error.faults:
        typer.echo(f"  {fault}", err=True)
    if error.fix is not None:
        typer.echo(f"  fix: {error.fix}", err=True)


if __name__ == "__main__":
    run()
