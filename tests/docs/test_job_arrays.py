"""The job arrays of deploy/: each asks for every shard once, with options that there are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from clefq.engines.shards import Shard, parse_shard

DEPLOY = Path(__file__).parents[2] / "deploy"


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
