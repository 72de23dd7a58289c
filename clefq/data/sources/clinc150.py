"""CLINC150: 22,500 requests, 150 intents in 10 domains, and 1,200 out of scope (CC-BY-3.0).

File `data_full.json`: train, val, test, oos_train, oos_val, oos_test, each a list of
[text, intent]. The request is the state. Options are the intents under their own names plus
`out_of_scope`, which is a real, gold-bearing option. `schema: domain` offers the 15 intents of
the request's domain and `out_of_scope`; a request outside every domain is shown one domain,
chosen by the row's id. `schema: full` offers all 150 and `out_of_scope`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clefq.data.readers import Row, RowError, json_file, text_field
from clefq.data.sources.base import Example, HubRef, ReadSpec, Source, choice, single
from clefq.errors import DefinitionError
from clefq.plain_files import stable_order
from clefq.store.reading import Stored

QUESTION_ID = "intent"
INSTRUCTIONS = (
    "Which intent does the user's request express? "
    "Choose out_of_scope if none of the listed intents fits."
)
OUT_OF_SCOPE = "out_of_scope"

DOMAINS: dict[str, tuple[str, ...]] = {
    "auto_and_commute": (
        "current_location",
        "directions",
        "distance",
        "gas",
        "gas_type",
        "jump_start",
        "last_maintenance",
        "mpg",
        "oil_change_how",
        "oil_change_when",
        "schedule_maintenance",
        "tire_change",
        "tire_pressure",
        "traffic",
        "uber",
    ),
    "banking": (
        "account_blocked",
        "balance",
        "bill_balance",
        "bill_due",
        "freeze_account",
        "interest_rate",
        "min_payment",
        "order_checks",
        "pay_bill",
        "pin_change",
        "report_fraud",
        "routing",
        "spending_history",
        "transactions",
        "transfer",
    ),
    "credit_cards": (
        "application_status",
        "apr",
        "card_declined",
        "credit_limit",
        "credit_limit_change",
        "credit_score",
        "damaged_card",
        "expiration_date",
        "improve_credit_score",
        "international_fees",
        "new_card",
        "redeem_rewards",
        "replacement_card_duration",
        "report_lost_card",
        "rewards_balance",
    ),
    "home": (
        "calendar",
        "calendar_update",
        "next_song",
        "order",
        "order_status",
        "play_music",
        "reminder",
        "reminder_update",
        "shopping_list",
        "shopping_list_update",
        "smart_home",
        "todo_list",
        "todo_list_update",
        "update_playlist",
        "what_song",
    ),
    "kitchen_and_dining": (
        "accept_reservations",
        "calories",
        "cancel_reservation",
        "confirm_reservation",
        "cook_time",
        "food_last",
        "how_busy",
        "ingredient_substitution",
        "ingredients_list",
        "meal_suggestion",
        "nutrition_info",
        "recipe",
        "restaurant_reservation",
        "restaurant_reviews",
        "restaurant_suggestion",
    ),
    "meta": (
        "cancel",
        "change_accent",
        "change_ai_name",
        "change_language",
        "change_speed",
        "change_user_name",
        "change_volume",
        "maybe",
        "no",
        "repeat",
        "reset_settings",
        "sync_device",
        "user_name",
        "whisper_mode",
        "yes",
    ),
    "small_talk": (
        "are_you_a_bot",
        "do_you_have_pets",
        "fun_fact",
        "goodbye",
        "greeting",
        "how_old_are_you",
        "meaning_of_life",
        "tell_joke",
        "thank_you",
        "what_are_your_hobbies",
        "what_can_i_ask_you",
        "what_is_your_name",
        "where_are_you_from",
        "who_do_you_work_for",
        "who_made_you",
    ),
    "travel": (
        "book_flight",
        "book_hotel",
        "car_rental",
        "carry_on",
        "exchange_rate",
        "flight_status",
        "international_visa",
        "lost_luggage",
        "plug_type",
        "timezone",
        "translate",
        "travel_alert",
        "travel_notification",
        "travel_suggestion",
        "vaccines",
    ),
    "utility": (
        "alarm",
        "calculator",
        "date",
        "definition",
        "find_phone",
        "flip_coin",
        "make_call",
        "measurement_conversion",
        "roll_dice",
        "share_location",
        "spelling",
        "text",
        "time",
        "timer",
        "weather",
    ),
    "work": (
        "direct_deposit",
        "income",
        "insurance",
        "insurance_change",
        "meeting_schedule",
        "next_holiday",
        "payday",
        "pto_balance",
        "pto_request",
        "pto_request_status",
        "pto_used",
        "rollover_401k",
        "schedule_meeting",
        "taxes",
        "w2",
    ),
}
DOMAIN_OF: dict[str, str] = {name: d for d, names in DOMAINS.items() for name in names}


@dataclass(frozen=True, slots=True)
class Options(Stored):
    """Options of a definition.

    Attributes:
        schema: `domain` (16 options) or `full` (151 options).
    """

    schema: Literal["domain", "full"] = "domain"


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {text, intent}; the split names the file and then the lists inside it."""
    file, *parts = spec.files
    whole = json_file(spec.folder, file)
    for part in parts:
        rows = whole.get(part) if isinstance(whole, dict) else None
        if not isinstance(rows, list):
            raise DefinitionError(f"{spec.folder / file} has no list {part!r}.")
        for number, row in enumerate(rows, start=1):
            yield _row(f"{file}#{part}", number, row)


def _row(file: str, number: int, row: object) -> Row:
    if not isinstance(row, list) or len(row) != 2:
        return Row(file, number, None, "not a pair of text and intent")
    return Row(file, number, {"text": row[0], "intent": row[1]})


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Hub row {text, intent} with the intent's name → the same."""
    return {"text": row["text"], "intent": row["intent"]}


def offered(intent: str, record_id: str, schema: str) -> tuple[str, ...]:
    """Option ids of a record, sorted, with `out_of_scope`."""
    if schema == "full":
        return tuple(sorted([*DOMAIN_OF, OUT_OF_SCOPE]))
    domain = DOMAIN_OF.get(intent) or stable_order(DOMAINS, record_id)[0]
    return tuple(sorted([*DOMAINS[domain], OUT_OF_SCOPE]))


def build(value: dict[str, Any], record_id: str, options: Options) -> Iterable[Example]:
    """One record: the request, one choice question."""
    text, intent = text_field(value, "text"), text_field(value, "intent")
    label = OUT_OF_SCOPE if intent == "oos" else intent
    if label != OUT_OF_SCOPE and label not in DOMAIN_OF:
        raise RowError(f"unknown label {intent!r}")
    question = choice(
        QUESTION_ID, INSTRUCTIONS, dict.fromkeys(offered(label, record_id, options.schema))
    )
    cohort = f"clinc150/{DOMAIN_OF.get(label, OUT_OF_SCOPE)}"
    yield single(record_id, cohort, text, question, label)


SOURCE = Source(
    name="clinc150",
    title="CLINC150 with out-of-scope requests",
    licence="CC-BY-3.0",
    attribution=(
        "CLINC150, Larson et al. 2019, An Evaluation Dataset for Intent Classification and "
        "Out-of-Scope Prediction, CC-BY-3.0."
    ),
    revision="828f8093932c8fe6ca7936c3d2e52903b1c523de",
    splits={
        "train": (("data_full.json", "train", "oos_train"),),
        "val": (("data_full.json", "val", "oos_val"),),
        "test": (("data_full.json", "test", "oos_test"),),
    },
    hub=HubRef(
        path="clinc/clinc_oos",
        revision="155b9c710419136e17307b80d0a13e68cd46b4ec",
        config="plus",
        splits={"train": "train", "val": "validation", "test": "test"},
    ),
    read=read,
    from_hub=from_hub,
    build=build,
    options=Options,
    held_out=("val", "test"),
)
