"""The model card: front matter and sections, every figure taken from the evidence.

A section stands between two comments, so that `clefq card` can write it again and `--check` can
compare it, while the publisher's own words around it stay. What was not measured is not said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2

from clefq.errors import InputError
from clefq.names.hub import is_hub_id
from clefq.parity.gates.formatting import (
    count,
    figure,
    gigabytes,
    interval,
    markdown_cell,
    short_hash,
)
from clefq.release import card_rows
from clefq.release.caveats import caveats
from clefq.release.evidence import PLUGIN, RELEASE_CODE, Evidence

SECTIONS = (
    "verdict", "parity", "usage", "quantization", "gates", "throughput", "caveats", "evidence",
)  # fmt: skip
LIBRARY = "transformers"
PIPELINE = "text-classification"
_TAGS = ("clef", "systemone", "decision-model", "quantized", "compressed-tensors", "vllm")


@dataclass(frozen=True, slots=True)
class CardOptions:
    """What the publisher says that no evidence knows; kept in the card, so that it can be checked.

    Attributes:
        base_model: Hub id of the BF16 model, or None to take it from `clefq.json`.
        repo: Hub id under which the checkpoint is to be published, or None.
        overrides: What was published in spite of: `audit` or `card`.

    Raises:
        InputError: One of the two is no hub id.
    """

    base_model: str | None = None
    repo: str | None = None
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("--base-model", self.base_model), ("--repo", self.repo)):
            if value is not None and not is_hub_id(value):
                raise InputError(f"{name} {value!r} is no hub id.", fix="give ORG/NAME.")


@dataclass(frozen=True, slots=True)
class Card:
    """A card in its parts.

    Attributes:
        front: YAML front matter.
        header: What the card was made for, as JSON values: variant and `CardOptions`.
        title: The first heading.
        sections: Name → Markdown, in the order of `SECTIONS`.
    """

    front: Mapping[str, Any]
    header: Mapping[str, Any]
    title: str
    sections: Mapping[str, str]


def make_card(found: Evidence, options: CardOptions) -> Card:
    """Renders a card.

    Args:
        found: The evidence.
        options: What the publisher adds.

    Raises:
        InputError: `base_model` contradicts the recorded source, or a report compares with
            something else than BF16.
    """
    _check_baselines(found)
    base = _base_model(found, options)
    values = {
        "found": found,
        "options": options,
        "base": base,
        "name": model_name(found, options),
        "manifest": found.manifest,
        "sets": found.sets,
        "size": card_rows.size_row(found),
        "plugin": found.has(PLUGIN),
        "release_code": found.has(RELEASE_CODE),
        "request": request_text(model_name(found, options)),
        "curl": curl_command(model_name(found, options)),
        "speeds": card_rows.speeds(found),
        "speed_notes": card_rows.speed_notes(found),
        "simulated": any(bench.simulated for bench in found.benches),
        "caveats": caveats(found),
        "breaches": card_rows.breaches(found),
    }
    sections = {
        name: _environment().get_template(f"{name}.md.j2").render(values).strip()
        for name in SECTIONS
    }
    header = {"variant": found.place.variant, **asdict(options)}
    return Card(_front(found, base), header, f"# {model_name(found, options)}", sections)


REQUEST: dict[str, Any] = {
    "model": "clef",
    "state": {"message": "I was charged twice for the same order, please refund one of them."},
    "questions": {
        "team": {
            "type": "choice",
            "instructions": "Which team should handle this message?",
            "criteria": {
                "billing": "payments, invoices and refunds",
                "shipping": "delivery and tracking",
                "technical": "errors in the product",
            },
        },
        "refund": {"type": "noul", "instructions": "Does the customer ask for money back?"},
        "urgency": {
            "type": "score",
            "instructions": "How urgent is it?",
            "criteria": ["it can wait", "this week", "today"],
        },
    },
}


def request_text(name: str) -> str:
    """The example request as JSON that is Python, too; a line per question."""
    questions = [f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in REQUEST["questions"].items()]
    return "\n".join(
        [
            "{",
            f'  "model": {json.dumps(name)},',
            f'  "state": {json.dumps(REQUEST["state"])},',
            '  "questions": {',
            ",\n".join(questions),
            "  }",
            "}",
        ]
    )


def curl_command(name: str) -> str:
    """The example request as a command for a shell."""
    return (
        "curl -s http://127.0.0.1:8000/v1/systemone -H 'Content-Type: application/json' "
        f"-d '{request_text(name)}'"
    )


def model_name(found: Evidence, options: CardOptions) -> str:
    """The name people will know the checkpoint by."""
    if options.repo is not None:
        return options.repo.rpartition("/")[2]
    source = None if found.manifest is None else str(found.manifest.source["model_id"])
    if source is not None and "/" in source:
        return f"{source.rpartition('/')[2]}-{found.place.variant}"
    return found.place.variant


def _check_baselines(found: Evidence) -> None:
    """A card's tables are headed BF16; what an unknown server ran is a banner of the verdict."""
    for item in found.sets:
        side = item.document["baseline"]
        if side["scheme"] not in ("bf16", "unknown") or side["arithmetic"] != "bf16":
            raise InputError(
                f"{item.path} compares with {side['variant']} ({side['scheme']}, run as "
                f"{side['arithmetic']}), not with BF16.",
                fix="judge it against BF16: clefq parity --baseline bf16",
            )


def _base_model(found: Evidence, options: CardOptions) -> str | None:
    """Hub id of the BF16 model, or None where nobody knows it."""
    source = None if found.manifest is None else str(found.manifest.source["model_id"])
    recorded = source if source is not None and "/" in source else None
    given = options.base_model
    if given is not None and recorded is not None and given != recorded:
        raise InputError(
            f"--base-model is {given}, but clefq.json says that the source is {recorded}.",
            fix="leave it out, or quantize from the model that you mean.",
        )
    return given or recorded


def _front(found: Evidence, base: str | None) -> dict[str, Any]:
    front: dict[str, Any] = {}
    licence = card_rows.licence(found.place.model)
    if licence is not None:
        front["license"] = licence
        if licence == "other":
            front |= {"license_name": "see-license-file", "license_link": "LICENSE"}
    if base is not None:
        front |= {"base_model": base, "base_model_relation": "quantized"}
    front |= {"library_name": LIBRARY, "pipeline_tag": PIPELINE}
    kinds = [found.scheme] if found.scheme != "unknown" else []
    maker = [] if found.manifest is None else ["llm-compressor", "clefq"]
    front["tags"] = [*_TAGS, *kinds, *maker]
    return front


@cache
def _environment() -> jinja2.Environment:
    folder = files("clefq.release").joinpath("templates")
    names = [f"{name}.md.j2" for name in SECTIONS]
    environment = jinja2.Environment(
        loader=jinja2.DictLoader({n: folder.joinpath(n).read_text("utf-8") for n in names}),
        # Markdown: cells are escaped where a name or a sentence of the user's enters
        autoescape=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        cell=markdown_cell, count=count, figure=figure, interval=interval, short=short_hash,
        gb=gigabytes, duration=card_rows.duration,
    )  # fmt: skip
    environment.globals.update(
        parity_rows=card_rows.parity_rows,
        gate_rows=card_rows.gate_rows,
        evidence_rows=card_rows.evidence_rows,
        history=card_rows.history,
        rounding_text=card_rows.rounding_text,
        stored_as=card_rows.stored_as,
    )
    return environment
