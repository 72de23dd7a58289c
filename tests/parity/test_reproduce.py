"""Whether predictions of another machine reproduce a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from clefq.console import Console
from clefq.parity.comparison import SetJob, judge_set, load_spec
from clefq.parity.report.files import REPORT_FILE
from clefq.parity.reproduce import Reproduction, reproduce
from tests.parity.synthetic import Dial, make_world, predictions, write

GATES = """
schema: clefq.gates/1
name: mine
description: d
gates:
  - {name: accuracy, metric: accuracy_delta, direction: at_least, margin: 0.05}
  - {name: sure, metric: confident_agreement, direction: at_least, bound: 0.95}
"""
WORLD = make_world(300)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    (folder / "gates.yaml").write_text(GATES)
    base = write(folder / "bf16.parquet", predictions(WORLD, "bf16"))
    other = write(folder / "fp8.parquet", predictions(WORLD, "fp8", Dial(noise=0.05)))
    spec = load_spec(str(folder / "gates.yaml"))
    judge_set(SetJob(base, (other,), folder / "report"), spec, Console(quiet=True))
    return folder / "report" / "fp8" / REPORT_FILE


def again(
    tmp_path: Path, published: Path, dial: Dial, variant: str = "fp8", **changes: object
) -> Reproduction:
    base = write(tmp_path / "bf16.parquet", predictions(WORLD, "bf16", Dial(noise=0.01), seed=9))
    here = predictions(WORLD, variant, dial, seed=11, **changes)
    return reproduce(published, base, write(tmp_path / "here.parquet", here), None)


def status(found: Reproduction) -> dict[str, str]:
    return {check.name: check.status for check in found.checks}


def test_the_same_models_elsewhere(tmp_path: Path, published: Path) -> None:
    found = again(tmp_path, published, Dial(noise=0.06))
    assert found.word == "pass", found.checks
    assert found.published == found.here == "pass"
    assert set(status(found).values()) == {"pass"}
    assert "candidate against itself" in status(found)


def test_another_verdict(tmp_path: Path, published: Path) -> None:
    found = again(tmp_path, published, Dial(swap=0.2))
    assert found.word == "fail"
    assert status(found)["verdict"] == status(found)["gate sure"] == "fail"
    assert status(found)["candidate against itself"] == "fail"


def test_another_model_or_set_is_invalid(tmp_path: Path, published: Path) -> None:
    found = again(tmp_path, published, Dial(), model_sha256="e" * 64)
    assert (found.word, found.here) == ("invalid", None)
    assert status(found)["candidate's model"] == "invalid"


def test_what_ran_otherwise_or_nobody_can_name_stays_open(tmp_path: Path, published: Path) -> None:
    found = again(tmp_path, published, Dial(noise=0.06), model_sha256=None)
    assert found.word == "inconclusive"
    assert status(found)["candidate's model"] == "inconclusive"
    found = again(tmp_path, published, Dial(noise=0.06), kernels="simulated")
    assert status(found)["candidate as it ran"] == "inconclusive"


def test_without_the_published_answers_figures_must_lie_in_their_intervals(
    tmp_path: Path, published: Path
) -> None:
    file = published.parents[2] / "fp8.parquet"
    away = file.rename(file.with_suffix(".away"))
    try:
        found = again(tmp_path, published, Dial(noise=0.06))
        assert found.word == "pass"
        assert "candidate against itself" not in status(found)
    finally:
        away.rename(file)
