"""LEDGAR: contract provisions of 100 kinds, as LexGLUE selects them (CC-BY-4.0).

Reads `{train,validation,test}.jsonl` (or the sample `test_1000.jsonl`): text, label from 0 to 99.
The provision is the state; the 100 kinds are the options under their own names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clefq.data.readers import Row, RowError, jsonl_rows, text_field
from clefq.data.sources.base import Example, HubRef, NoOptions, ReadSpec, Source, choice, single

INSTRUCTIONS = "Which kind of contract provision is this?"

# In the order of LexGLUE's label numbers.
LABELS: tuple[str, ...] = (
    "Adjustments",
    "Agreements",
    "Amendments",
    "Anti-Corruption Laws",
    "Applicable Laws",
    "Approvals",
    "Arbitration",
    "Assignments",
    "Assigns",
    "Authority",
    "Authorizations",
    "Base Salary",
    "Benefits",
    "Binding Effects",
    "Books",
    "Brokers",
    "Capitalization",
    "Change In Control",
    "Closings",
    "Compliance With Laws",
    "Confidentiality",
    "Consent To Jurisdiction",
    "Consents",
    "Construction",
    "Cooperation",
    "Costs",
    "Counterparts",
    "Death",
    "Defined Terms",
    "Definitions",
    "Disability",
    "Disclosures",
    "Duties",
    "Effective Dates",
    "Effectiveness",
    "Employment",
    "Enforceability",
    "Enforcements",
    "Entire Agreements",
    "Erisa",
    "Existence",
    "Expenses",
    "Fees",
    "Financial Statements",
    "Forfeitures",
    "Further Assurances",
    "General",
    "Governing Laws",
    "Headings",
    "Indemnifications",
    "Indemnity",
    "Insurances",
    "Integration",
    "Intellectual Property",
    "Interests",
    "Interpretations",
    "Jurisdictions",
    "Liens",
    "Litigations",
    "Miscellaneous",
    "Modifications",
    "No Conflicts",
    "No Defaults",
    "No Waivers",
    "Non-Disparagement",
    "Notices",
    "Organizations",
    "Participations",
    "Payments",
    "Positions",
    "Powers",
    "Publicity",
    "Qualifications",
    "Records",
    "Releases",
    "Remedies",
    "Representations",
    "Sales",
    "Sanctions",
    "Severability",
    "Solvency",
    "Specific Performance",
    "Submission To Jurisdiction",
    "Subsidiaries",
    "Successors",
    "Survival",
    "Tax Withholdings",
    "Taxes",
    "Terminations",
    "Terms",
    "Titles",
    "Transactions With Affiliates",
    "Use Of Proceeds",
    "Vacations",
    "Venues",
    "Vesting",
    "Waiver Of Jury Trials",
    "Waivers",
    "Warranties",
    "Withholdings",
)


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {text, label}, the label by its name."""
    for file in spec.files:
        for row in jsonl_rows(spec.folder, file):
            yield row if row.fault is not None else _named(row)


def _named(row: Row) -> Row:
    label = row.value.get("label")
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < len(LABELS):
        return Row(row.file, row.number, None, f"unknown label {label!r}")
    return Row(row.file, row.number, {"text": row.value.get("text"), "label": LABELS[label]})


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Hub row {text, label} with the label's name → the same."""
    return {"text": row["text"], "label": row["label"]}


def build(value: dict[str, Any], record_id: str, options: NoOptions) -> Iterable[Example]:
    """One record: the provision, one choice question with 100 options."""
    text, label = text_field(value, "text"), text_field(value, "label")
    if label not in LABELS:
        raise RowError(f"unknown label {label!r}")
    question = choice("kind", INSTRUCTIONS, dict.fromkeys(sorted(LABELS)))
    yield single(record_id, "ledgar", text, question, label)


SOURCE = Source(
    name="ledgar",
    title="LEDGAR",
    licence="CC-BY-4.0",
    attribution="LEDGAR, Tuggener et al. 2020, in LexGLUE, Chalkidis et al. 2022, CC-BY-4.0.",
    revision="d23e81e4a0c59518c0c102357bdeaf4ba0db82f4",
    splits={
        "train": (("train.jsonl",),),
        "validation": (("validation.jsonl",),),
        "test": (("test.jsonl",), ("test_1000.jsonl",)),
    },
    hub=HubRef(
        path="coastalcph/lex_glue",
        revision="c23fdff1a6bf74e0e1a71cb86f1e781d37da888c",
        config="ledgar",
        splits={"train": "train", "validation": "validation", "test": "test"},
    ),
    read=read,
    from_hub=from_hub,
    build=build,
    held_out=("validation", "test"),
)
