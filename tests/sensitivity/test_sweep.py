"""The sweep itself: what it finds, what it costs, how it resumes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import clefq
from clefq.clef.records import record_to_json
from clefq.console import Console
from clefq.errors import InputError
from clefq.plain_files import compact_json
from clefq.sensitivity import sweep as sweep_module
from clefq.sensitivity.cost import DEFAULT_SPEEDS
from clefq.sensitivity.schema import Budget, Sensitivity, load, save, worst_first
from clefq.sensitivity.session import Session, SweepSpec
from clefq.sensitivity.workflow import SearchSpec, run_sensitivity
from clefq.store.predictions import read_predictions
from clefq.store.reading import to_plain
from clefq.store.sets import open_set
from tests.engines.conftest import build_set
from tests.sensitivity.conftest import QUIET, SCHEMES, Swept

Spec = Callable[..., SweepSpec]
SCRIPT = Path(__file__).parent / "killed.py"
NANO = Path(clefq.__file__).parent / "nano"


def test_everything_is_measured_once(swept: Swept) -> None:
    found = swept.found
    assert len(found.blocks) == 8 * 3
    assert len({(r.block, r.scheme) for r in found.blocks}) == 24
    assert found.eval_set["records"] == 12
    by = {(r.block, r.scheme): r for r in found.blocks}
    for block in {r.block for r in found.blocks}:
        fp8, a16, a4 = (by[block, scheme] for scheme in SCHEMES)
        # eight bits lose less than four, in weights and in the block's output
        assert max(fp8.weight_error.values()) < 0.05 < min(a16.weight_error.values()) < 0.2
        assert fp8.output_error < a16.output_error < a4.output_error
        assert a16.weight_error == a4.weight_error
        assert fp8.nbytes > a4.nbytes > a16.nbytes


def test_the_effort_is_half_of_full_runs(swept: Swept) -> None:
    """24 variants of 4 layers: 6 · (4 + 3 + 2 + 1) passes, the BF16 run, and 3 to move on."""
    effort = swept.found.effort
    assert effort.full_passes == 96
    assert effort.layer_passes == 60 + 4 + 3


def test_the_search_meets_its_budget_and_beats_the_published(swept: Swept) -> None:
    found = swept.found
    best, *published = found.layouts
    assert best.name == "searched"
    assert found.budget is not None
    assert best.nbytes <= found.budget.limit
    within = [layout for layout in published if layout.nbytes <= found.budget.limit]
    assert len(within) >= 4
    kl = best.predicted_kl.estimate
    assert kl is not None
    assert all(kl <= (layout.predicted_kl.estimate or 0.0) for layout in within)
    assert all(layout.measured is not None for layout in found.layouts)
    sizes = [p for p in found.front if p.by == "bytes"]
    assert [p.nbytes for p in sizes] == sorted(p.nbytes for p in sizes)
    assert [p.kl for p in sizes] == sorted((p.kl for p in sizes), reverse=True)
    assert sizes[-1].kl == 0.0
    speeds = [p for p in found.front if p.by == "speed"]
    assert max(p.speedup for p in speeds) == pytest.approx(
        next(la.speedup for la in published if la.name == "nvfp4")
    )


def test_the_front_is_of_what_nothing_beats(swept: Swept) -> None:
    points = {
        la.name: (la.nbytes, -la.speedup, la.measured.kl.estimate)
        for la in swept.found.layouts
        if la.measured is not None
    }
    assert len(points) == 8
    for layout in swept.found.layouts:
        others = [p for name, p in points.items() if name != layout.name]
        mine = points[layout.name]
        beaten = any(all(a <= b for a, b in zip(p, mine, strict=True)) for p in others)  # type: ignore[operator]
        assert layout.on_front == (not beaten)
    assert {la.name for la in swept.found.layouts if la.on_front} >= {"searched", "nvfp4"}


def test_a_speed_budget(swept: Swept) -> None:
    """Resumes the sweep: no model is loaded for another budget."""
    wanted = SearchSpec(Budget("speed", 1.4, "--budget-speed 1.4"), DEFAULT_SPEEDS, False, False)
    out = swept.spec.out.parent / "speed"
    shutil.copytree(swept.spec.out, out)
    found = run_sensitivity(replace(swept.spec, out=out), wanted, QUIET)
    assert found.effort.resumed == 24
    assert found.blocks == swept.found.blocks
    best = found.layouts[0]
    assert best.speedup >= 1.4
    assert best.measured is None
    # what an earlier budget led to, and the published, are still shown: they were measured here
    tried = [la for la in found.layouts if la.origin == "tried"]
    assert swept.found.layouts[0].formats in [la.formats for la in tried]
    assert all(la.measured is not None for la in found.layouts if la.origin != "searched")
    assert set(best.formats.values()) > {"bf16"}


def test_impossible_budgets_are_refused_before_the_sweep(
    spec_of: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "_measure", None)
    for budget, fix in (
        (Budget("bytes", 1000.0, "--budget-bytes 1,000"), "smallest possible is 476,668 bytes"),
        (Budget("speed", 9.0, "--budget-speed 9"), "fastest possible is an estimated 2."),
    ):
        with pytest.raises(InputError) as error:
            run_sensitivity(spec_of(tmp_path / "out"), SearchSpec(budget, DEFAULT_SPEEDS), QUIET)
        assert budget.given in error.value.message
        assert fix in str(error.value.fix)


def test_nvfp4_needs_a_calibration_set(spec_of: Spec, tmp_path: Path) -> None:
    spec = replace(spec_of(tmp_path), calibration=None)
    with pytest.raises(InputError, match="needs a calibration set"):
        Session(spec, QUIET)


def damaged(folder: Path) -> Path:
    """The miniature: the same function in BF16, to the bit, but one block that rounds badly.

    In the last MLP one intermediate channel in sixteen is divided by 64 in `up_proj` and
    multiplied by 64 in `down_proj`: exact in BF16, while each group of sixteen weights of
    `down_proj` now has one outlier, and the others round to almost nothing.
    """
    shutil.copytree(NANO / "weights", folder)
    layer = "model.language_model.layers.7.mlp"
    for file in folder.glob("model-*.safetensors"):
        tensors = load_file(file)
        if f"{layer}.up_proj.weight" in tensors:
            tensors[f"{layer}.up_proj.weight"][::16] /= 64
        if f"{layer}.down_proj.weight" in tensors:
            tensors[f"{layer}.down_proj.weight"][:, ::16] *= 64
        save_file(tensors, file, metadata={"format": "pt"})
    return folder


def shortest(folder: Path) -> Path:
    """The 10 shortest records of the miniature's eval set that have no image."""
    every = [r for r in open_set(NANO / "sets" / "nano-eval").records() if not r.images]
    every.sort(key=lambda record: len(compact_json(record_to_json(record))))
    return build_set(folder, every[:10])


def test_a_damaged_block_is_named_first(spec_of: Spec, tmp_path: Path) -> None:
    model = damaged(tmp_path / "damaged")
    spec = spec_of(tmp_path / "out", model=model, schemes=("nvfp4a16",))
    spec = replace(spec, eval_set=shortest(tmp_path / "eval"))
    found = run_sensitivity(spec, SearchSpec(None, DEFAULT_SPEEDS, False, False), QUIET)
    first, second = worst_first(found)[:2]
    by = {result.block: result for result in found.blocks}
    assert first == "7.mlp"
    assert by[first].damage.kl.estimate > 3 * by[second].damage.kl.estimate  # type: ignore[operator]
    # the error of the weights misses it: the outliers, which round well, dominate the norm
    assert by[first].weight_error["down_proj"] < max(by[second].weight_error.values())
    assert by[first].output_error > 0.5 > by[second].output_error
    # BF16 itself answers as the undamaged miniature does
    session = Session(replace(spec, model=NANO / "weights"), QUIET)
    answers = [r for group in session.engine.predict(session.records) for r in group]
    expected = {(r.record_id, q): v for r in answers for q, v in r.logprobs.items()}
    frame = read_predictions(spec.out / "baseline.parquet").frame
    assert len(frame) == len(expected)
    for row in frame.itertuples():
        assert (row.logprobs == expected[row.record_id, row.question_id]).all()


def volatile(value: object) -> object:
    """Plain JSON without times."""
    if isinstance(value, dict):
        gone = {"seconds", "created_at", "full_run_seconds", "resumed"}
        return {k: volatile(v) for k, v in value.items() if k not in gone}
    return [volatile(v) for v in value] if isinstance(value, list) else value


def test_a_killed_sweep_continues(
    swept: Swept, release: Path, set_path: Path, spec_of: Spec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    blocks = out / "blocks"
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(release), str(set_path), str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parents[2])},
        stderr=subprocess.PIPE,
    )
    try:
        until = time.monotonic() + 200
        while len(list(blocks.glob("*.json"))) < 2:
            assert process.poll() is None, process.communicate()[1].decode()
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = {path.name: path.read_bytes() for path in blocks.glob("*.json")}
    assert 2 <= len(done) < 8
    assert not (out / "sensitivity.json").exists()
    spec = spec_of(out, schemes=("fp8",))
    wanted = SearchSpec(None, DEFAULT_SPEEDS, False, False)
    found = run_sensitivity(spec, wanted, QUIET)
    assert found.effort.resumed == len(done)
    assert {name: (blocks / name).read_bytes() for name in done} == done
    undisturbed = [r for r in swept.found.blocks if r.scheme == "fp8"]
    assert volatile(to_plain(found.blocks)) == volatile(to_plain(tuple(undisturbed)))


def test_what_was_made_of_other_inputs_is_not_taken_over(
    swept: Swept, spec_of: Spec, calibration: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(swept.spec.out, out)
    spec = spec_of(out)
    plain = Session(spec, QUIET)
    assert len(_known(plain)) == 24
    for other, left in (
        (replace(spec, records=11), 0),
        (replace(spec, engine=replace(spec.engine, batch_tokens=500)), 0),
        (replace(spec, eval_set=calibration), 0),
        # another calibration set: only what it decides is made again
        (replace(spec, calibration=spec.eval_set), 16),
    ):
        assert len(_known(Session(other, QUIET))) == left, other
    file = out / "blocks" / "0.mlp-fp8.json"
    file.write_text(file.read_text()[:-30])
    assert len(_known(plain)) == 23


def _known(session: Session) -> list[object]:
    found = [
        sweep_module._known(
            sweep_module._block_file(session.spec.out / "blocks", block, scheme),
            session,
            [scheme],
        )
        for block in session.blocks
        for scheme in SCHEMES
    ]
    return [item for item in found if item is not None]


def test_two_runs_cannot_share_a_folder(swept: Swept) -> None:
    from clefq.sensitivity.workflow import _locked

    with _locked(swept.spec.out), pytest.raises(InputError, match="another clefq is writing"):
        run_sensitivity(swept.spec, SearchSpec(None, DEFAULT_SPEEDS), QUIET)


def test_a_sample_does_not_depend_on_the_order(spec_of: Spec, tmp_path: Path) -> None:
    session = Session(replace(spec_of(tmp_path), records=5), QUIET)
    chosen = [record.id for record in session.records]
    assert len(chosen) == 5
    every = [r.id for r in Session(spec_of(tmp_path), QUIET).records]
    assert chosen == [name for name in every if name in chosen]


def test_the_file_is_strict(swept: Swept, tmp_path: Path) -> None:
    path = swept.spec.out / "sensitivity.json"
    assert load(Sensitivity, path) == swept.found
    body = json.loads(path.read_text())
    for change in ({"extra": 1}, {"schema_version": 2}, {"blocks": None}):
        save(tmp_path / "s.json", {**body, **change})
        with pytest.raises(InputError, match=r"extra is unknown|schema_version|blocks must be"):
            load(Sensitivity, tmp_path / "s.json")


def test_records_that_cannot_run_are_left_out_and_said(
    spec_of: Spec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = spec_of(tmp_path)
    session = Session(replace(spec, engine=replace(spec.engine, max_length=420)), Console())
    kept = len(session.prompts)
    assert 0 < kept < 12
    assert f"left out: {12 - kept} of 12 records" in capsys.readouterr().err
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("foreign", ["model.safetensors", "recipe.yaml", "predictions/a.parquet"])
def test_a_folder_of_something_else_is_refused(foreign: str, spec_of: Spec, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / foreign).parent.mkdir(parents=True)
    (out / foreign).write_text("mine")
    with pytest.raises(InputError, match="is not a sensitivity folder") as caught:
        run_sensitivity(spec_of(out), SearchSpec(None, DEFAULT_SPEEDS), QUIET)
    assert caught.value.fix == "choose another --out."
    assert [path.name for path in out.rglob("*") if path.is_file()] == [Path(foreign).name]
    assert (out / foreign).read_text() == "mine"
