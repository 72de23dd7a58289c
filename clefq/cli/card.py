"""`clefq card`: the model card of a judged checkpoint, and whether a card is still true."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clefq.cli.options import Json, Quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clefq.console import Console
    from clefq.names.run_folder import Place
    from clefq.release.card import Card
    from clefq.release.evidence import Evidence

CARD = "README.md"


def command(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="Run folder or published folder (default: the current folder), or a variant of "
            "the current run folder.",
        ),
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", metavar="NAME", help="Which of several checkpoints.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="CKPT", help="A checkpoint outside of a run folder."),
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option("--report", metavar="DIR", help="(with --model) Report folder; repeatable."),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(
            "--base-model", metavar="ORG/NAME", help="Hub id of the BF16 model, if not recorded."
        ),
    ] = None,
    repo: Annotated[
        str | None,
        typer.Option("--repo", metavar="ORG/NAME", help="Hub id under which it is published."),
    ] = None,
    bench: Annotated[
        list[Path] | None,
        typer.Option(
            "--bench",
            metavar="FILE",
            help="Throughput from `clefq bench offline --out`; kept in bench/ of the run folder.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Default: README.md of the checkpoint."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the card with its evidence; exit 1 if not.")
    ] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the model card of a checkpoint from its manifest and its reports.

    Every figure is taken from the evidence, and what was not measured is not
    said. Your own words between the marked sections stay when it is written
    again.

    With --check nothing is written: one line per place where the card says
    something else than the evidence does now, and exit code 1.
    """
    from clefq.console import Console
    from clefq.errors import InputError
    from clefq.names.run_folder import find_place
    from clefq.release.evidence import gather, loose_place

    console = Console(json_output=json_output, quiet=quiet)
    if model is None:
        if report:
            raise InputError("--report goes with --model only.", fix="give --model CKPT too.")
        place = find_place(*_named(folder, variant))
    else:
        place = loose_place(model, variant, report or ())
    target = out or place.model / CARD
    _keep_benches(place, bench or ())
    found = gather(place)
    if check:
        _check(target, found, (base_model, repo), console)
        return
    _write(target, found, (base_model, repo), console)


def _named(folder: Path | None, variant: str | None) -> tuple[Path | None, str | None]:
    """Folder and variant, where DIR may be the name of a variant of the current run folder."""
    from clefq.names.run_folder import find_run

    here = find_run(None)
    if folder is None or here is None or variant is not None:
        return folder, variant
    return (None, str(folder)) if str(folder) in here.variants() else (folder, None)


def _keep_benches(place: Place, files: Sequence[Path]) -> None:
    """Copies bench files to where the evidence is, so that the card can be checked later."""
    import shutil

    from clefq.errors import InputError
    from clefq.release.speed import BENCH, read_bench
    from clefq.store.atomic import atomic_file

    for file in files:
        read_bench(file)
        if place.root is None:
            raise InputError("--bench needs a run folder.", fix="card the checkpoint inside one.")
        target = place.root / BENCH / file.with_suffix(".json").name
        if target.resolve() != file.resolve():
            with atomic_file(target) as partial:
                shutil.copyfile(file, partial)


Given = tuple[str | None, str | None]


def _write(target: Path, found: Evidence, given: Given, console: Console) -> None:
    from clefq.errors import InputError
    from clefq.release.card import CardOptions, make_card
    from clefq.release.card_text import card_text, read_card, updated_text
    from clefq.release.evidence import disagreements
    from clefq.store.atomic import write_text

    faults = disagreements(found)
    if faults:
        raise InputError(
            "the evidence contradicts itself; no card is written.",
            fix="judge the checkpoint again: clefq parity --baseline bf16",
            faults=faults,
        )
    old = read_card(target) if target.is_file() else None
    before = CardOptions() if old is None else old.options
    card = make_card(found, CardOptions(given[0] or before.base_model, given[1] or before.repo))
    write_text(target, card_text(card) if old is None else updated_text(card, old))
    console.result(_json(target, found, card), _text(target, found, card))


def _check(target: Path, found: Evidence, given: Given, console: Console) -> None:
    from clefq.release.card import CardOptions, make_card
    from clefq.release.card_text import compare, read_card
    from clefq.release.evidence import disagreements

    written = read_card(target)
    known = written.options
    options = CardOptions(given[0] or known.base_model, given[1] or known.repo, known.overrides)
    card = make_card(found, options)
    faults = [*disagreements(found), *compare(written, card)]
    value = {"card": str(target), "variant": found.place.variant, "faults": faults}
    good = f"{target}: every figure, hash and verdict in clefq's sections is that of the evidence"
    console.result(value, "\n".join(faults) or good)
    if faults:
        raise typer.Exit(1)


def _json(target: Path, found: Evidence, card: Card) -> dict[str, Any]:
    return {
        "card": str(target),
        "variant": found.place.variant,
        "verdicts": {item.name: item.word for item in found.sets},
        "front_matter": dict(card.front),
        "header": dict(card.header),
    }


def _text(target: Path, found: Evidence, card: Card) -> str:
    from clefq.release.caveats import caveats

    lines = [f"card     {target}"]
    lines += [f"verdict  {item.name}: {item.word.upper()}" for item in found.sets]
    lines.append(f"caveats  {len(caveats(found))}, in the card")
    missing = [key for key in ("license", "base_model") if key not in card.front]
    hints = {
        "license": "license  none: the checkpoint has no LICENSE file",
        "base_model": "missing  base_model: give --base-model ORG/NAME",
    }
    lines += [hints[key] for key in missing]
    lines.append(f"check    clefq card --check {_where(found)}")
    return "\n".join(lines)


def _where(found: Evidence) -> str:
    root = found.place.root
    return f"{root or '…'} --variant {found.place.variant}"
