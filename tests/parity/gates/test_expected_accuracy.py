"""A baseline that is not as accurate as it is known to be stops a pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.report.cases import judged
from tests.parity.synthetic import Dial, make_world, predictions

GATES = """
schema: clefq.gates/1
name: known
description: d
expected_accuracy: {expected}
gates:
  - {{name: accuracy, metric: accuracy_delta, direction: at_least, margin: 0.05}}
"""
WORLD = make_world(300)


def verdict(folder: Path, expected: str) -> dict:
    (folder / "gates.yaml").write_text(GATES.format(expected=expected))
    pair = predictions(WORLD, "bf16"), predictions(WORLD, "fp8", Dial(noise=0.05))
    return judged(*pair, str(folder / "gates.yaml"))


@pytest.mark.parametrize(
    ("expected", "part"),
    [
        ("{overall: 0.5}", "50.0% is expected"),
        ("{cohort-1: 0.5}", "in cohort-1: 50.0% is expected"),
        ("{no-such: 0.5}", "in no-such: 50.0% is expected, nothing is measured here"),
    ],
)
def test_another_baseline_than_the_one_that_is_known(
    tmp_path: Path, expected: str, part: str
) -> None:
    found = verdict(tmp_path, expected)
    assert found["verdict"]["word"] == "inconclusive"
    assert part in " ".join(found["verdict"]["reasons"])


def test_the_one_that_is_known(tmp_path: Path) -> None:
    measured = verdict(tmp_path, "{}")["metrics"]["accuracy_baseline"]["estimate"]
    found = verdict(tmp_path, f"{{overall: {measured:.3f}}}")
    assert found["verdict"]["word"] == "pass"
