"""Changed answers to read: texts, probabilities, slices; as page, table and terminal text."""

import csv
import io
import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from clefq.clef.records import Question, Record
from clefq.cli.main import app
from clefq.errors import InputError
from clefq.parity.report.changed import ChangedAnswer, csv_text, in_slices, pages, read_changed
from clefq.parity.report.html_page import flips_html
from clefq.store.predictions import Predictions
from tests.parity.report.cases import read_page


@pytest.fixture(scope="module")
def changed(
    folder: Path, document: dict, pair: tuple[Predictions, Predictions]
) -> list[ChangedAnswer]:
    records = {}
    for row in pair[0].frame.itertuples():
        criteria = {
            "noul": None,
            "choice": {name: f"option {name}" for name in row.option_ids},
            "score": list(row.option_ids),
        }[row.question_type]
        question = Question(row.question_id, row.question_type, f"Ask {row.question_id}?", criteria)
        asked = (
            (*records[row.record_id].questions, question)
            if row.record_id in records
            else (question,)
        )
        state = f"=HYPERLINK(\\x1b[31m) <b>{row.record_id}</b>\x1b[2J" + " word" * 500
        records[row.record_id] = Record(
            row.record_id, row.cohort, state, asked, cohorts={"language": "de"}
        )
    return read_changed(folder / "nvfp4" / "parity.json", document, records.values())


def test_every_changed_answer_is_there_with_its_texts(
    changed: list[ChangedAnswer], document: dict, pair: tuple[Predictions, Predictions]
) -> None:
    assert len(changed) == document["flips"]["count"]
    tally = [item.effect for item in changed]
    assert tally.count("lost") == document["flips"]["lost"]
    assert tally.count("gained") == document["flips"]["gained"]
    frame = pair[0].frame.set_index(["record_id", "question_id"])
    for item in changed[:20]:
        flip = item.flip
        row = frame.loc[(flip["record_id"], flip["question_id"])]
        assert [option.id for option in item.options] == list(row.option_ids)
        assert item.instructions == f"Ask {flip['question_id']}?"
        (chosen,) = (o for o in item.options if o.id == flip["baseline_choice"])
        assert chosen.baseline == flip["baseline_confidence"] and chosen in item.shown
        assert [option.gold for option in item.options].count(True) == 1


def test_terminal_pages_are_80_columns_wide_and_harmless(changed: list[ChangedAnswer]) -> None:
    text = "\n".join(pages(changed[:5]))
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text and "more characters" in text and "right answer" in text


def test_no_cell_of_the_table_is_a_formula(changed: list[ChangedAnswer]) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(changed))))
    assert len(rows) == len(changed)
    assert all(row["state"].startswith("'=HYPERLINK") for row in rows)
    assert json.loads(rows[0]["cohorts"]) == {"language": "de"}


def test_the_page_escapes_every_text(changed: list[ChangedAnswer], document: dict) -> None:
    page = read_page(flips_html(document, changed[:3], ["cohort=a"], texts=True))
    assert "b" not in {tag for tag, attrs in page.tags if "r0" in str(attrs)}
    assert any("<b>r0" in text for text in page.text)


def test_slices_choose_and_unknown_ones_are_named(
    changed: list[ChangedAnswer], document: dict
) -> None:
    known = document["slices"]
    one = in_slices(changed, ["question=q0", "cohort=cohort-1"], known)
    assert one and all((i.flip["question_id"], i.flip["cohort"]) == ("q0", "cohort-1") for i in one)
    assert in_slices(changed, ["cohort.language=de"], known) == changed
    by_margin = [len(in_slices(changed, [n], known)) for n in known if n.startswith("margin=")]
    assert sum(by_margin) == len(changed)
    with pytest.raises(InputError) as caught:
        in_slices(changed, ["cohort=gone", "colour=red"], known)
    assert "it has cohort=cohort-0" in str(caught.value) and "colour" in str(caught.value.faults)


def test_without_set_and_predictions_the_answers_are_still_shown(
    folder: Path, document: dict, tmp_path: Path
) -> None:
    bare = read_changed(folder / "nvfp4" / "parity.json", document, None)
    assert {option.id for option in bare[0].options} == {
        bare[0].flip["baseline_choice"],
        bare[0].flip["candidate_choice"],
        bare[0].flip["gold"],
    }
    result = CliRunner().invoke(app, ["flips", str(folder), "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert len(value["changed"]) == document["flips"]["count"]
    assert [Path(name).name for name in value["files"]] == [
        "flips.synthetic.nvfp4.html",
        "flips.synthetic.nvfp4.csv",
    ]
    assert all(Path(name).is_file() for name in value["files"])


def test_questions_that_moved_most_begin_with_changed_answers(document: dict) -> None:
    worst = pd.DataFrame(document["flips"]["worst"])
    flipped = (worst.baseline_choice != worst.candidate_choice).tolist()
    assert flipped == sorted(flipped, reverse=True) and flipped[0]
