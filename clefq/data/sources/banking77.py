"""BANKING77: 13,083 customer messages to a bank, 77 intents (CC-BY-4.0).

Files `train.csv` and `test.csv` with columns text, category. The message is the state; the
intents are the options under their own names, without descriptions, because the names read as
such. `schema: ten` offers the right intent and nine others, chosen by the row's id alone, so
that the record is the same whatever the seed; `schema: full` offers all 77.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clefq.data.readers import Row, RowError, csv_rows, text_field
from clefq.data.sources.base import Example, HubRef, ReadSpec, Source, choice, single
from clefq.plain_files import stable_order
from clefq.store.reading import Stored

QUESTION_ID = "intent"
INSTRUCTIONS = "Which banking intent does the customer's message express?"

LABELS: tuple[str, ...] = (
    "Refund_not_showing_up",
    "activate_my_card",
    "age_limit",
    "apple_pay_or_google_pay",
    "atm_support",
    "automatic_top_up",
    "balance_not_updated_after_bank_transfer",
    "balance_not_updated_after_cheque_or_cash_deposit",
    "beneficiary_not_allowed",
    "cancel_transfer",
    "card_about_to_expire",
    "card_acceptance",
    "card_arrival",
    "card_delivery_estimate",
    "card_linking",
    "card_not_working",
    "card_payment_fee_charged",
    "card_payment_not_recognised",
    "card_payment_wrong_exchange_rate",
    "card_swallowed",
    "cash_withdrawal_charge",
    "cash_withdrawal_not_recognised",
    "change_pin",
    "compromised_card",
    "contactless_not_working",
    "country_support",
    "declined_card_payment",
    "declined_cash_withdrawal",
    "declined_transfer",
    "direct_debit_payment_not_recognised",
    "disposable_card_limits",
    "edit_personal_details",
    "exchange_charge",
    "exchange_rate",
    "exchange_via_app",
    "extra_charge_on_statement",
    "failed_transfer",
    "fiat_currency_support",
    "get_disposable_virtual_card",
    "get_physical_card",
    "getting_spare_card",
    "getting_virtual_card",
    "lost_or_stolen_card",
    "lost_or_stolen_phone",
    "order_physical_card",
    "passcode_forgotten",
    "pending_card_payment",
    "pending_cash_withdrawal",
    "pending_top_up",
    "pending_transfer",
    "pin_blocked",
    "receiving_money",
    "request_refund",
    "reverted_card_payment?",
    "supported_cards_and_currencies",
    "terminate_account",
    "top_up_by_bank_transfer_charge",
    "top_up_by_card_charge",
    "top_up_by_cash_or_cheque",
    "top_up_failed",
    "top_up_limits",
    "top_up_reverted",
    "topping_up_by_card",
    "transaction_charged_twice",
    "transfer_fee_charged",
    "transfer_into_account",
    "transfer_not_received_by_recipient",
    "transfer_timing",
    "unable_to_verify_identity",
    "verify_my_identity",
    "verify_source_of_funds",
    "verify_top_up",
    "virtual_card_not_working",
    "visa_or_mastercard",
    "why_verify_identity",
    "wrong_amount_of_cash_received",
    "wrong_exchange_rate_for_cash_withdrawal",
)


@dataclass(frozen=True, slots=True)
class Options(Stored):
    """Options of a definition.

    Attributes:
        schema: `full` (77 options) or `ten` (the right one and nine others).
    """

    schema: Literal["full", "ten"] = "full"


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {text, category}."""
    for file in spec.files:
        yield from csv_rows(spec.folder, file)


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Hub row {text, label, label_text} → {text, category}."""
    return {"text": row["text"], "category": row["label_text"]}


def offered(label: str, record_id: str, schema: str) -> tuple[str, ...]:
    """Option ids of a record, sorted."""
    if schema == "full":
        return tuple(sorted(LABELS))
    others = stable_order((name for name in LABELS if name != label), record_id)
    return tuple(sorted([label, *others[:9]]))


def build(value: dict[str, Any], record_id: str, options: Options) -> Iterable[Example]:
    """One record: the message, one choice question."""
    text, label = text_field(value, "text"), text_field(value, "category")
    if label not in LABELS:
        raise RowError(f"unknown label {label!r}")
    criteria = dict.fromkeys(offered(label, record_id, options.schema))
    question = choice(QUESTION_ID, INSTRUCTIONS, criteria)
    yield single(record_id, "banking77", text, question, label)


SOURCE = Source(
    name="banking77",
    title="BANKING77",
    licence="CC-BY-4.0",
    attribution=(
        "BANKING77, Casanueva et al. 2020, Efficient Intent Detection with Dual Sentence "
        "Encoders, PolyAI, CC-BY-4.0."
    ),
    revision="57ec275d8078af65b7731c2a98be812d844a6d6b",
    splits={"train": (("train.csv",),), "test": (("test.csv",),)},
    hub=HubRef(
        path="mteb/banking77",
        revision="0fd18e25b25c072e09e0d92ab615fda904d66300",
        config=None,
        splits={"train": "train", "test": "test"},
    ),
    read=read,
    from_hub=from_hub,
    build=build,
    options=Options,
    held_out=("test",),
)
