"""Names inside a run folder."""

from pathlib import Path

import pytest

from clefq.errors import InputError
from clefq.names.run_folder import RunFolder


def test_names_and_paths(tmp_path: Path) -> None:
    for name in ("bf16", "fp8", ".nvfp4.partial"):
        (tmp_path / "models" / name).mkdir(parents=True)
    run = RunFolder.find(tmp_path)
    assert run.variants() == ["bf16", "fp8"]
    assert run.sets() == []
    assert run.predictions("nano-eval", "fp8") == tmp_path / "predictions/nano-eval/fp8.parquet"
    assert run.report("nano-eval") == tmp_path / "report/nano-eval"


def test_other_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="not a run folder"):
        RunFolder.find(None)
