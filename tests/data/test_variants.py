"""Variants ask the same thing in another form."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from clefq.clef.records import Question, Record, parse_record, record_to_json
from clefq.data.definition import SourceUse
from clefq.data.variants import apply_variant, index_layout, rekey

QUESTION = Question("intent", "choice", "Which?", {"refund": None, "cancel": "Stop it.", "x": 3})
RECORD = Record("r1", "c", {"b": 1, "a": "é"}, (QUESTION,), gold={"intent": "refund"})
ids = st.lists(st.text(min_size=1, max_size=6), min_size=2, max_size=60, unique=True)


@given(ids, st.sampled_from(["letters", "opaque"]), st.none() | st.text(max_size=5), st.data())
def test_rekeyed_options_keep_their_meaning(
    names: list[str], keys: str, salt: str | None, data: st.DataObject
) -> None:
    gold = data.draw(st.sampled_from(names))
    record = replace(
        RECORD,
        questions=(replace(QUESTION, criteria=dict.fromkeys(names)),),
        gold={"intent": gold},
    )
    other = rekey(record, keys, salt)  # type: ignore[arg-type]
    options = {option.id: option.description for option in other.questions[0].options}
    assert sorted(options.values()) == sorted(names)
    assert options[other.gold["intent"]] == gold
    if salt is None:
        order = sorted(options, key=lambda key: (len(key), key))
        assert [options[key] for key in order] == sorted(names)


def test_descriptions_survive() -> None:
    other = rekey(RECORD, "opaque", None)
    assert other.questions[0].criteria == {
        "option_0": "Stop it.",
        "option_1": "refund",
        "option_2": 3,
    }
    assert other.gold == {"intent": "option_1"}


def test_orders_differ_between_records_and_not_between_runs() -> None:
    criteria = dict.fromkeys("abcdefgh")
    records = [
        replace(
            RECORD,
            id=f"r{i}",
            questions=(replace(QUESTION, criteria=criteria),),
            gold={"intent": "a"},
        )
        for i in range(40)
    ]
    golds = [rekey(r, "letters", f"s\0{r.id}").gold["intent"] for r in records]
    assert golds == [rekey(r, "letters", f"s\0{r.id}").gold["intent"] for r in records]
    assert len(set(golds)) >= 6


def test_index_layout() -> None:
    two = replace(RECORD, questions=(QUESTION, Question("sure", "noul")))
    other = index_layout(replace(two, gold={"intent": "refund", "sure": "true"}))
    assert other.state == ""
    assert [question.id for question in other.questions] == ["q1", "q2"]
    assert other.questions[0].instructions == '{"a":"é","b":1}\n\nWhich?'
    assert other.questions[1].instructions == '{"a":"é","b":1}\n\nsure'
    assert other.gold == {"q1": "refund", "q2": "true"}
    assert parse_record(record_to_json(other), "x") == other


def test_apply_variant_combines() -> None:
    use = SourceUse("banking77", "test", keys="opaque", layout="decision-index", cohort="all")
    other = apply_variant(RECORD, use, "s")
    assert other.cohort == "all"
    assert other.gold == {"q1": "option_1"}
    assert other.id == RECORD.id
    assert apply_variant(RECORD, SourceUse("banking77", "test"), "s") == RECORD
