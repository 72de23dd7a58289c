"""`clefq build`: a calibration or eval set from a definition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clefq.cli.options import Json, Quiet
from clefq.errors import InputError

if TYPE_CHECKING:
    from clefq.console import Console
    from clefq.data.build import BuildResult
    from clefq.data.definition import Definition
    from clefq.data.loading import Malformed
    from clefq.data.variant_set import VariantCounts
    from clefq.store.set_manifest import Role, SetManifest
    from clefq.store.sets import SetFolder

ROLES = ("calibration", "eval")
LONGEST_REASON = 100
# Questions whose right answers are shown.
MOST_SHOWN = 8


def command(
    role: Annotated[str, typer.Argument(metavar="calibration|eval", help="What the set is for.")],
    name_or_file: Annotated[
        str,
        typer.Argument(
            metavar="NAME_OR_FILE",
            help="A shipped definition, or a .yaml file; with --variants a set.",
        ),
    ],
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="CLEFQ_DATA_DIR",
            help="Folder of original files, one folder per source. Without it: the hub.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Set folder. Default: sets/NAME.")
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="SET",
            help="Remove what duplicates this set, .jsonl of records or .txt of texts; repeatable.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the set (default: its folder's)."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most N records of each entry.")
    ] = None,
    seed: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Another sample than the definition's.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model folder whose tokenizer counts; `none`: no counts. Default: the miniature.",
        ),
    ] = None,
    allow_malformed: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="SHARE",
            help="Share of a source's rows that may be refused before the build fails.",
        ),
    ] = 0.01,
    variants: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Of the set NAME_OR_FILE make one that asks the same in other forms too: all, or "
            "some of opaque, order, negated, alone, crowded, before, after, whitespace, case, "
            "unicode, json, empty.",
        ),
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Build a calibration or eval set: sample, decontaminate, write.

    The same definition and files give the same set, byte for byte, on every machine.

    With --variants the source is a set, and every record stands beside itself in other forms: how
    far answers move is compared by `clefq parity`.
    """
    from clefq.console import Console
    from clefq.data.build import BuildSpec, build_set, limited
    from clefq.data.definition import definition_path, load_definition

    if role not in ROLES:
        raise InputError(f"{role!r} is no role.", fix="say `build calibration` or `build eval`.")
    console = Console(json_output=json_output, quiet=quiet)
    if variants is not None:
        _refuse_with_variants(role, against, limit)
        _variants(name_or_file, variants, (out, name, seed, tokenizer), console)
        return
    path = definition_path(role, name_or_file)  # type: ignore[arg-type]
    definition = limited(load_definition(path, role), limit, seed)  # type: ignore[arg-type]
    target = out if out is not None else Path("sets") / (name or definition.name)
    spec = BuildSpec(
        definition=definition,
        base=path.parent,
        out=target,
        data_dir=data_dir,
        against=tuple(against or ()),
        tokenizer=_tokenizer(tokenizer),
        allow_malformed=allow_malformed,
        name=_set_name(name, target),
    )
    result = build_set(spec, console)
    if role == "calibration" and not spec.against:
        console.note("not compared with any eval set: --against SET does")
    console.result(_as_json(result), _as_text(result, definition))


def _refuse_with_variants(role: str, against: object, limit: object) -> None:
    if role != "eval":
        raise InputError("--variants makes eval sets.", fix="say `build eval`.")
    given = {"--against": against, "--limit": limit}
    for option, value in given.items():
        if value:
            raise InputError(
                f"{option} does not go with --variants.", fix="give it when the set is built."
            )


def _variants(
    source: str,
    names: str,
    options: tuple[Path | None, str | None, str | None, str | None],
    console: Console,
) -> None:
    from clefq.data.variant_set import VariantSpec, build_variants, parse_transforms
    from clefq.names.run_folder import find_run, find_set
    from clefq.store.reading import to_plain

    transforms = parse_transforms(names)
    folder = find_set(source, find_run(None))
    out, name, seed, tokenizer = options
    target = out if out is not None else folder.with_name(name or f"{folder.name}-variants")
    spec = VariantSpec(
        folder, target, transforms, seed, _set_name(name, target), _tokenizer(tokenizer)
    )
    made, counts = build_variants(spec, console)
    plain = to_plain(made.manifest)
    console.result({"path": str(made.path), **plain}, _variants_text(made, counts, folder))


def _variants_text(made: SetFolder, counts: VariantCounts, source: Path) -> Any:
    from clefq.console import name_table
    from clefq.store.variant_links import TRANSFORMS

    rows = [
        ("set", f"{made.name} (eval) → {made.path}"),
        ("of", str(source)),
        ("records", f"{made.manifest.records:,}; gold on the originals alone"),
    ]
    for name, count in counts.made.items():
        same = counts.unchanged[name]
        left = f"; {same:,} records have none" if same else ""
        rows.append((name, f"{count:,} {TRANSFORMS[name].title}{left}"))
    rows += [
        ("hash", made.manifest.sha256),
        ("next", f"clefq predict MODEL --eval {made.path}"),
    ]
    return name_table(rows)


def _set_name(given: str | None, out: Path) -> str:
    """The name given, or that of the set's folder, which predictions and reports go by."""
    from clefq.store.atomic import can_name_folder

    name = out.absolute().name if given is None else given
    if not can_name_folder(name):
        raise InputError(f"{name!r} cannot name a set.", fix="give --name a plain name.")
    return name


def check_definition(role: Role, name_or_file: str) -> None:
    """Reads a definition, to say what is wrong with it before anything else is done.

    Raises:
        DefinitionError: There is none, or it is malformed.
    """
    from clefq.data.definition import definition_path, load_definition

    load_definition(definition_path(role, name_or_file), role)


def build_into(
    role: Role,
    name_or_file: str,
    sets: Path,
    data_dir: Path | None,
    against: Sequence[Path],
    console: Console,
) -> str:
    """Builds a set under its definition's name, unless it is there.

    Args:
        role: What the set is for.
        name_or_file: Definition.
        sets: Folder of the sets.
        data_dir: Folder of original files, or None for the hub.
        against: Sets to compare with.
        console: For notes and progress.

    Returns:
        Name of the set.

    Raises:
        DefinitionError: As `build_set`.
    """
    from clefq.data.build import BuildSpec, build_set
    from clefq.data.definition import definition_path, load_definition

    path = definition_path(role, name_or_file)
    definition = load_definition(path, role)
    target = sets / definition.name
    if target.is_dir():
        console.note(f"{target} is there and stays as it is")
        return definition.name
    console.note(f"building the {role} set {definition.name}")
    build_set(
        BuildSpec(definition, path.parent, target, data_dir, tuple(against), _tokenizer(None)),
        console,
    )
    return definition.name


def _tokenizer(given: str | None) -> Path | None:
    if given == "none":
        return None
    if given is not None:
        return Path(given)
    from clefq.nano import WEIGHTS

    return WEIGHTS if (WEIGHTS / "tokenizer.json").is_file() else None


def _as_json(result: BuildResult) -> dict[str, Any]:
    from clefq.store.reading import to_plain

    plain: dict[str, Any] = to_plain(result.folder.manifest)
    return {"path": str(result.folder.path), "not_compared": result.skipped_references, **plain}


def _as_text(result: BuildResult, definition: Definition) -> Any:
    from clefq.console import name_table

    manifest = result.folder.manifest
    questions = ", ".join(f"{count:,} {kind}" for kind, count in manifest.questions.items())
    rows = [
        ("set", f"{manifest.name} ({manifest.role}) → {result.folder.path}"),
        ("records", f"{manifest.records:,}; questions: {questions}"),
        *[("source" if i == 0 else "", line) for i, line in enumerate(_source_lines(result))],
        *[("cohorts" if i == 0 else "", line) for i, line in enumerate(_cohort_lines(result))],
        *[("answers" if i == 0 else "", line) for i, line in enumerate(class_lines(manifest))],
        ("removed", _removed_line(result)),
        *[("tokens" if i == 0 else "", line) for i, line in enumerate(_token_lines(result))],
        ("hash", manifest.sha256),
        ("next", _next_command(result, definition)),
    ]
    return name_table(rows)


def _source_lines(result: BuildResult) -> list[str]:
    lines = []
    for info, malformed in zip(result.folder.manifest.sources, result.malformed, strict=True):
        revision = info.revision or ""
        short = revision[:8] if len(revision) == 40 else revision
        where = f"{info.origin}, {short}" if short else info.origin
        title = f"{info.source} {info.split}".rstrip()
        text = f"{title} ({where}; {info.licence}): "
        text += f"{info.taken:,} of {info.rows_read:,} rows"
        if malformed:
            text += f", {len(malformed):,} malformed{_commonest(malformed)} (malformed.jsonl)"
        if info.outside_limits:
            text += f", {info.outside_limits:,} outside the token limits (passed_over.jsonl)"
        lines.append(text)
    return lines


def _commonest(malformed: Sequence[Malformed]) -> str:
    """`: REASON`, the commonest, after `, N of them` where there are others."""
    [(reason, count)] = Counter(row.reason for row in malformed).most_common(1)
    shown = reason if len(reason) <= LONGEST_REASON else reason[: LONGEST_REASON - 1] + "…"
    share = "" if count == len(malformed) else f", {count:,} of them"
    return f"{share}: {shown}"


def _cohort_lines(result: BuildResult) -> list[str]:
    cohorts = result.folder.manifest.cohorts
    shown = sorted(cohorts.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{name} {count:,}" for name, count in shown[:12])
    more = len(shown) - 12
    return [text + (f" and {more} more" if more > 0 else "")]


def class_lines(manifest: SetManifest) -> list[str]:
    """Right answers of every question, the commonest first."""
    lines = []
    for name, counts in list(manifest.classes.items())[:MOST_SHOWN]:
        given = {option: count for option, count in counts.items() if option}
        if not any(given.values()):
            continue
        shown = sorted(given.items(), key=lambda item: (-item[1], item[0]))
        text = f"{name}: " + ", ".join(f"{option} {count:,}" for option, count in shown[:12])
        more = len(shown) - 12
        text += f" and {more} more" if more > 0 else ""
        lines.append(text + (f"; without one {counts['']:,}" if counts.get("") else ""))
    more = len(manifest.classes) - MOST_SHOWN
    return [*lines, *([f"and {more} more questions"] if more > 0 else [])]


def _removed_line(result: BuildResult) -> str:
    decontamination = result.folder.manifest.decontamination
    counts = decontamination.removed if decontamination is not None else {}
    if not counts:
        return "no duplicates"
    parts = [
        f"{count:,} {kind.replace('-', ' ')}"
        for kind, count in counts.items()
        if kind != "conflict-within"
    ]
    alike = sum(counts.values()) - counts.get("conflict-within", 0)
    lines = [f"{alike:,} duplicates: {', '.join(parts)} (removed.jsonl)"] if parts else []
    if counts.get("conflict-within"):
        lines.append(
            f"{counts['conflict-within']:,} with another right answer for the same content; none "
            "of them is kept (conflicts.jsonl)"
        )
    return "; ".join(lines)


def _token_lines(result: BuildResult) -> list[str]:
    lengths = result.folder.manifest.token_lengths
    if lengths is None:
        return ["not counted (no tokenizer); token limits were not applied"]
    bands = ", ".join(f"{name} {count:,}" for name, count in lengths.bands.items() if count)
    return [
        f"{lengths.total:,} by {lengths.tokenizer}'s tokenizer; median {lengths.median:,}, "
        f"95% below {lengths.p95:,}, longest {lengths.longest:,}",
        bands,
    ]


def _next_command(result: BuildResult, definition: Definition) -> str:
    path = result.folder.path
    if definition.role == "calibration":
        return f"clefq quantize MODEL --scheme nvfp4 --calibration {path}"
    return f"clefq predict MODEL --eval {path} --engine transformers"
