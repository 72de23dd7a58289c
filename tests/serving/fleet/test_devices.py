"""Which engine gets which GPUs or cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clefq.errors import InputError
from clefq.serving.fleet import devices
from clefq.serving.fleet.devices import engine_environments, visible_gpus
from clefq.serving.settings import ServeSettings


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0,1,3", ("0", "1", "3")),
        (" 2 , GPU-abc ", ("2", "GPU-abc")),
        ("MIG-1/2/3", ("MIG-1/2/3",)),
        ("", ()),
        ("-1", ()),
        ("1,-1,2", ("1",)),
    ],
)
def test_the_variable_decides_where_there_are_gpus(
    value: str, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_gpu_count", lambda: 4)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}) == expected
    monkeypatch.setattr(devices, "_gpu_count", lambda: 0)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}) == ()


def test_without_it_the_driver_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '0\\n1\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert visible_gpus({}) == ("0", "1")
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert visible_gpus({}) == tuple(
        str(n) for n in range(len([*Path("/dev").glob("nvidia[0-9]*")]))
    )


def test_gpus_are_shared_out_in_groups() -> None:
    settings = ServeSettings(tensor_parallel=2)
    gpus = ["4", "5", "6", "7"]
    found = engine_environments(settings, 2, {"HOME": "/h"}, gpus)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["4,5", "6,7"]
    assert all(one["HOME"] == "/h" for one in found)
    (single,) = engine_environments(ServeSettings(), 1, {}, gpus)
    assert single["CUDA_VISIBLE_DEVICES"] == "4"


def test_more_gpus_than_there_are() -> None:
    with pytest.raises(InputError, match=r"--dp 2 × --tp 2 needs 4 GPUs, this machine shows 1 GPU"):
        engine_environments(ServeSettings(tensor_parallel=2), 2, {}, ["0"])


def test_without_gpus_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 8})
    found = engine_environments(ServeSettings(), 2, {}, [])
    assert [one["VLLM_CPU_OMP_THREADS_BIND"] for one in found] == ["0,1", "2,3"]
    assert [one["OMP_NUM_THREADS"] for one in found] == ["2", "2"]
    more = engine_environments(ServeSettings(cpu_threads=3), 2, {}, [])
    assert [one["VLLM_CPU_OMP_THREADS_BIND"] for one in more] == ["0,1,2", "0,3,8"]
    crowd = engine_environments(ServeSettings(), 7, {}, [])
    assert [one["VLLM_CPU_OMP_THREADS_BIND"] for one in crowd] == [*"012380", "1"]


def test_what_the_user_set_stays() -> None:
    own = {"VLLM_CPU_KVCACHE_SPACE": "7"}
    assert engine_environments(ServeSettings(), 1, own, [])[0]["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert engine_environments(ServeSettings(), 1, own, ["0"])[0]["VLLM_CPU_KVCACHE_SPACE"] == "7"
