"""What the names of models and sets mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from clefq.errors import CheckpointError, InputError
from clefq.names.models import ModelRef, find_model, served_model
from clefq.names.run_folder import RunFolder, find_set
from clefq.nano import WEIGHTS


def test_models_are_folders_or_variants(tmp_path: Path) -> None:
    (tmp_path / "models" / "fp8").mkdir(parents=True)
    run = RunFolder(tmp_path)
    by_variant = find_model("fp8", run)
    assert by_variant == ModelRef(tmp_path / "models" / "fp8", "fp8", None, "fp8")
    by_folder = find_model(str(tmp_path / "models" / "fp8"))
    assert (by_folder.model_id, by_folder.variant) == ("fp8", "fp8")
    with pytest.raises(CheckpointError, match=r"no such variant in .*models .there: fp8."):
        find_model("nvfp4", run)
    with pytest.raises(CheckpointError, match="nvfp4"):
        find_model("nvfp4")
    assert served_model("jev/latest").variant == "latest"


def test_nano_is_the_bundled_one_unless_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunFolder(tmp_path)
    assert find_model("nano", run) == ModelRef(WEIGHTS, "nano", None, "nano")
    (tmp_path / "models" / "nano").mkdir(parents=True)
    assert find_model("nano", run).folder == tmp_path / "models" / "nano"
    (tmp_path / "nano").mkdir()
    # a variant goes before a folder of its name, which ./ means
    assert find_model("nano", run).folder == tmp_path / "models" / "nano"
    assert find_model("./nano", run).folder == Path("nano")


def test_hub_models_carry_their_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    snapshot = tmp_path / ("c" * 40)
    snapshot.mkdir()
    monkeypatch.setattr("clefq.names.models.resolve_model", lambda _: snapshot)
    model = find_model("Cloudflare/clef-flash@main")
    assert model == ModelRef(snapshot, "Cloudflare/clef-flash", "c" * 40, "clef-flash")


def test_sets_are_folders_or_names(tmp_path: Path) -> None:
    (tmp_path / "sets" / "tiny").mkdir(parents=True)
    run = RunFolder(tmp_path)
    assert find_set("tiny", run) == tmp_path / "sets" / "tiny"
    assert find_set(str(tmp_path)) == tmp_path
    with pytest.raises(InputError, match=r"no set other .sets here: tiny."):
        find_set("other", run)
