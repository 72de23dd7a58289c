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
    from clefq.data.build import BuildResult
    from clefq.data.definition import Definition
    from clefq.data.loading import Malformed
    from clefq.store.set_manifest import SetManifest

ROLES = ("calibration", "eval")
LONGEST_REASON = 100
# Questions whose right answers are shown.
MOST_SHOWN = 8


def command(
    role: Annotated[str, typer.Argument(metavar="calibration|eval", help="What the set is for.")],
    name_or_file: Annotated[
        str, typer.Argument(metavar="NAME_OR_FILE", help="A shipped definition, or a .yaml file.")
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
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Build a calibration or eval set: sample, decontaminate, write.

    The same definition and files give the same set, byte for byte, on every machine.
    """
    from clefq.console import Console
    from clefq.data.build import BuildSpec, build_set, limited
    from clefq.data.definition import definition_path, load_definition

    if role not in ROLES:
        raise InputError(f"{role!r} is no role.", fix="say `build calibration` or `build eval`.")
    console = Console(json_output=json_output, quiet=quiet)
    path = definition_path(role, name_or_file)  # type: ignore[arg-type]
    definition = limited(load_definition(path, role), limit, seed)  # type: ignore[arg-type]
    spec = BuildSpec(
        definition=definition,
        base=path.parent,
        out=out if out is not None else Path("sets") / definition.name,
        data_dir=data_dir,
        against=tuple(against or ()),
        tokenizer=_tokenizer(tokenizer),
        allow_malformed=allow_malformed,
    )
    result = build_set(spec, console)
    if role == "calibration" and not spec.against:
        console.note("not compared with any eval set: --against SET does")
    console.result(_as_json(result), _as_text(result, definition))


def _tokenizer(given: str | None) -> Path | None:
    if given == "none":
        return None
    if given is not None:
        return Path(given)
    from clefq.nano.build import WEIGHTS

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
