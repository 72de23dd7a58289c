"""Every source on synthetic rows in its original layout: counts, faults, well-formed records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clefq.clef.encoding import EncodeSpec, encode_record
from clefq.clef.records import parse_record, record_to_json
from clefq.clef.tokenizer import PromptTokenizer
from clefq.data import sources
from clefq.data.sources import SOURCES, banking77, clinc150, ledgar
from clefq.errors import DefinitionError
from clefq.nano import WEIGHTS
from tests.data.conftest import load

# source, split, options, records, faults by row
CASES: list[tuple[str, str, dict[str, Any], int, list[tuple[int, str]]]] = [
    ("anli", "test_r1", {}, 12, []),
    ("anli", "test_r3", {"questions": "three"}, 12, [(13, "unknown label 'z'")]),
    (
        "arc_challenge",
        "test",
        {},
        16,
        [
            (17, "answer key 'E' is none of A, B, C, D"),
            (18, "answer key '3' is none of A, B, C, D"),
            (19, "answerKey is missing"),
            (20, "not JSON"),
            (21, "not a JSON object"),
        ],
    ),
    (
        "banking77",
        "test",
        {"schema": "ten"},
        26,
        [
            (25, "category is empty"),
            (26, "unknown label 'no_such_intent'"),
            (27, "3 columns instead of 2"),
            (28, "text is empty"),
            (31, "not UTF-8"),
        ],
    ),
    ("bfcl", "irrelevance", {}, 6, []),
    ("bfcl", "live_relevance", {}, 4, [(5, "question is not a list of turns")]),
    ("bfcl", "multiple", {}, 16, []),
    ("bfcl", "simple_python", {}, 8, [(9, "not exactly one right call")]),
    (
        "boolq",
        "dev",
        {},
        14,
        [(15, "answer is 'maybe', not true or false"), (16, "answer is missing")],
    ),
    (
        "captioned_images",
        "all",
        {},
        5,
        [(6, "license is missing"), (7, "no image 'lost.png'"), (8, "caption is missing")],
    ),
    (
        "clinc150",
        "test",
        {},
        27,
        [
            (22, "unknown label 'not_an_intent'"),
            (23, "not a pair of text and intent"),
            (24, "text is empty"),
        ],
    ),
    ("contractnli", "test", {}, 6, [(7, "no annotation of nda-3"), (8, "not exactly one annot")]),
    ("contractnli", "test", {"questions": "one"}, 102, [(7, "no annotation"), (8, "not exactly")]),
    ("cruxeval", "test", {}, 16, [(17, "output is empty")]),
    ("documents", "all", {"min_chars": 800, "max_chars": 4000}, -1, [(1, "not UTF-8")]),
    (
        "emobank",
        "test",
        {},
        10,
        [
            (31, "V is empty"),
            (32, "V is 9.0, not between 1 and 5"),
            (33, "V is 'x', not a number"),
        ],
    ),
    ("emobank", "train", {}, 10, [(34, "unknown split 'later'")]),
    (
        "finentity",
        "all",
        {},
        14,
        [
            (15, "two sentiments towards 'Firm 70'"),
            (16, "no annotation"),
            (17, "unknown label 'Mixed'"),
        ],
    ),
    ("flickr30k", "test", {}, 4, [(9, "no image 'missing.png'"), (10, "no known split")]),
    ("game_agent", "eval", {}, 20, []),
    (
        "hellaswag",
        "val",
        {},
        16,
        [
            (17, "3 endings instead of 4"),
            (18, "label is '2', not a number"),
            (19, "answer 4 of 4 options"),
        ],
    ),
    (
        "labelled_images",
        "all",
        {"folder": "images_openmoji"},
        9,
        [(10, "no image 'png/FFFF.png'"), (11, "annotation is missing")],
    ),
    (
        "ledgar",
        "test",
        {},
        20,
        [(21, "unknown label 100"), (22, "unknown label 'Costs'"), (23, "text is missing")],
    ),
    (
        "longbench_v2",
        "test",
        {},
        12,
        [(13, "answer 'E' is none of A, B, C, D"), (14, "not a JSON object")],
    ),
    (
        "mmlu",
        "test",
        {},
        25,
        [
            (14, "5 columns instead of 6"),
            (15, "answer '2' is none of A, B, C, D"),
            (16, "answer is empty"),
        ],
    ),
    ("musr", "murder_mysteries", {}, 6, [(7, "a story without questions")]),
    ("musr", "object_placements", {}, 8, []),
    ("musr", "team_allocation", {}, 3, [(4, "answer 5 of 3 choices")]),
    ("nano", "eval", {"task": "routing"}, 20, []),
    ("nano", "eval", {"task": "scenes"}, 20, []),
    (
        "phishnchips",
        "test",
        {},
        16,
        [
            (17, "phish_label is '2', neither 0 nor 1"),
            (18, "email_content is not JSON"),
            (19, "the e-mail lacks sender"),
        ],
    ),
    (
        "winogrande",
        "dev",
        {},
        16,
        [
            (17, "answer is empty"),
            (18, "both options are the same"),
            (19, "the sentence has no blank"),
        ],
    ),
]
IDS = [f"{source}-{split}-{len(options)}" for source, split, options, _, _ in CASES]


def test_registry_names_every_source_file() -> None:
    folder = Path(sources.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "base", "captions"}
    assert set(SOURCES) == files
    assert list(SOURCES) == sorted(SOURCES)
    assert all(name == source.name for name, source in SOURCES.items())


def test_every_public_and_generated_source_is_tested_here() -> None:
    tested = {source for source, *_ in CASES}
    assert tested == {name for name, source in SOURCES.items() if source.origin != "user"}


@pytest.mark.parametrize(("source", "split", "options", "records", "faults"), CASES, ids=IDS)
def test_rows_become_records(
    source: str, split: str, options: dict[str, Any], records: int, faults: list[tuple[int, str]]
) -> None:
    reading = load(source, split, **options)
    examples = list(reading.examples())
    assert len(examples) == records or records == -1
    found = [(row.row, row.reason) for row in reading.malformed]
    assert [row for row, _ in found] == [row for row, _ in faults]
    for (_, reason), (_, expected) in zip(found, faults, strict=True):
        assert reason.startswith(expected)
    assert len({example.record.id for example in examples}) == len(examples) > 0
    tokenizer = PromptTokenizer.from_folder(WEIGHTS)
    for example in examples:
        record = example.record
        assert parse_record(record_to_json(record), "x").id == record.id
        assert record.gold, "every row of a public set has an answer"
        for question in record.questions:
            if question.id in record.gold:
                assert record.gold[question.id] in question.option_ids
        assert set(example.media) == {*record.images, *record.videos}
        encoded = encode_record(tokenizer, record, EncodeSpec(16384), [4] * len(record.images))
        assert encoded.truncated_tokens == 0


@pytest.mark.parametrize(("source", "split", "options", "records", "faults"), CASES, ids=IDS)
def test_reading_twice_gives_the_same(
    source: str, split: str, options: dict[str, Any], records: int, faults: list[tuple[int, str]]
) -> None:
    first = [record_to_json(e.record) for e in load(source, split, **options).examples()]
    second = [record_to_json(e.record) for e in load(source, split, **options).examples()]
    assert first == second


def test_option_sets() -> None:
    assert len(banking77.LABELS) == len(set(banking77.LABELS)) == 77
    assert len(clinc150.DOMAIN_OF) == 150
    assert {len(names) for names in clinc150.DOMAINS.values()} == {15}
    assert len(ledgar.LABELS) == len(set(ledgar.LABELS)) == 100


def test_banking77_ten_depends_on_the_row_alone() -> None:
    one = banking77.offered("age_limit", "banking77-test-00001", "ten")
    assert one == banking77.offered("age_limit", "banking77-test-00001", "ten")
    assert len(one) == 10
    assert "age_limit" in one
    assert one != banking77.offered("age_limit", "banking77-test-00002", "ten")
    assert banking77.offered("age_limit", "x", "full") == tuple(sorted(banking77.LABELS))


def test_clinc150_domain_schema_offers_out_of_scope_always() -> None:
    offered = clinc150.offered("routing", "x", "domain")
    assert set(offered) == {*clinc150.DOMAINS["banking"], clinc150.OUT_OF_SCOPE}
    stray = clinc150.offered(clinc150.OUT_OF_SCOPE, "x", "domain")
    assert len(stray) == 16
    assert clinc150.OUT_OF_SCOPE in stray
    assert len(clinc150.offered("routing", "x", "full")) == 151


def test_boolq_layouts_agree_on_the_passage() -> None:
    record = next(load("boolq", "dev").examples()).record
    assert not record.state.startswith("Museum --")
    assert record.questions[0].instructions.endswith("?")


def test_arc_numbers_become_letters() -> None:
    records = {e.record.id: e.record for e in load("arc_challenge", "test").examples()}
    numbered = records["arc_challenge-Synth_214"]
    assert numbered.questions[0].option_ids == ("A", "B", "C", "D")
    assert numbered.gold == {"answer": "C"}
    assert records["arc_challenge-Synth_215"].questions[0].option_ids == ("A", "B", "C")


def test_anli_three_questions_agree() -> None:
    for example in load("anli", "test_r1", questions="three").examples():
        relation, follows, support = (example.record.gold[q.id] for q in example.record.questions)
        assert (follows == "true") == (relation == "entailment")
        assert support == {"contradiction": "0", "neutral": "1", "entailment": "2"}[relation]
        assert example.record.cohort == "anli_r1"


def test_bfcl_asks_only_for_determined_arguments() -> None:
    for example in load("bfcl", "simple_python").examples():
        names = {question.id for question in example.record.questions}
        number = int(example.record.id.rsplit("-", 1)[1]) - 1
        assert "argument_express" in names
        assert ("argument_unit" in names) == (number % 2 == 1)
        assert "argument_count" not in names
    plain = next(load("bfcl", "simple_python", arguments=False).examples()).record
    assert {question.id for question in plain.questions} == {"relevant", "function"}


def test_bfcl_irrelevance_wants_no_function() -> None:
    for example in load("bfcl", "irrelevance").examples():
        assert example.record.gold == {"relevant": "false", "function": "no_function"}


def test_cruxeval_wrong_outputs_are_of_the_same_kind() -> None:
    for example in load("cruxeval", "test").examples():
        question = example.record.questions[0]
        texts = [option.description for option in question.options]
        assert len(set(texts)) == 4
        assert len({text.startswith("'") for text in texts}) == 1


def test_emobank_rounds_half_up() -> None:
    from clefq.data.sources.emobank import _level

    assert [_level({"V": text}, "V") for text in ("1", "1.49", "1.5", "4.5", "5.0")] == list(
        "00144"
    )


def test_game_agent_gold_follows_the_rules() -> None:
    golds = set()
    for example in load("game_agent", "eval").examples():
        state, gold = example.record.state, example.record.gold["move"]
        golds.add(gold)
        hero, enemies = state["hero"], state["enemies"]
        threat = max((e["damage"] for e in enemies if e["distance"] == 1), default=0)
        if gold == "drink_potion":
            assert hero["potions"] > 0
            assert threat >= hero["health"]
        if gold == "retreat":
            assert sum(e["distance"] <= 3 for e in enemies) >= 2
        assert 2 <= len(example.record.questions[0].option_ids) <= 4
    assert len(golds) > 2


def test_documents_pieces_cover_the_length_range() -> None:
    examples = list(load("documents", "all", min_chars=500, max_chars=8000).examples())
    lengths = [len(example.record.state) for example in examples]
    assert min(lengths) >= 250
    assert max(lengths) <= 8000
    assert max(lengths) > 4 * min(lengths)
    kinds = {example.label for example in examples}
    assert kinds == {"legal", "news", "science"}


def test_caption_questions_have_every_gold() -> None:
    examples = [*load("flickr30k", "test").examples(), *load("flickr30k", "train").examples()]
    assert {e.record.gold["orientation"] for e in examples} == {"landscape", "portrait", "square"}
    assert {e.record.gold["describes"] for e in examples} == {"true", "false"}
    for example in examples:
        by_id = {question.id: question for question in example.record.questions}
        shown = by_id["caption"].options
        own = shown[[o.id for o in shown].index(example.record.gold["caption"])]
        number = int(example.record.id.rsplit("-", 1)[1])
        assert f"door {number + (3 if '-test-' in example.record.id else -1)}" in own.description


def test_missing_files_name_the_fix(tmp_path: Path) -> None:
    (tmp_path / "banking77").mkdir()
    with pytest.raises(DefinitionError, match=r"lacks train\.csv, the train split of BANKING77"):
        list(load("banking77", "train", tmp_path / "banking77").examples())
