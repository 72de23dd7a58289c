"""Files that were tampered with, alike on both sides, through the commands: only the set tells."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from clefq.parity.statistics.set_truth import SetTruth, read_truth
from clefq.store.predictions import Predictions
from tests.cli.parity.conftest import Clefq
from tests.parity.synthetic import Dial, World, predictions, with_set, write

Frame = pd.DataFrame


def rows_exchanged(frame: Frame) -> Frame:
    """Twenty records replaced by others of the same make."""
    foreign = dict(zip(frame.record_id.unique()[:20], (f"x{k}" for k in range(20)), strict=True))
    return frame.assign(record_id=frame.record_id.replace(foreign))


def gold_of_the_candidate(frame: Frame) -> Frame:
    best = [
        options[max(range(len(options)), key=list(logs).__getitem__)]
        for options, logs in zip(frame.option_ids, frame.logprobs, strict=True)
    ]
    return frame.assign(gold=best)


def gold_removed(frame: Frame) -> Frame:
    return frame.assign(gold=frame.gold.where(frame.index >= 10, None))


def options_reordered(frame: Frame) -> Frame:
    turned = frame.copy()
    for name in ("option_ids", "logprobs"):
        turned[name] = pd.Series([list(value)[::-1] for value in frame[name]], dtype=object)
    return turned


def option_renamed(frame: Frame) -> Frame:
    ids = [["yes" if o == "true" else o for o in options] for options in frame.option_ids]
    gold = frame.gold.replace("true", "yes")
    return frame.assign(option_ids=pd.Series(ids, dtype=object), gold=gold)


def cohort_changed(frame: Frame) -> Frame:
    return frame.assign(cohort=frame.cohort.replace("cohort-1", "cohort-0"))


def type_changed(frame: Frame) -> Frame:
    return frame.assign(question_type=frame.question_type.replace("score", "choice"))


def rows_missing(frame: Frame) -> Frame:
    return frame.iloc[20:].reset_index(drop=True)


def rows_added(frame: Frame) -> Frame:
    more = frame[frame.question_id == "q0"].iloc[:20].assign(question_id="q9")
    return pd.concat([frame, more], ignore_index=True)


def tamper(run: Path, change: Callable[[Frame], Frame], world: World, gold: Frame | None) -> None:
    folder = run / "predictions" / "synthetic"
    for name, dial in (("bf16", Dial()), ("fp8", Dial(noise=0.02))):
        made = predictions(world, name, dial)
        frame = change(made.frame)
        if gold is not None:
            frame = frame.assign(gold=gold.gold)
        write(folder / f"{name}.parquet", Predictions(made.meta, frame))


def document(run: Path) -> dict:
    return json.loads((run / "report/synthetic/fp8/parity.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (rows_exchanged, "rows that it does not hold: x"),
        (rows_added, "rows that it does not hold: r00000/q9"),
        (gold_removed, "gold"),
        (options_reordered, "options or their order"),
        (option_renamed, "options or their order"),
        (cohort_changed, "cohort"),
        (type_changed, "question type"),
        (rows_missing, "20 questions of the set are in neither predictions file"),
    ],
)
def test_what_both_files_changed_alike_is_invalid(
    clefq: Clefq, run_folder: Path, world: World, change: Callable[[Frame], Frame], what: str
) -> None:
    tamper(run_folder, change, world, None)
    assert clefq("parity", "--baseline", "bf16", "--quiet") == 4
    verdict = document(run_folder)["verdict"]
    assert verdict["word"] == "invalid"
    assert any(what in reason for reason in verdict["reasons"])
    # judged again where the set is not: the report knows
    shutil.rmtree(run_folder / "sets")
    assert clefq("gate", "report", "--quiet") == 4
    shutil.rmtree(run_folder / "predictions")
    assert clefq("gate", "report", "--quiet") == 4


def test_gold_rewritten_to_the_candidates_answers_is_invalid(
    clefq: Clefq, run_folder: Path, world: World
) -> None:
    answers = gold_of_the_candidate(predictions(world, "fp8", Dial(noise=0.02)).frame)
    tamper(run_folder, lambda frame: frame, world, answers)
    assert clefq("parity", "--baseline", "bf16", "--quiet") == 4
    reasons = document(run_folder)["verdict"]["reasons"]
    assert [reason.split(" differs")[0] for reason in reasons] == ["the baseline", "the candidate"]
    assert all("in gold: " in reason for reason in reasons)
    assert clefq("gate", "report", "--quiet") == 4


def test_a_row_twice_is_refused(
    clefq: Clefq, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in ("bf16", "fp8"):
        path = run_folder / "predictions" / "synthetic" / f"{name}.parquet"
        table = pq.read_table(path)
        pq.write_table(pa.concat_tables([table, table.slice(5, 1)]), path)
    assert clefq("parity", "--baseline", "bf16") == 2
    assert "appears more than once" in capsys.readouterr().err


def test_records_edited_after_predicting_are_refused(
    clefq: Clefq, run_folder: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    records = run_folder / "sets" / "synthetic" / "records.jsonl"
    text = records.read_text("utf-8")
    records.write_text(text.replace("what r00003 is about", "something else"), "utf-8")
    assert clefq("parity", "--baseline", "bf16") == 2
    assert "changed after the set was built" in capsys.readouterr().err
    # built anew of the edited records it is another set
    shutil.rmtree(run_folder / "sets" / "synthetic")
    edited = World(world.frame[world.frame.record_id != "r00003"], world.logits)
    with_set(edited, run_folder / "sets" / "synthetic")
    assert clefq("parity", "--baseline", "bf16") == 2
    assert "was made on another set" in capsys.readouterr().err


def test_an_honest_comparison_passes_and_without_its_set_does_not(
    clefq: Clefq, run_folder: Path
) -> None:
    assert clefq("parity", "--baseline", "bf16", "--quiet") == 0
    assert document(run_folder)["coverage"]["set_read"] is True
    assert clefq("gate", "report", "--quiet") == 0
    shutil.rmtree(run_folder / "sets")
    assert clefq("gate", "report", "--quiet") == 0  # the very same files
    assert clefq("parity", "--baseline", "bf16", "--quiet") == 3
    found = document(run_folder)["verdict"]
    assert any("the set was not read" in banner for banner in found["banners"])


def test_copies_that_only_the_set_shows_are_known_when_judged_again(
    clefq: Clefq, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_copies(path: Path) -> SetTruth:
        return replace(read_truth(path), copies=100)

    monkeypatch.setattr("clefq.parity.comparison.read_truth", with_copies)
    assert clefq("parity", "--baseline", "bf16", "--quiet") == 3
    assert "copies" in document(run_folder)["verdict"]["reasons"][0]
    assert clefq("gate", "report", "--quiet") == 3
    shutil.rmtree(run_folder / "predictions")
    assert clefq("gate", "report", "--quiet") == 3
