"""Writes the reference pages from the code, before Sphinx reads the folder.

What a page says is what the commands, the dataclasses and the schemas say: nothing is copied by
hand, so nothing can be out of date. The pages lie in docs/reference/ and are not under version
control.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import clefq

ROOT = Path(clefq.__file__).resolve().parent
NOTE = "*This page is generated from the code.*"


def setup(app: Any) -> dict[str, Any]:
    """Sphinx's entry point."""
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir) / "reference"))
    return {"version": clefq.__version__, "parallel_read_safe": True}


def write_pages(folder: Path) -> None:
    """Writes every page; one that has not changed keeps its time."""
    folder.mkdir(exist_ok=True)
    pages = {"cli": cli_page, "formats": formats_page, "metrics": metrics_page}
    for name, page in pages.items():
        _write(folder / f"{name}.md", "\n".join(page()) + "\n")
    for name, schema in schemas().items():
        _write(folder / name, json.dumps(schema, indent=2, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


# --- commands


def cli_page() -> Iterator[str]:
    """Every command with its arguments and options."""
    import typer

    from clefq.cli.main import app

    yield from ("# Commands", "", NOTE, "")
    yield "`--json` prints one JSON document, `--quiet` silences notes and progress bars. Notes go"
    yield "to stderr, results to stdout. Ctrl-C leaves nothing half-written, and the same command"
    yield "goes on where it was stopped."
    yield ""
    yield from table(("exit code", "means"), EXIT_CODES)
    group = typer.main.get_command(app)
    for name, command in walk(group, "clefq"):
        yield from _command(name, command)


EXIT_CODES = (
    ("0", "done; for a judging command: pass"),
    ("1", "fail, or an audit found a breach"),
    ("2", "wrong use or input: one line says what and how to mend it"),
    ("3", "inconclusive: not enough evidence either way"),
    ("4", "invalid: the comparison itself is unsound"),
    ("130", "stopped by Ctrl-C"),
)


def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """All commands below a group, with their whole names."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for leaf, below in command.commands.items():
        yield from walk(below, f"{name} {leaf}")


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument" and not p.hidden]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    options = [option for option in options if option.name != "help"]
    usage = " ".join([name, *(_argument_name(a) for a in arguments), "[OPTIONS]"])
    yield from ("", f"## {name}", "", "```text", usage, "```", "", inspect.cleandoc(command.help))
    yield ""
    if arguments:
        rows = [(f"`{_argument_name(a)}`", _help(a)) for a in arguments]
        yield from table(("argument", "meaning"), rows)
    yield from table(("option", "meaning"), [(_option_name(o), _help(o)) for o in options])


def _argument_name(parameter: Any) -> str:
    text = parameter.metavar or parameter.name.upper()
    if parameter.required or text.startswith("["):
        return str(text)
    return f"[{text}]"


def _option_name(option: Any) -> str:
    leaf = option.opts[0].rpartition("-")[2].upper()
    value = "" if option.is_flag else f" {option.metavar or leaf}"
    names = [f"`{name}{value}`" for name in option.opts]
    names += [f"`{name}`" for name in option.secondary_opts]
    return " / ".join(names)


def _help(parameter: Any) -> str:
    parts = [parameter.help or ""]
    if parameter.required and parameter.param_type_name == "option":
        parts.append("Required.")
    multiple = getattr(parameter, "multiple", False) or parameter.nargs == -1
    if multiple and "repeatable" not in parts[0]:
        parts.append("Repeatable.")
    default = parameter.default
    shown = default is not None and not callable(default) and default not in (False, "", [], ())
    if shown and not parameter.required and "efault" not in parts[0]:
        parts.append(f"Default: `{default}`.")
    variable = parameter.envvar
    if variable:
        parts.append(f"Or `{variable}` in the environment.")
    return " ".join(part for part in parts if part)


# --- metrics


def metrics_page() -> Iterator[str]:
    """Every metric, from its card."""
    from clefq.parity.statistics.metric_facts import load_facts

    yield from ("# Metrics", "", NOTE, "")
    yield "Names as in `parity.json` and in gate files. `@T` and `@NAME` stand for a threshold and"
    yield "a policy of the gate file. Figures are fractions. How intervals are made, and why, is in"
    yield "[Parity statistics](../statistics.md)."
    yield ""
    rows = [
        (
            f"`{name}`",
            f"**{card.title}.** {card.meaning}",
            {"higher": "higher", "lower": "lower"}.get(card.direction, card.direction),
            _gate_of(card),
        )
        for name, card in load_facts().items()
    ]
    yield from table(("metric", "meaning", "better", "gate"), rows)


def _gate_of(card: Any) -> str:
    if not card.gate:
        return "–"
    return "margin" if card.kind == "difference" else "bound"


# --- formats


def formats_page() -> Iterator[str]:
    """Every file that clefq writes and others may read."""
    from clefq.ci.spec import JobResult, Step
    from clefq.parity.gates.schema import (
        BoundBaseline,
        Gate,
        GateFile,
        PolicySpec,
        SliceSelector,
    )
    from clefq.quantize.manifest import Manifest
    from clefq.release.hash_tree import HashTree
    from clefq.store.predictions import PredictionsMeta
    from clefq.store.set_manifest import Decontamination, SetManifest, SourceInfo, TokenLengths

    yield from ("# File formats", "", NOTE, "")
    yield "Everything is written beside its name and renamed at the end; every file names the"
    yield "hashes of what it was made from; unknown keys are refused. Figures are fractions,"
    yield "infinity is null plus a count. JSON Schemas:"
    yield ", ".join(f"{{download}}`{name}`" for name in schemas()) + "."
    yield from ("", "## Predictions", "")
    yield "`predictions/<set>/<variant>.parquet`: one row a question, `record_id` and `question_id`"
    yield "unique together."
    yield ""
    yield from table(("column", "type", "meaning"), _columns())
    yield "The file's metadata key `clefq` holds one JSON object:"
    yield ""
    yield from fields(PredictionsMeta)
    yield from ("", "## Set manifest", "", "`manifest.json` of a [set folder](../data.md):", "")
    yield from fields(SetManifest)
    for title, cls in (
        ("An entry of `sources`", SourceInfo),
        ("`token_lengths`", TokenLengths),
        ("`decontamination`", Decontamination),
    ):
        yield from (f"{title}:", "")
        yield from fields(cls)
    yield from ("", "## Checkpoint manifest", "", "`clefq.json` of a quantized checkpoint:", "")
    yield from fields(Manifest)
    yield from ("", "## Gate file", "", "YAML; see [Gate files](../parity.md#gate-files).", "")
    yield from fields(GateFile)
    for title, cls in (
        ("An entry of `gates`", Gate),
        ("`slice` of a gate", SliceSelector),
        ("An entry of `policies`", PolicySpec),
        ("`baseline` of a frozen file", BoundBaseline),
    ):
        yield from (f"{title}:", "")
        yield from fields(cls)
    yield from _parity()
    yield from ("", "## Evidence bundle", "", "`evidence.json` of a")
    yield from ("[bundle](../publish.md#the-evidence-bundle) or a published folder:", "")
    yield from fields(HashTree)
    yield from ("", "## CI result", "", "`ci.json` of [`clefq ci`](../ci.md):", "")
    exit_code = ("exit_code", "The process's exit code.")
    names = ("schema", "`clefq.ci/1`"), ("clefq_version", "Version that wrote the file.")
    sets = ("sets", "`summary.json` of every set, with its `report_folder`.")
    rows = [row for row in _attributes(JobResult).items() if row[0] != "reports"]
    yield from table(("key", "meaning"), code([*names, exit_code, *rows, sets]))
    yield from ("An entry of `steps`:", "")
    yield from fields(Step)


COLUMNS = {
    "record_id": "The record.",
    "cohort": "The record's cohort.",
    "question_id": "The question within its record.",
    "question_type": "`noul` (true or false), `choice` or `score`.",
    "option_ids": "Options in the order of the prompt.",
    "logprobs": "Natural logarithms, in that order; null with an error; zero is −inf. They sum to "
    "one within 1e-12 unless a `probability_quantum` is declared.",
    "gold": "Id of the right option, from the set, or null.",
    "input_tokens": "Length of the prompt as run.",
    "truncated_tokens": "Tokens of the state that were cut.",
    "error": "Why there is no answer, or null.",
}


def _columns() -> Iterator[tuple[str, str, str]]:
    from clefq.store.predictions import ARROW_SCHEMA

    for field in ARROW_SCHEMA:
        null = ", or null" if field.nullable else ""
        kind = str(field.type).replace("element: ", "").replace("item: ", "")
        yield f"`{field.name}`", f"`{kind}`{null}", COLUMNS[field.name]


def _parity() -> Iterator[str]:
    from clefq.parity.report.documents import load_schema

    schema = load_schema("parity")
    yield from ("", "## Parity report", "")
    yield "`report/<set>/<variant>/parity.json` follows this"
    yield "{download}`JSON Schema <parity.schema.json>` (draft 2020-12), and the `summary.json`"
    yield "beside it {download}`this one <summary.schema.json>`."
    yield ""
    for name, part in (
        ("the report", schema),
        *((f"`{n}`", p) for n, p in schema["$defs"].items()),
    ):
        if part["properties"]:
            yield from (f"Keys of {name}:", "")
            rows = [
                (f"`{key}`", _kind(value), value.get("description", ""))
                for key, value in part["properties"].items()
            ]
            yield from table(("key", "value", "meaning"), rows)


def schemas() -> dict[str, dict[str, Any]]:
    """File name → JSON Schema of a file that clefq writes."""
    from clefq.data.definition import Definition
    from clefq.parity.gates.schema import GateFile
    from clefq.parity.report.documents import load_schema
    from clefq.quantize.manifest import Manifest
    from clefq.release.hash_tree import HashTree
    from clefq.sensitivity.schema import Sensitivity
    from clefq.store.predictions import PredictionsMeta
    from clefq.store.reading import json_schema
    from clefq.store.set_manifest import SetManifest

    found = {
        "parity": load_schema("parity"),
        "summary": load_schema("summary"),
        "definition": json_schema(Definition),
        "gates": json_schema(GateFile),
        "set-manifest": json_schema(SetManifest),
        "checkpoint-manifest": json_schema(Manifest),
        "predictions-metadata": json_schema(PredictionsMeta),
        "sensitivity": json_schema(Sensitivity),
        "evidence": json_schema(HashTree),
    }
    return {f"{name}.schema.json": {"$schema": _DRAFT, **value} for name, value in found.items()}


_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def _kind(value: Mapping[str, Any]) -> str:
    """One value of a JSON Schema in words."""
    if "$ref" in value:
        return f"`{value['$ref'].rpartition('/')[2]}`"
    if "const" in value:
        return f"always `{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{json.dumps(each)}`" for each in value["enum"])
    if "anyOf" in value:
        kinds = [_kind(each) for each in value["anyOf"]]
        return " or ".join(dict.fromkeys(kinds))
    kind = value.get("type", "any")
    if kind == "array" and value.get("items"):
        return f"array of {_kind(value['items'])}"
    if kind == "object" and value.get("properties"):
        return "object: " + ", ".join(f"`{name}`" for name in value["properties"])
    if kind == "object" and isinstance(value.get("additionalProperties"), dict):
        return f"object, name to {_kind(value['additionalProperties'])}"
    return str(kind)


# --- tables


def fields(cls: type, first: Sequence[tuple[str, str]] = ()) -> Iterator[str]:
    """A dataclass as a table: its fields, and what its docstring says of them."""
    rows = ((name, re.sub(r"\bNone\b", "null", text)) for name, text in _attributes(cls).items())
    return table(("key", "meaning"), code([*first, *rows]))


def _attributes(cls: type) -> dict[str, str]:
    """Field to its text in the docstring's Attributes; every field must have one."""
    doc = inspect.getdoc(cls) or ""
    section = doc.partition("Attributes:\n")[2]
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        start = re.match(r"    (\w+): (.*)", line)
        if start:
            name = start[1]
            found[name] = start[2]
        elif line.startswith("        ") and name:
            found[name] += " " + line.strip()
        elif line and not line.startswith(" "):
            break
    missing = {field.name for field in dataclasses.fields(cls)} - set(found)
    if missing:
        raise ValueError(f"{cls.__name__} does not say what {', '.join(sorted(missing))} means")
    return found


def code(rows: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Rows with their first cell as code."""
    return ((f"`{name}`", text) for name, text in rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A Markdown table and an empty line; nothing for no rows."""
    lines = ["| " + " | ".join(_cell(each) for each in row) + " |" for row in rows]
    if not lines:
        return
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    yield from lines
    yield ""


def _cell(text: str) -> str:
    plain = " ".join(text.split()).replace("|", "\\|")
    # dollars and brackets outside of code would start math or links
    return re.sub(r"(?<![`\w])\$(?=\w)", r"\\$", plain)
