"""What a cache key depends on, and which files are believed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest

from clefq import __version__
from clefq.ci.cache import EngineIdentity, find_runtime, is_current, job_key, prediction_key
from clefq.ci.job import Running
from clefq.ci.spec import GateJob
from clefq.ci.summary import MAX_SUMMARY, append_summary
from clefq.console import Console
from clefq.errors import CheckpointError, InputError
from clefq.names.hub import find_commit
from clefq.names.models import ComparedModel, check_apart, identify
from clefq.nano import WEIGHTS
from clefq.store.predictions import read_meta
from clefq.store.sets import open_set
from tests.parity.synthetic import make_world, meta, predictions, write

SIDE = ComparedModel("bf16", "there", "weights", sha256="1" * 64)
RUNTIME = EngineIdentity("transformers", "5.17.0", "cpu", 16_384)
SET = "2" * 64


def test_a_key_depends_on_all_that_decides_the_answers() -> None:
    keys = [
        prediction_key(SIDE, SET, RUNTIME),
        prediction_key(replace(SIDE, sha256="3" * 64), SET, RUNTIME),
        prediction_key(replace(SIDE, sha256=None, revision="4" * 40), SET, RUNTIME),
        prediction_key(replace(SIDE, images="3" * 64), SET, RUNTIME),
        prediction_key(SIDE, "5" * 64, RUNTIME),
        prediction_key(SIDE, SET, replace(RUNTIME, engine="vllm")),
        prediction_key(SIDE, SET, replace(RUNTIME, version="5.18.0")),
        prediction_key(SIDE, SET, replace(RUNTIME, machine="NVIDIA H200")),
        prediction_key(SIDE, SET, replace(RUNTIME, max_length=4096)),
        prediction_key(SIDE, SET, replace(RUNTIME, salt="x")),
    ]
    assert len(set(keys)) == len(keys)
    # neither what it is called nor where it lies
    assert prediction_key(replace(SIDE, variant="x", given="y"), SET, RUNTIME) == keys[0]
    assert job_key(keys[:2]) != job_key(keys[1::-1])


def test_only_a_file_of_the_same_inputs_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    same = {
        "eval_set_sha256": SET,
        "model_sha256": SIDE.sha256,
        "engine": "transformers",
        "engine_version": "5.17.0+cpu",
        "clefq_version": __version__,
        "max_length": 16_384,
        "truncate_state": False,
        "device": "cpu",
    }
    found = predictions(make_world(12), "bf16")

    def current(
        side: ComparedModel = SIDE, runtime: EngineIdentity = RUNTIME, **changes: object
    ) -> bool:
        write(path, replace(found, meta=meta("bf16", **(same | changes))))
        return is_current(path, side, SET, runtime)

    assert current()
    for change in (
        {"eval_set_sha256": "6" * 64},
        {"model_sha256": "6" * 64},
        {"engine": "vllm"},
        {"engine_version": "5.18.0"},
        {"clefq_version": "0.0.1"},
        {"max_length": 100},
        {"truncate_state": True},
        {"device": "NVIDIA H200"},
    ):
        assert not current(**change), change
    gpu = replace(RUNTIME, machine="NVIDIA B200, NVIDIA H200")
    assert current(runtime=gpu, device="NVIDIA H200")
    assert not current(runtime=gpu, device="NVIDIA H20")
    hub = ComparedModel("bf16", "a/b", "a/b", revision="7" * 40)
    assert current(hub, model_id="a/b", model_revision="7" * 40)
    assert not current(hub, model_id="a/b", model_revision="8" * 40)

    path.write_bytes(path.read_bytes()[:-40])
    assert not is_current(path, SIDE, SET, RUNTIME)
    assert not is_current(tmp_path / "gone", SIDE, SET, RUNTIME)


def test_other_image_settings_are_another_model(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(WEIGHTS, tmp_path / "model"))
    before = identify(str(folder), "bf16")
    setting = folder / "processor_config.json"
    setting.write_text(setting.read_text("utf-8").replace("0.5", "0.25"), "utf-8")
    after = identify(str(folder), "bf16")
    assert after.sha256 == before.sha256
    assert after.images_since > before.images_since
    keys = {prediction_key(side, SET, RUNTIME) for side in (before, after)}
    assert len(keys) == 2


def test_the_engines_version_is_found_without_loading_it() -> None:
    transformers = pytest.importorskip("transformers")
    found = find_runtime("transformers", 100, "")
    assert found.version == transformers.__version__


def test_a_hub_id_is_pinned_without_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Api:
        def model_info(self, repo: str, *, revision: str | None) -> object:
            asked.append((repo, revision))
            return huggingface_hub.ModelInfo(id=repo, sha="9" * 40)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    side = identify("org/name@main", None)
    assert (side.variant, side.token) == ("name", f"org/name@{'9' * 40}")
    assert asked == [("org/name", "main")]
    assert find_commit(f"org/name@{'8' * 40}") == "8" * 40
    assert len(asked) == 1


def test_a_cached_baseline_of_the_hub_is_not_downloaded(
    eval_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(self: ComparedModel) -> None:
        raise AssertionError("downloaded")

    monkeypatch.setattr(ComparedModel, "locate", download)
    monkeypatch.setattr("clefq.ci.job.find_runtime", lambda *_: RUNTIME)
    folder = open_set(eval_set)
    side = identify(f"org/name@{'8' * 40}", "bf16")
    about = {
        "eval_set_sha256": folder.sha256(),
        "model_id": "org/name",
        "model_revision": "8" * 40,
        "clefq_version": __version__,
    }
    key = prediction_key(side, folder.sha256(), RUNTIME)
    cached = predictions(make_world(12), "bf16", **about)
    write(tmp_path / "cache" / f"{key}.parquet", cached)
    job = GateJob(
        baseline=side.given,
        candidate="x",
        name=None,
        sets=(eval_set,),
        gates="smoke",
        engine="transformers",
        max_length=16_384,
        audit="off",
        out=tmp_path / "out",
        cache=tmp_path / "cache",
    )
    running = Running(job, Console(quiet=True))
    path = running.predictions(side, folder)
    assert running.result.steps[0].text == f"bf16 on few: from the cache, {key[:12]}"
    assert read_meta(path).model_revision == "8" * 40
    assert running.predictions(side, folder) == path
    assert running.result.steps[1].text == "bf16 on few: made before"
    # another commit is another model
    with pytest.raises(AssertionError, match="downloaded"):
        running.predictions(identify(f"org/name@{'9' * 40}", "bf16"), folder)


def test_one_commit_of_the_hub_cannot_be_both() -> None:
    one = identify(f"org/name@{'8' * 40}", "bf16")
    other = identify(f"org/name@{'8' * 40}", None)
    with pytest.raises(InputError, match="is the baseline itself"):
        check_apart((one, other))
    check_apart((one, identify(f"org/name@{'9' * 40}", None)))
    with pytest.raises(InputError, match="both called bf16"):
        check_apart((one, identify(f"org/name@{'9' * 40}", "bf16")))


def test_without_a_connection_the_cache_names_the_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import httpx

    class Api:
        def model_info(self, repo: str, *, revision: str | None) -> object:
            raise httpx.ConnectError("no route")

    def cached(repo: str, *, revision: str | None, local_files_only: bool) -> str:
        assert local_files_only
        if repo == "org/gone":
            raise huggingface_hub.errors.LocalEntryNotFoundError("gone")
        return str(tmp_path / ("a" * 40))

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert find_commit("org/name") == "a" * 40
    with pytest.raises(CheckpointError, match="not in the local cache"):
        find_commit("org/gone")


def test_a_name_that_cannot_name_a_variant_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="cannot name a variant"):
        identify(str(tmp_path), "../x")


def test_a_summary_stays_below_githubs_limit(tmp_path: Path) -> None:
    path = tmp_path / "summary"
    path.write_text("x" * (MAX_SUMMARY - 100), encoding="utf-8")
    append_summary(path, ["short", "y" * 200, "never"])
    text = path.read_text("utf-8")
    assert text.endswith("short\nFurther reports did not fit into this summary.\n")
