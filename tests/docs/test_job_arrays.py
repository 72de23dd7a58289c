"""Job arrays: the page's commands, and deploy/, which asks for every shard once."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from clefq.engines.shards import Shard, parse_shard
from tests.docs.markdown import blocks

DEPLOY = Path(__file__).parents[2] / "deploy"
PAGE = DEPLOY.parent / "docs" / "more-machines.md"


def _script(name: str) -> str:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    if name.endswith(".sh"):
        return text
    body = yaml.safe_load(text)
    if "run" in body:
        return str(body["run"]).replace("cd /run-folder", "")
    (container,) = body["spec"]["template"]["spec"]["containers"]
    assert body["spec"]["completionMode"] == "Indexed"
    assert body["spec"]["completions"] == 8
    return str(container["command"][2])


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("predict_slurm.sh", {"SLURM_ARRAY_TASK_ID": "{one}", "SLURM_ARRAY_TASK_MAX": "8"}),
        ("predict_kubernetes.yaml", {"JOB_COMPLETION_INDEX": "{zero}"}),
        ("predict_skypilot.yaml", {"SKYPILOT_NODE_RANK": "{zero}", "SKYPILOT_NUM_NODES": "8"}),
    ],
)
def test_every_task_has_its_shard(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    fake = tmp_path / "clefq"
    fake.write_text('#!/bin/sh\necho "$@"\n')
    fake.chmod(0o755)
    asked = []
    for number in range(8):
        numbers = {"zero": str(number), "one": str(number + 1)}
        own = {key: value.format(**numbers) for key, value in environment.items()}
        own["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
        command = ["bash", "-c", _script(name), "bash", "bf16", "my-set"]
        done = subprocess.run(command, env=own, capture_output=True, text=True, check=True)
        words = done.stdout.split()
        assert words[:6] == ["predict", "bf16", "--eval", "my-set", "--engine", "vllm"]
        asked.append(parse_shard(words[words.index("--shard") + 1]))
    assert asked == [Shard(number, 8) for number in range(1, 9)]


def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run folder, with stand-ins for engines: every shard, in any order, then the merge."""
    from typer.testing import CliRunner

    from clefq.cli.main import app
    from clefq.engines import predict, vllm_copies
    from clefq.nano import SETS, WEIGHTS
    from clefq.store.predictions import read_predictions
    from clefq.store.sets import SetDraft, open_set, write_set

    (code,) = [b.code for b in blocks(PAGE) if "clefq merge" in b.code]
    shard, merge = (shlex.split(line, comments=True)[1:] for line in code.splitlines())
    monkeypatch.setattr(predict, "runs_here", lambda _: True)
    monkeypatch.setattr(vllm_copies, "MODULE", "tests.engines.fake_copy")
    monkeypatch.setenv("PYTHONPATH", str(DEPLOY.parent))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "bf16").symlink_to(WEIGHTS)
    whole = open_set(SETS / "nano-eval")
    records = [record for record in whole.records() if not record.images][::12]
    draft = SetDraft("eval", "my-set", whole.manifest.definition, whole.manifest.sources)
    write_set(tmp_path / "sets" / "my-set", records, {}, draft)
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> None:
        done = CliRunner().invoke(app, [*words], catch_exceptions=False)
        assert done.exit_code == 0, done.output

    for number in (3, 1, 4, 2):
        mine = [word.replace("1/4", f"{number}/4") for word in shard]
        run(*mine, "--dp", "2", "--threads", "1")
    files = [str(path) for path in sorted(tmp_path.glob(merge.pop()))]
    assert len(files) == 4
    run(*merge, *files)
    found = read_predictions(tmp_path / "predictions" / "my-set" / "bf16.parquet")
    assert list(dict.fromkeys(found.frame.record_id)) == [record.id for record in records]
    assert found.frame.error.isna().all()
