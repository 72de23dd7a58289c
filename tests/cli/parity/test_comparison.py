"""What `clefq parity` compares, and what it predicts first."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from clefq.cli import comparison
from clefq.cli.comparison import Request
from clefq.console import Console
from clefq.engines.predict import PredictJob
from clefq.errors import InputError, PredictionsError
from clefq.names.run_folder import RunFolder
from clefq.nano import WEIGHTS
from clefq.quantize.manifest import Manifest, write_manifest
from tests.cli.parity.conftest import Clefq
from tests.cli.parity.test_gate_life import bound_run as bound_run
from tests.cli.parity.test_gate_life import freeze
from tests.parity.synthetic import OTHER_SHA, SET_SHA, Dial, World, meta, predictions, write


def ask(baseline: str = "bf16", *candidates: str, **changes: object) -> Request:
    return replace(Request(baseline, candidates, (), None, ()), **changes)


def test_baseline_alone_takes_every_other_variant_on_every_eval_set(
    run_folder: Path, world: World
) -> None:
    run = RunFolder(run_folder)
    for variant in ("fp8", "nvfp4", "bf16"):
        (run_folder / "models" / variant).mkdir(parents=True)
    folder = run_folder / "predictions" / "second"
    write(folder / "bf16.parquet", predictions(world, "bf16", eval_set="second"))
    write(folder / "odd.parquet", predictions(world, "odd", eval_set="second"))
    for variant in ("fp8", "nvfp4"):
        write(folder / f"{variant}.parquet", predictions(world, variant, eval_set="second"))
    write(run_folder / "predictions" / "synthetic" / "nvfp4.parquet", predictions(world, "nvfp4"))
    plans = comparison.plan(ask(), run)
    assert [found.name for found in plans] == ["second", "synthetic"]
    assert [slot.variant for slot in plans[0].candidates] == ["fp8", "nvfp4", "odd"]
    assert [slot.variant for slot in plans[1].candidates] == ["fp8", "nvfp4"]


def test_calibration_sets_are_not_judged(bound_run: Path) -> None:
    manifest = bound_run / "sets" / "synthetic" / "manifest.json"
    manifest.write_text(manifest.read_text("utf-8").replace('"eval"', '"calibration"'), "utf-8")
    with pytest.raises(InputError, match="no eval set"):
        comparison.plan(ask(), RunFolder(bound_run))


def test_files_variants_and_replicates_mix(run_folder: Path, world: World) -> None:
    again = write(run_folder / "again.parquet", predictions(world, "bf16", Dial(noise=1e-3)))
    file = write(run_folder / "mine.parquet", predictions(world, "mine"))
    run = RunFolder(run_folder)
    (found,) = comparison.plan(ask("bf16", str(file), "fp8", replicates=(again,)), run)
    assert [slot.variant for slot in found.candidates] == ["mine", "fp8"]
    assert found.replicates == (again,)
    stray = write(
        run_folder / "stray.parquet", predictions(world, "bf16", eval_set_sha256="f" * 64)
    )
    with pytest.raises(InputError, match="replicate"):
        comparison.plan(ask("bf16", "fp8", replicates=(stray,)), run)


def test_a_replicate_is_another_run_of_the_same_model(
    clefq: Clefq, run_folder: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    own = run_folder / "predictions" / "synthetic" / "bf16.parquet"
    assert clefq("parity", "--baseline", "bf16", "--replicate", own) == 2
    assert "own file" in capsys.readouterr().err
    other = run_folder / "predictions" / "synthetic" / "fp8.parquet"
    assert clefq("parity", "--baseline", "bf16", "--replicate", other) == 2
    assert "another model" in capsys.readouterr().err


def test_unusable_names(run_folder: Path, world: World) -> None:
    run = RunFolder(run_folder)
    with pytest.raises(PredictionsError, match="cannot be a folder's name"):
        write(run_folder / "bad.parquet", predictions(world, "../up"))
    twin = write(run_folder / "twin.parquet", predictions(world, "fp8"))
    with pytest.raises(InputError, match="two candidates"):
        comparison.plan(ask("bf16", "fp8", str(twin)), run)
    with pytest.raises(InputError, match="no --eval SET"):
        comparison.plan(ask("bf16"), None)
    with pytest.raises(InputError, match="of one set"):
        comparison.plan(ask(str(twin), "fp8", sets=("a", "b")), run)


class Predictor:
    """Stands in for the engine: remembers the jobs and writes synthetic predictions."""

    def __init__(self, world: World, sha: str) -> None:
        self.world, self.sha = world, sha
        self.jobs: list[PredictJob] = []

    def __call__(self, job: PredictJob, console: Console) -> None:
        self.jobs.append(job)
        made = predictions(
            self.world,
            job.model.variant,
            Dial(noise=0.02 if job.model.variant in ("fp8", "nvfp4") else 0.0),
            eval_set_sha256=self.sha,
            engine=job.engine,
            max_length=job.spec.max_length,
        )
        write(job.out, made)


@pytest.fixture
def predictor(world: World, bound_run: Path, monkeypatch: pytest.MonkeyPatch) -> Predictor:
    from clefq.store.sets import open_set

    for variant in ("bf16", "fp8", "nvfp4"):
        (bound_run / "models" / variant).mkdir(parents=True)
    found = Predictor(world, open_set(bound_run / "sets" / "synthetic").sha256())
    monkeypatch.setattr("clefq.engines.predict.predict_set", found)
    return found


def test_missing_predictions_are_made_like_the_baselines(
    clefq: Clefq, bound_run: Path, predictor: Predictor, world: World
) -> None:
    base = bound_run / "predictions" / "synthetic" / "bf16.parquet"
    made = predictions(world, "bf16", eval_set_sha256=predictor.sha, engine="vllm", max_length=4096)
    write(base, made)
    assert clefq("parity", "--baseline", "bf16", "--quiet") == 0
    (job,) = predictor.jobs  # fp8 is there already
    assert (job.model.variant, job.engine, job.spec.max_length) == ("nvfp4", "vllm", 4096)
    assert job.out == bound_run / "predictions" / "synthetic" / "nvfp4.parquet"
    assert {p.name for p in (bound_run / "report" / "synthetic").iterdir()} == {
        "fp8", "nvfp4", "index.html", "summary.json",
    }  # fmt: skip


def test_the_baseline_is_predicted_first_and_the_engine_is_the_same(
    clefq: Clefq, bound_run: Path, predictor: Predictor
) -> None:
    for path in (bound_run / "predictions" / "synthetic").glob("*.parquet"):
        path.unlink()
    code = clefq("parity", "--baseline", "bf16", "--engine", "transformers", "--quiet")
    assert code == 0
    assert [job.model.variant for job in predictor.jobs] == ["bf16", "fp8", "nvfp4"]
    assert {job.engine for job in predictor.jobs} == {"transformers"}


def test_nothing_is_predicted_for_gates_of_another_set(
    clefq: Clefq, bound_run: Path, predictor: Predictor, capsys: pytest.CaptureFixture[str]
) -> None:
    assert freeze(clefq) == 0
    gates = bound_run / "gates" / "g.yaml"
    bound = re.sub(r"(?m)^(\s+sha256: ).*$", rf"\g<1>{OTHER_SHA}", gates.read_text("utf-8"))
    gates.write_text(bound, "utf-8")
    assert clefq("parity", "--baseline", "bf16", "--gates", gates) == 2
    assert "nothing was predicted" in " ".join(capsys.readouterr().err.split())
    assert not predictor.jobs


def test_a_set_goes_by_the_name_in_its_manifest(bound_run: Path) -> None:
    run = RunFolder(bound_run)
    run.set_folder("synthetic").rename(run.set_folder("mine"))
    (found,) = comparison.plan(ask(), run)
    assert (found.name, found.set_path) == ("synthetic", run.set_folder("mine"))
    shutil.copytree(run.set_folder("mine"), run.set_folder("again"))
    with pytest.raises(InputError, match="both hold a set called synthetic"):
        comparison.plan(ask(), run)


def test_checkpoint_folders_outside_a_run_folder(
    clefq: Clefq,
    bound_run: Path,
    predictor: Predictor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    models = bound_run / "models"
    code = clefq(
        "parity", "--baseline", models / "bf16", "--candidate", models / "fp8",
        "--eval", bound_run / "sets" / "synthetic", "--quiet",
    )  # fmt: skip
    assert code == 0
    assert (elsewhere / "predictions" / "synthetic" / "bf16.parquet").is_file()
    assert (elsewhere / "report" / "synthetic" / "fp8" / "parity.json").is_file()


@pytest.mark.parametrize("inside", [True, False])
def test_the_bundled_miniature(
    clefq: Clefq,
    bound_run: Path,
    predictor: Predictor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inside: bool,
) -> None:
    candidate = bound_run / "predictions" / "synthetic" / "fp8.parquet"
    if not inside:
        monkeypatch.chdir(tmp_path)
    code = clefq(
        "parity", "--baseline", "nano", "--candidate", candidate,
        "--eval", bound_run / "sets" / "synthetic", "--quiet",
    )  # fmt: skip
    assert code == 0
    assert Path("report/synthetic/fp8/parity.json").is_file()
    assert predictor.jobs[0].model.folder == WEIGHTS


def test_sizes_are_those_of_the_weights(bound_run: Path, predictor: Predictor) -> None:
    model = bound_run / "models" / "fp8"
    (model / "model.safetensors").write_bytes(b"x" * 900)
    (model / "joint_head.safetensors").write_bytes(b"x" * 100)
    # left by a download
    (model / ".cache").mkdir()
    (model / ".cache" / "part.safetensors").write_bytes(b"x" * 10)
    (found,) = comparison.plan(ask(), RunFolder(bound_run))
    assert comparison.sizes(found).bytes == {"fp8": 1000}


def test_two_folders_of_one_name_are_told_apart(
    bound_run: Path, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("one", "two"):
        (tmp_path / place / "model").mkdir(parents=True)
    one, two = str(tmp_path / "one" / "model"), str(tmp_path / "two" / "model")
    run = RunFolder(bound_run)
    with pytest.raises(InputError, match="both called model"):
        comparison.plan(ask(one, two, sets=("synthetic",)), run)
    # predictions of one must not be taken for those of the other, whatever their age
    sums = {"one": "1" * 64, "two": "2" * 64}
    monkeypatch.setattr(
        "clefq.names.predictions.checkpoint_sha256", lambda folder: sums[folder.parent.name]
    )
    (found,) = comparison.plan(ask("bf16", two, sets=("synthetic",)), run)
    made = predictions(world, "model", eval_set_sha256=manifest_sha(bound_run))
    write(found.candidates[0].path, replace(made, meta=replace(made.meta, model_sha256="1" * 64)))
    with pytest.raises(InputError, match="another checkpoint"):
        comparison.predict_missing([found], ask(), Console(quiet=True))


def manifest_sha(folder: Path) -> str:
    from clefq.names.run_folder import manifest_of

    return manifest_of(folder / "sets" / "synthetic").sha256


def test_hub_ids_use_the_predictions_that_are_here_and_download_nothing(
    bound_run: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(model: str) -> Path:
        raise AssertionError(f"{model} was resolved")

    monkeypatch.setattr("clefq.names.models.resolve_model", download)
    made = predictions(
        world, "clef", eval_set_sha256=manifest_sha(bound_run), model_id="org/clef",
        model_revision="abc123",
    )  # fmt: skip
    write(bound_run / "predictions" / "synthetic" / "clef.parquet", made)
    run = RunFolder(bound_run)
    for name, fault in (
        ("org/clef", None),
        ("org/clef@abc123", None),
        ("org/clef@def", "revision abc123"),
        ("other/clef", "org/clef, not with other/clef"),
    ):
        plans = comparison.plan(ask("bf16", name, sets=("synthetic",)), run)
        if fault is None:
            comparison.predict_missing(plans, ask(), Console(quiet=True))
            continue
        with pytest.raises(InputError, match=fault):
            comparison.predict_missing(plans, ask(), Console(quiet=True))


def test_predictions_of_a_replaced_checkpoint_are_refused(
    clefq: Clefq,
    bound_run: Path,
    predictor: Predictor,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights = bound_run / "models" / "fp8" / "model.safetensors"
    weights.write_bytes(b"other")
    os.utime(weights, (1e9, 1e9))  # an older build, moved into its place
    sums = {"fp8": meta("fp8").model_sha256}
    monkeypatch.setattr(
        "clefq.names.predictions.checkpoint_sha256", lambda folder: sums[folder.name]
    )
    assert clefq("parity", "--baseline", "bf16", "--candidate", "fp8") == 0
    sums["fp8"] = "e" * 64
    assert clefq("parity", "--baseline", "bf16", "--candidate", "fp8") == 2
    assert "another checkpoint" in capsys.readouterr().err
    weights.unlink()
    (weights.parent / "tokenizer.json").write_text("{}")
    assert clefq("parity", "--baseline", "bf16", "--candidate", "fp8") == 2
    late = predictions(
        world, "fp8", Dial(noise=0.02), eval_set_sha256=manifest_sha(bound_run),
        created_at="2200-01-01T00:00:00+00:00",
    )  # fmt: skip
    write(bound_run / "predictions" / "synthetic" / "fp8.parquet", late)
    # untouched since the predictions were made: not hashed again
    assert clefq("parity", "--baseline", "bf16", "--candidate", "fp8") == 0


def test_synthetic_sha_is_not_that_of_a_real_set(predictor: Predictor) -> None:
    assert predictor.sha != SET_SHA


def test_a_file_named_after_another_variant_is_refused(run_folder: Path, world: World) -> None:
    folder = run_folder / "predictions" / "synthetic"
    write(folder / "fp8.parquet", predictions(world, "bf16"))
    plans = comparison.plan(ask("bf16", "fp8"), RunFolder(run_folder))
    with pytest.raises(InputError, match=r"predictions of bf16, not of fp8"):
        comparison.predict_missing(plans, ask("bf16", "fp8"), Console(quiet=True))


def test_an_unknown_engine_is_refused_even_where_nothing_is_missing(
    clefq: Clefq, run_folder: Path
) -> None:
    assert clefq("parity", "--baseline", "bf16", "--engine", "foo") == 2


def test_a_calibration_set_by_name_or_file_is_refused(bound_run: Path) -> None:
    manifest = bound_run / "sets" / "synthetic" / "manifest.json"
    manifest.write_text(manifest.read_text("utf-8").replace('"eval"', '"calibration"'), "utf-8")
    run = RunFolder(bound_run)
    file = str(bound_run / "predictions" / "synthetic" / "bf16.parquet")
    for request in (ask("bf16", "fp8", sets=("synthetic",)), ask(file, "fp8")):
        with pytest.raises(InputError, match="synthetic is a calibration set"):
            comparison.plan(request, run)


@pytest.mark.parametrize("by_file", [False, True])
def test_a_set_that_the_candidate_was_calibrated_on_is_refused(
    bound_run: Path, predictor: Predictor, by_file: bool
) -> None:
    model, run = bound_run / "models" / "fp8", RunFolder(bound_run)
    file = bound_run / "predictions" / "synthetic" / "fp8.parquet"
    request = ask("bf16", str(file) if by_file else "fp8", sets=("synthetic",))
    for sha, seen in ((predictor.sha, True), ("0" * 64, False)):
        words = dict.fromkeys(("clefq_version", "created_at", "scheme", "method", "sha256"), "x")
        empty = {name: {} for name in ("source", "recipe", "versions", "audit", "formats")}
        made = Manifest(
            **words, **empty, schema_version=1, calibration={"sha256": sha}, bytes={}, files={},
            seconds=1.0, peak_memory_bytes=1,
        )  # fmt: skip
        write_manifest(model, made)
        if seen:
            with pytest.raises(InputError, match="fp8 was calibrated on synthetic"):
                comparison.plan(request, run)
        else:
            assert comparison.plan(request, run)
    (model / "clefq.json").write_text("{}", "utf-8")
    assert comparison.plan(request, run)


def test_the_baselines_file_under_another_name_is_refused(
    clefq: Clefq, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = run_folder / "predictions" / "synthetic" / "bf16.parquet"
    copy = run_folder / "copy.parquet"
    copy.write_bytes(own.read_bytes())
    assert clefq("parity", "--baseline", own, "--candidate", copy) == 2
    assert "is the baseline's own file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes", [{"max_length": 64}, {"truncate_state": True}, {"arithmetic": "w4a4"}]
)
def test_a_replicate_that_was_run_otherwise_is_refused(
    clefq: Clefq,
    run_folder: Path,
    world: World,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, object],
) -> None:
    other = run_folder / "again.parquet"
    write(other, predictions(world, "bf16", Dial(noise=0.5), **changes))
    assert clefq("parity", "--baseline", "bf16", "--replicate", other) == 2
    assert "run otherwise than the baseline" in capsys.readouterr().err


def test_a_replicate_of_unknown_weights_puts_up_a_banner(
    clefq: Clefq, run_folder: Path, world: World
) -> None:
    other = run_folder / "again.parquet"
    write(other, predictions(world, "bf16", Dial(noise=1e-3), model_sha256=None))
    assert clefq("parity", "--baseline", "bf16", "--replicate", other, "--quiet") == 0
    report = run_folder / "report" / "synthetic" / "fp8" / "parity.json"
    banners = json.loads(report.read_text("utf-8"))["verdict"]["banners"]
    assert any("nothing shows that bf16 is the baseline's model" in text for text in banners)
    assert clefq("gate", report, "--quiet") == 0


def test_the_size_of_another_model_of_that_name_is_not_given(
    bound_run: Path, world: World, tmp_path: Path
) -> None:
    model = bound_run / "models" / "fp8"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(b"x" * 900)
    foreign = write(
        tmp_path / "fp8.parquet", predictions(world, "fp8", eval_set_sha256=manifest_sha(bound_run))
    )
    run = RunFolder(bound_run)
    for file, sizes in (
        (foreign, {}),
        (bound_run / "predictions" / "synthetic" / "fp8.parquet", {"fp8": 900}),
    ):
        (found,) = comparison.plan(ask("bf16", str(file)), run)
        assert comparison.sizes(found, run).bytes == sizes
