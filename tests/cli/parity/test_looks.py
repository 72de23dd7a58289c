"""Judging, adding records and judging again: every further look is counted and paid for."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from clefq.parity.gates.looks import Look, Looks, looks_before, with_look
from tests.cli.parity.conftest import Clefq
from tests.parity.synthetic import Dial, World, make_world, meta, predictions, with_set, write

GATES = """schema: clefq.gates/1
name: grown
description: d
looks: {looks}
gates:
  - {{name: agreement, metric: agreement, direction: at_least, bound: 0.8, min_n: 20}}
"""


@pytest.fixture(scope="module")
def whole() -> World:
    return make_world(150)


def grow(run: Path, world: World, records: int, **changes: object) -> None:
    """The set and its predictions at a size."""
    rows = world.frame.record_id < f"r{records:05d}"
    part = World(world.frame[rows], world.logits[: int(rows.sum())])
    shutil.rmtree(run / "sets", ignore_errors=True)
    part = with_set(part, run / "sets" / "synthetic")
    for name, dial in (("bf16", Dial()), ("fp8", Dial(noise=0.02))):
        file = run / "predictions" / "synthetic" / f"{name}.parquet"
        write(file, predictions(part, name, dial, **(changes if name == "fp8" else {})))


def document(run: Path) -> dict:
    return json.loads((run / "report/synthetic/fp8/parity.json").read_text("utf-8"))


def sizes(run: Path) -> list[int]:
    return [look["questions"] for look in document(run)["gate_file"]["looks"]["made"]]


def test_looks_are_counted_capped_and_kept(
    clefq: Clefq, tmp_path: Path, whole: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gates = tmp_path / "g.yaml"
    gates.write_text(GATES.format(looks=2), "utf-8")
    judge = ("parity", "--baseline", "bf16", "--gates", gates, "--quiet")
    (tmp_path / "models").mkdir()
    seen = []
    for records, code in ((50, 0), (100, 0), (100, 0), (150, 3)):
        grow(tmp_path, whole, records)
        assert clefq(*judge) == code
        seen.append(len(sizes(tmp_path)))
    assert seen == [1, 2, 2, 3]
    found = document(tmp_path)
    assert found["verdict"]["reasons"][0] == "3 looks were made, the gate file plans 2"
    assert any(text.startswith("looks: this is verdict 3") for text in found["verdict"]["banners"])
    assert found["gates"][0]["confidence"] == pytest.approx(0.9875)
    assert clefq("gate", "report", "--quiet") == 3
    shutil.rmtree(tmp_path / "predictions")
    assert clefq("gate", "report", "--quiet") == 3
    # another model of the same name starts anew
    grow(tmp_path, whole, 120, model_sha256="e" * 64)
    assert clefq(*judge) == 0 and len(sizes(tmp_path)) == 1


def test_gates_for_one_look_say_so(
    clefq: Clefq, tmp_path: Path, whole: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for records in (60, 120):
        grow(tmp_path, whole, records)
        assert clefq("parity", "--baseline", "bf16", "--gates", "smoke", "--quiet") in (0, 3)
    (banner,) = [b for b in document(tmp_path)["verdict"]["banners"] if b.startswith("looks:")]
    first, second = sizes(tmp_path)
    assert f"({first:,} → {second:,} questions), and the gates allow for 1" in banner


def test_what_counts_as_a_look() -> None:
    one, two = Look("a" * 64, 100), Look("b" * 64, 200)
    assert with_look(2, (one,), two.eval_set_sha256, 200).made == (one, two)
    assert with_look(2, (one, two), one.eval_set_sha256, 100).made == (one, two)
    assert Looks(2, (one, two)).banner == Looks(2, (one, two)).doubt == ()
    stored = {
        "gate_file": {"sha256": "g", "looks": {"planned": 1, "made": [Looks(1, (one,)).to_json()]}},
        "candidate": {"model_sha256": None},
        "eval_set": {"sha256": one.eval_set_sha256},
        "coverage": {"expected": 100},
    }
    stored["gate_file"]["looks"] = Looks(1, (one,)).to_json()
    now = meta("fp8")
    assert looks_before(stored, ("g", None), now) == (one,)
    assert looks_before(stored, ("h", "g"), now) == (one,)  # superseded
    assert looks_before(stored, ("h", None), now) == ()
    del stored["gate_file"]["looks"]
    assert looks_before(stored, ("g", None), now) == (one,)  # an older report
    stored["candidate"]["model_sha256"] = "f" * 64
    assert looks_before(stored, ("g", None), now) == ()
    assert looks_before(stored, ("g", None), replace(now, model_sha256=None)) == (one,)
