"""PhishNChips v5.2: 2,000 e-mails with a link, half of them phishing (MIT, mixed sources of links).

Reads `core_emails.csv`: id, email_content (JSON with sender, from, subject, body,
link_display_text, link_url), phish_label (1 or 0). The e-mail is the state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clefq.data.readers import Row, RowError, csv_rows, text_field
from clefq.data.sources.base import Example, HubRef, NoOptions, ReadSpec, Source, noul, single

FIELDS = ("sender", "from", "subject", "body", "link_display_text", "link_url")
QUESTION = noul("phishing", "Is this e-mail an attempt at phishing?")


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as the original has them."""
    for file in spec.files:
        yield from csv_rows(spec.folder, file)


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Hub row → the same, the label as text."""
    return {**row, "id": str(row["id"]), "phish_label": str(row["phish_label"])}


def build(value: dict[str, Any], record_id: str, options: NoOptions) -> Iterable[Example]:
    """One record: the e-mail, one true/false question."""
    label = text_field(value, "phish_label").strip()
    if label not in ("0", "1"):
        raise RowError(f"phish_label is {label!r}, neither 0 nor 1")
    try:
        email = json.loads(text_field(value, "email_content"))
    except json.JSONDecodeError as error:
        raise RowError("email_content is not JSON") from error
    missing = [name for name in FIELDS if not isinstance(email, dict) or name not in email]
    if missing:
        raise RowError(f"the e-mail lacks {', '.join(missing)}")
    state = {name: email[name] for name in FIELDS}
    answer = "true" if label == "1" else "false"
    key = f"phishnchips-{text_field(value, 'id')}"
    yield single(key, "phishnchips", state, QUESTION, answer)


SOURCE = Source(
    name="phishnchips",
    title="PhishNChips v5.2",
    licence="MIT, links under their sources' terms",
    attribution="PhishNChips v5.2, Litvak 2026; links from OpenPhish, PhishTank and Tranco.",
    revision="v5.2",
    splits={"test": (("core_emails.csv",), ("data/core_emails.csv",))},
    hub=HubRef(
        path="AreLit/PhishNChips",
        revision="89afcc39610084298c4679159cb2e27d9ffffa46",
        config="emails",
        splits={"test": "core"},
    ),
    read=read,
    from_hub=from_hub,
    build=build,
    held_out=("test",),
)
