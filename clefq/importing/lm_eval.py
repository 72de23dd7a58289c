"""`samples_*.jsonl` of lm-evaluation-harness (`--log_samples`).

A multiple-choice sample holds the log-likelihood of every continuation: made to sum to one they
are the distribution that its `acc` takes the largest of. (`acc_norm` divides by lengths first, and
may choose otherwise.) A generated sample holds the filtered text: a label.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from clefq.errors import PredictionsError
from clefq.importing.answers import ONLY, Answer, Asked, Key
from clefq.importing.values import Gathered, mapping, number

DEFAULT_ID = "{doc_id}"


def read_lm_eval(path: Path, file: Iterable[str], template: str | None) -> dict[Key, Answer]:
    """Reads a samples file.

    Continuations are matched with the set's options by id or by description, without the space
    around them. Each sample is the only question of its record.

    Args:
        path: For messages.
        file: Its lines.
        template: How a sample names its record, such as `row-{doc_id:06d}` or `{doc[id]}`; None
            for `{doc_id}`.

    Raises:
        PredictionsError: Lines are malformed.
    """
    _check_template(template or DEFAULT_ID)
    gathered = Gathered(path)
    for line, value in gathered.lines(file):
        with gathered.reading(line):
            sample = mapping(value, "the line")
            record = _record_id(sample, template or DEFAULT_ID)
            gathered.add((record, ONLY), _answer(sample, f"{path}:{line}"))
    return gathered.result()


def _check_template(template: str) -> None:
    """Refuses widths that would fill the memory.

    Raises:
        PredictionsError: No template, or a width or precision of more than three digits.
    """
    try:
        specs = [spec or "" for _, _, spec, _ in Formatter().parse(template)]
    except ValueError as error:
        raise PredictionsError(
            f"--id {template}: {error}.", fix="write {doc_id} or {doc[id]}."
        ) from error
    if any("{" in spec or re.search(r"\d{4}", spec) for spec in specs):
        raise PredictionsError(
            f"--id {template} asks for a width that no id has.", fix="write {doc_id:06d}, say."
        )


def _record_id(sample: Mapping[str, Any], template: str) -> str:
    try:
        return template.format_map(dict(sample))
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"--id {template} does not fit the sample: {error!r}") from error


def _answer(sample: Mapping[str, Any], where: str) -> Answer:
    arguments = _arguments(sample.get("arguments"))
    found = sample.get("filtered_resps")
    if not isinstance(found, list) or not found:
        raise ValueError("needs filtered_resps")
    texts = [continuation.strip() for _, continuation in arguments]
    if isinstance(found[0], list) and len(found) == len(texts) > 1:
        if len(set(texts)) < len(texts):
            raise ValueError("two continuations are the same")
        logs = [number(pair[0], "a log-likelihood") for pair in found]
        values = dict(zip(texts, logs, strict=True))
        asked = _asked(sample, arguments[0][0], texts)
        return Answer(where, values=values, logs=True, naming="texts", relative=True, asked=asked)
    if len(found) != 1 or not isinstance(found[0], str):
        raise ValueError("filtered_resps is neither a list of log-likelihoods nor one text")
    return Answer(where, label=found[0].strip(), naming="texts")


def _arguments(value: Any) -> list[tuple[str, str]]:
    """Context and continuation of every request."""
    if isinstance(value, dict):
        value = [[item.get("arg_0"), item.get("arg_1")] for item in value.values()]
    if not isinstance(value, list) or not value:
        raise ValueError("needs arguments")
    pairs = [[*item, None, None][:2] for item in value if isinstance(item, list)]
    if len(pairs) != len(value):
        raise ValueError("arguments hold something other than lists")
    return [(str(one), other if isinstance(other, str) else "") for one, other in pairs]


def _asked(sample: Mapping[str, Any], context: str, texts: Sequence[str]) -> Asked:
    question = {"type": "choice", "criteria": dict.fromkeys(texts)}
    cohort = str(sample.get("task") or "imported")
    return Asked(question, context, cohort, _gold(sample, texts), verbatim=False)


def _gold(sample: Mapping[str, Any], texts: Sequence[str]) -> str | None:
    """The right continuation: by its text, or by its place from 0.

    Raises:
        ValueError: Both readings are possible, and differ, or it is a place that is not there.
    """
    target = sample.get("target")
    text = str(target).strip()
    by_text = text if text in texts and not isinstance(target, int) else None
    place = int(text) if text.isdecimal() and int(text) < len(texts) else None
    by_place = None if place is None else texts[place]
    if by_place is None and isinstance(target, int) and not isinstance(target, bool):
        raise ValueError(f"target {text} is no place among {len(texts)} continuations, from 0")
    if by_text is not None and by_place is not None and by_text != by_place:
        raise ValueError(f"target {text!r} may be a text or a place among {', '.join(texts)}")
    return by_text if by_text is not None else by_place
