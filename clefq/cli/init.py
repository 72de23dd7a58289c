"""`clefq init`: a run folder with a BF16 model, a calibration set and an eval set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefq.cli.options import Json, Quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clefq.console import Console
    from clefq.names.models import ModelRef
    from clefq.names.run_folder import RunFolder
    from clefq.store.set_manifest import Role

_DEFAULT = "seven-tasks"
_SETS: tuple[Role, ...] = ("calibration", "eval")


def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="BF16 Clef: a folder, a hub id (org/name@revision), or nano."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Run folder to make (default: MODEL's name)."),
    ] = None,
    calibration: Annotated[
        list[str] | None,
        typer.Option(
            "--calibration",
            metavar="SET",
            help="Set folder, or definition to build: a .yaml file or a bundled one; repeatable "
            f"(default: {_DEFAULT}).",
        ),
    ] = None,
    eval_set: Annotated[
        list[str] | None,
        typer.Option("--eval", metavar="SET", help="The same for eval sets; repeatable."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            envvar="CLEFQ_DATA_DIR",
            help="Folder of original files, one folder per source. Without it: the hub.",
        ),
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a run folder: the BF16 model, a calibration set, an eval set.

    In it, `clefq quantize --scheme nvfp4` and `clefq parity --baseline bf16` need no further
    names. Files are shared with their originals where the file system allows, else copied.
    Interrupted, the same command completes the folder; what is there stays.
    """
    from clefq.cli.build import check_definition
    from clefq.console import Console
    from clefq.names.models import NANO, find_model
    from clefq.names.run_folder import RunFolder

    console = Console(json_output=json_output, quiet=quiet)
    given = {"calibration": calibration, "eval": eval_set}
    wanted = [
        _Wanted(role, name)
        for role in _SETS
        for name in (given[role] or ([f"{NANO}-{role}"] if model == NANO else [_DEFAULT]))
    ]
    for item in wanted:
        if item.folder is None:
            check_definition(item.role, item.name)  # before anything is downloaded
    found = find_model(model)
    run = RunFolder(out if out is not None else Path(found.variant))
    _place_model(found, run, console)
    sets = _place_sets(wanted, run, data_dir, console)
    value = {"run_folder": str(run.root), "model": found.model_id, "revision": found.revision}
    console.result({**value, "sets": sets}, _text(run, found, sets))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A set as it was asked for."""

    role: Role
    name: str

    @property
    def folder(self) -> Path | None:
        """Where it lies, or None where it is to be built."""
        from clefq.nano import SETS

        for folder in (Path(self.name).expanduser(), SETS / self.name):
            if (folder / "manifest.json").is_file():
                return folder
        return None


def _place_model(found: ModelRef, run: RunFolder, console: Console) -> None:
    from clefq.clef.checkpoint import open_checkpoint, scheme_of
    from clefq.errors import CheckpointError
    from clefq.names.models import record_origin
    from clefq.names.run_folder import BASELINE
    from clefq.store.atomic import atomic_folder, sole_writer

    target = run.model(BASELINE)
    if target.is_dir():
        console.note(f"{target} is there and stays as it is")
        return
    scheme = scheme_of(open_checkpoint(found.folder))
    if scheme != BASELINE:
        raise CheckpointError(
            f"{found.folder} is quantized ({scheme}); a run folder begins with the BF16 model.",
            fix=f"give the BF16 model, and put this one at {run.model(scheme)} afterwards.",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with sole_writer(target), atomic_folder(target) as partial:
        how = _copy_tree(found.folder, partial)
        if found.revision is not None:
            record_origin(partial, found.model_id, found.revision)
    console.note(f"{target}: {found.model_id} ({how})")


def _copy_tree(source: Path, target: Path) -> str:
    """Copies all visible files, without using space where the file system allows; says how."""
    from clefq.store.linking import copy_file

    hows = set()
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            hows.add(copy_file(path, target / name))
    return ", ".join(sorted(hows))


def _place_sets(
    wanted: Sequence[_Wanted], run: RunFolder, data_dir: Path | None, console: Console
) -> dict[str, str]:
    """Puts the sets there, calibration sets first: eval sets are held against them.

    Returns:
        Name of each set to its role.
    """
    from clefq.cli.build import build_into
    from clefq.names.run_folder import manifest_of

    there = {name: manifest_of(run.set_folder(name)).role for name in run.sets()}
    for item in wanted:
        if item.folder is not None:
            name = _place_set(item, run, console)
        else:
            references = [run.set_folder(n) for n, r in there.items() if r == "calibration"]
            against = references if item.role == "eval" else []
            name = build_into(item.role, item.name, run.root / "sets", data_dir, against, console)
        there[name] = manifest_of(run.set_folder(name)).role
    return dict(there)


def _place_set(item: _Wanted, run: RunFolder, console: Console) -> str:
    from clefq.errors import InputError
    from clefq.store.atomic import atomic_folder, sole_writer
    from clefq.store.sets import open_set

    assert item.folder is not None
    found = open_set(item.folder)
    if found.manifest.role != item.role:
        raise InputError(
            f"{item.folder} is a set for {found.manifest.role}, not for {item.role}.",
            fix=f"give it as --{found.manifest.role}.",
        )
    target = run.set_folder(found.name)
    if target.is_dir():
        console.note(f"{target} is there and stays as it is")
        return found.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with sole_writer(target), atomic_folder(target) as partial:
        _copy_tree(item.folder, partial)
    return found.name


def _text(run: RunFolder, found: ModelRef, sets: dict[str, str]) -> str:
    revision = "" if found.revision is None else f" @ {found.revision[:12]}"
    lines = [
        f"run folder  {run.root}",
        f"bf16        {found.model_id}{revision}",
        *(f"{role:<11} {name}" for name, role in sets.items()),
        f"next        cd {run.root} && clefq quantize --scheme nvfp4",
        "            then clefq parity --baseline bf16",
    ]
    return "\n".join(lines)
