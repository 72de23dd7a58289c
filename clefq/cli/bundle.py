"""`clefq bundle`: the evidence in one place, its check, and the folder to upload."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefq.cli.options import Json, Quiet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from clefq.console import Console
    from clefq.release.hash_tree import HashTree
    from clefq.release.names import Names
    from clefq.release.publish import Published
    from clefq.release.verify import Verified

_SHOWN = 12


def command(
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", help="Run folder; with --verify a bundle or a published folder."
        ),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--variant", metavar="NAME", help="Repeatable (default: all that are judged)."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="PATH", help="Folder, or NAME.tar (default: RUN-evidence.tar here)."
        ),
    ] = None,
    redact: Annotated[
        bool,
        typer.Option("--redact", help="Leave out names and ids; figures and verdicts stay."),
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compute everything again; exit 1 on a difference.")
    ] = False,
    root: Annotated[
        str | None,
        typer.Option("--root", metavar="SHA256", help="(verify) The root hash it must have."),
    ] = None,
    publish: Annotated[
        Path | None,
        typer.Option("--publish", metavar="OUT", help="Make the folder to upload, of one variant."),
    ] = None,
    repo: Annotated[
        str | None,
        typer.Option("--repo", metavar="ORG/NAME", help="(publish) Hub id, for card and command."),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option("--base-model", metavar="ORG/NAME", help="(publish) See `clefq card`."),
    ] = None,
    despite: Annotated[
        list[str] | None,
        typer.Option(
            "--despite",
            metavar="audit|card",
            help="(publish) Publish a failed audit or a card that is out of date; it says so.",
        ),
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Pack the evidence of a run folder, check a bundle, or make the folder to upload.

    A bundle holds gate files, manifests, predictions, reports, audits and
    definitions, with the hash of each and one over all of them.

    --redact packs it under opaque names: no ids, cohorts, options, column or
    file names, no instructions. Everything can be computed again all the same.
    What stands for what is written beside the bundle, to be kept.

    --verify compares every hash, then computes every statistic and verdict
    again from the predictions.

    --publish makes the folder that goes to the hub: checkpoint, card, metrics,
    definitions, evidence, and a vLLM plugin that needs nothing of clefq. A
    verdict that is not a pass may be published; the card says it first.
    """
    from clefq.console import Console
    from clefq.errors import InputError
    from clefq.names.run_folder import find_run_folder

    console = Console(json_output=json_output, quiet=quiet)
    _refuse(
        "--publish", publish, {"--repo": repo, "--base-model": base_model, "--despite": despite}
    )
    _refuse("--verify", verify, {"--root": root})
    _refuse("packing", not (verify or publish), {"--out": out})
    if verify and publish is not None:
        raise InputError("--verify and --publish are two steps.", fix="publish, then verify.")
    if verify and redact:
        raise InputError("--verify and --redact are two steps.", fix="pack, then verify.")
    if verify:
        _verify(target or Path.cwd(), root, console)
        return
    run = find_run_folder(target)
    if publish is not None:
        names = (repo, base_model, tuple(despite or ()))
        _publish(run, variant, publish, names, redact, console)
        return
    _pack(run, variant, out, redact, console)


def _refuse(mode: str, on: object, given: Mapping[str, object]) -> None:
    from clefq.errors import InputError

    for name, value in given.items():
        if value and not on:
            raise InputError(f"{name} goes with {mode} only.", fix="see `clefq bundle --help`.")


def _pack(
    run: object, variant: list[str] | None, out: Path | None, redact: bool, console: Console
) -> None:
    import contextlib
    from tempfile import TemporaryDirectory

    from clefq.names.run_folder import RunFolder, reported_variants
    from clefq.release.archive import pack
    from clefq.release.bundle import BundleJob, pack_evidence
    from clefq.release.redact import pack_redacted
    from clefq.store.atomic import atomic_folder

    assert isinstance(run, RunFolder)
    variants = tuple(variant or reported_variants(run))
    job = BundleJob(run, variants)
    target = out or Path(f"{run.root.resolve().name}-evidence.tar")
    names = None
    with contextlib.ExitStack() as stack:
        if target.suffix == ".tar":
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="clefq-")))
        else:
            folder = stack.enter_context(atomic_folder(target))
        if redact:
            tree, names = pack_redacted(job, folder, console)
        else:
            tree = pack_evidence(job, folder, console)
        if target.suffix == ".tar":
            pack(folder, target)
    if names is not None:
        _keep_names(names, target, console)
    value = {"bundle": str(target), "sha256": tree.sha256, "files": dict(tree.files)}
    console.result({**value, "variants": list(variants)}, _packed_text(target, tree))


def _keep_names(names: Names, target: Path, console: Console) -> None:
    """Writes what stands for what beside a redacted bundle."""
    from clefq.store.atomic import write_json

    kept = target.with_name(f"{target.name}.names.json")
    write_json(kept, names.to_json())
    console.note(f"{kept} says what stands for what: keep it, and do not send it along")


def _packed_text(target: Path, tree: HashTree) -> RenderableType:
    lines = [
        f"bundle  {target}  ({len(tree.files)} files)",
        f"root    {tree.sha256}",
        f"check   clefq bundle --verify {target}",
    ]
    return "\n".join(lines)


def _verify(target: Path, root: str | None, console: Console) -> None:
    from clefq.names.run_folder import is_published
    from clefq.release.verify import verify
    from clefq.release.verify_published import verify_published

    check = verify_published if is_published(target) else verify
    found = check(target, root, console)
    console.result(found.to_json(), _verified_text(found))
    if found.faults:
        raise typer.Exit(1)


def _verified_text(found: Verified) -> RenderableType:
    lines = [f"bundle  {found.bundle}", f"root    {found.root or '–'}"]
    lines += [f"note: {note}" for note in found.notes]
    lines += [f"{name}: {word.upper()}" for name, word in sorted(found.verdicts.items())]
    if found.faults:
        lines += [f"{len(found.faults)} fault(s):", *(f"  {f}" for f in found.faults[:_SHOWN])]
        hidden = len(found.faults) - _SHOWN
        lines += [f"  … and {hidden} more (--json lists all)"] if hidden > 0 else []
    else:
        count = len(found.verdicts)
        lines.append(
            f"{found.files} files as hashed; every figure of {count} report(s) computed again: same"
        )
    return "\n".join(lines)


def _publish(
    run: object,
    variant: list[str] | None,
    out: Path,
    names: tuple[str | None, str | None, tuple[str, ...]],
    redact: bool,
    console: Console,
) -> None:
    from clefq.errors import InputError
    from clefq.names.run_folder import RunFolder, find_place
    from clefq.release.card import CardOptions
    from clefq.release.publish import OVERRIDES, PublishJob, publish

    assert isinstance(run, RunFolder)
    repo, base_model, overrides = names
    unknown = sorted(set(overrides) - set(OVERRIDES))
    if unknown:
        raise InputError(f"--despite is {unknown[0]}.", fix=f"give {' or '.join(OVERRIDES)}.")
    if variant is not None and len(variant) > 1:
        raise InputError("--publish takes one --variant.", fix="publish each on its own.")
    name = find_place(run.root, variant[0] if variant else None).variant
    job = PublishJob(run, name, out, CardOptions(base_model, repo, overrides), redact)
    found = publish(job, console)
    if found.names is not None:
        _keep_names(found.names, out, console)
    console.result(found.to_json(), _published_text(found))


def _published_text(found: Published) -> RenderableType:
    from clefq.parity.gates.formatting import gigabytes

    verdicts = ", ".join(f"{name}: {word.upper()}" for name, word in found.verdicts.items())
    lines = [
        f"folder    {found.folder}  ({gigabytes(found.nbytes)})",
        f"verdict   {verdicts}",
        f"evidence  {found.tree.sha256}",
        *(f"note      {note}" for note in found.notes),
        f"check     clefq bundle --verify {found.folder}",
        "upload with",
        f"  {found.command}",
    ]
    return "\n".join(lines)
