"""Every example of docs/elsewhere.md, run as a reader would."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clefq.clef.records import parse_record
from clefq.cli.main import app
from clefq.importing.formats import FORMATS
from clefq.store.predictions import read_predictions
from clefq.store.sets import SetDraft, SourceInfo, write_set
from tests.docs.markdown import Block, blocks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "elsewhere.md"
(EXPORTS,) = [b for b in blocks(PAGE.with_name("predict.md")) if "clefq export" in b.code]
FORMAT_BLOCKS = [block for block in blocks(PAGE) if block.heading.partition(":")[0] in FORMATS]
DATA = {block.heading: block.code for block in FORMAT_BLOCKS if block.language == "text"}
SOURCE = SourceInfo("test", "", "generated", None, {}, "Apache-2.0", None)
QUESTIONS = {
    "queue": {"type": "choice", "criteria": {"billing": None, "tech": None, "other": None}},
    "urgent": {"type": "noul"},
}


def commands(block: Block) -> list[list[str]]:
    lines = re.sub(r" *\\\n\s*", " ", block.code).splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines]


def run(words: list[str]) -> None:
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("examples")
    body = {"cohort": "mail", "state": "text"}
    records = [
        parse_record({**body, "id": "row-1", "questions": QUESTIONS}, "test"),
        parse_record({**body, "id": "row-2", "questions": {"urgent": {"type": "noul"}}}, "test"),
    ]
    write_set(root / "my-set", records, {}, SetDraft("eval", "my-set", {}, (SOURCE,)))
    return root


def test_every_format_has_an_example() -> None:
    assert {heading.partition(":")[0] for heading in DATA} == set(FORMATS)


@pytest.mark.parametrize(
    "block", [b for b in FORMAT_BLOCKS if b.language == "bash"], ids=lambda b: b.heading
)
def test_examples_import_without_an_error(
    block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for words in commands(block):
        Path(words[1]).write_text(DATA[block.heading] + "\n", encoding="utf-8")
        run(words)
        got = read_predictions(Path(words[words.index("--out") + 1]))
        assert got.frame["error"].dropna().isin(["no answer in the imported file"]).all()
        assert got.frame["error"].isna().any()
        assert got.meta.labels == ("--choice" in words)


def test_examples_of_exports(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of answers that were imported; MLflow's has a test of its own, against a stand-in."""
    shutil.copytree(folder / "my-set", tmp_path / "my-set")
    monkeypatch.chdir(tmp_path)
    heading = next(name for name in DATA if name.startswith("csv: one option"))
    Path("a.csv").write_text(DATA[heading] + "\n", encoding="utf-8")
    given = ["--eval", "my-set", "--arithmetic", "bf16"]
    for name in ("flash", "bf16", "nvfp4"):
        run(["import", "a.csv", *given, "--variant", name, "--out", f"{name}.parquet"])
    for words in (words for words in commands(EXPORTS) if "mlflow" not in words):
        run(words)
    lines = Path("results.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["run_id"] for line in lines] == ["row-1", "row-2"]
    header, *rows = Path("answers.csv").read_text("utf-8").splitlines()
    assert "baseline_choice" in header and "candidate_choice" in header and len(rows) == 3
    assert len(Path("flips.csv").read_text("utf-8").splitlines()) == 1
