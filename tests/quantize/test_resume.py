"""Interrupted runs: nothing half-made is seen, and the same command then makes the same bits."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clefq.clef.checkpoint import checkpoint_sha256
from clefq.clef.family import Widths
from clefq.clef.tensor_files import same_bytes
from clefq.clef.weight_files import open_tensors
from clefq.console import Console
from clefq.errors import AuditError, CheckpointError, InputError
from clefq.plain_files import sha256_file
from clefq.quantize import finish, preflight, run
from clefq.quantize.audit import audit_checkpoint
from clefq.quantize.run import QuantizeSpec, Result, quantize
from clefq.quantize.tensors import ShardFile
from clefq.store.atomic import partial_path
from tests.quantize.conftest import Make

QUIET = Console(quiet=True)
VOLATILE = {"seconds", "created_at", "peak_memory_bytes"}


def spec_of(source: Path, scheme: str = "nvfp4a16", method: str = "stream") -> QuantizeSpec:
    return QuantizeSpec(str(source), scheme, method=method, max_shard_bytes=400_000)


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """An uninterrupted run into several shards."""
    return quantize(spec_of(source), tmp_path_factory.mktemp("whole") / "out", QUIET)


def same_folder(a: Path, b: Path) -> None:
    names = sorted(p.relative_to(a) for p in a.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(b) for p in b.rglob("*") if p.is_file())
    for name in names:
        if name.name != "clefq.json":
            assert sha256_file(a / name) == sha256_file(b / name), name
    ours, theirs = (json.loads((folder / "clefq.json").read_text()) for folder in (a, b))
    assert {k: v for k, v in ours.items() if k not in VOLATILE} == {
        k: v for k, v in theirs.items() if k not in VOLATILE
    }


def run_killed(source: Path, out: Path, work: list[str]) -> list[str]:
    script = Path(__file__).parent / "killed.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(source), str(out), *work],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


@pytest.mark.slow
def test_streaming_survives_being_killed(
    source: Path, whole: Result, calibration_set: Path, tmp_path: Path
) -> None:
    rng = random.Random(int.from_bytes(os.urandom(4), "big"))
    delays = [f"{rng.uniform(0, 0.5):.3f}" for _ in range(6)]
    out = tmp_path / "out"
    states = run_killed(source, out, ["nvfp4a16", "stream", str(calibration_set), *delays])
    assert "half" not in states, delays
    same_folder(out, whole.folder)


@pytest.mark.slow
def test_oneshot_survives_being_killed(
    source: Path, made: Make, calibration_set: Path, tmp_path: Path
) -> None:
    delay = random.Random(int.from_bytes(os.urandom(4), "big")).uniform(0, 4)
    out = tmp_path / "out"
    states = run_killed(source, out, ["nvfp4", "oneshot", str(calibration_set), f"{delay:.3f}"])
    assert "half" not in states, delay
    ours, theirs = open_tensors(out), open_tensors(made("nvfp4").folder)
    assert ours.keys() == theirs.keys()
    assert all(same_bytes(ref, theirs[name]) for name, ref in ours.items())
    assert audit_checkpoint(out, source).passed


def test_finished_shards_are_not_redone(
    source: Path, whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    put = ShardFile.put

    def failing(self: ShardFile, name: str, offset: int, data: bytes) -> None:
        if self.path.name not in written:
            written.append(self.path.name)
        if len(written) == 4:
            raise KeyboardInterrupt
        put(self, name, offset, data)

    out = tmp_path / "out"
    monkeypatch.setattr(ShardFile, "put", failing)
    with pytest.raises(KeyboardInterrupt):
        quantize(spec_of(source), out, QUIET)
    assert not out.exists()
    assert len(list(partial_path(out).glob("*.safetensors"))) == 3
    assert not (partial_path(out) / "config.json").exists()
    first = list(written)
    written.clear()
    monkeypatch.setattr(ShardFile, "put", lambda *a: (written.append(a[0].path.name), put(*a))[1])
    quantize(spec_of(source), out, QUIET)
    assert not set(written) & set(first[:3])
    same_folder(out, whole.folder)


def test_other_work_starts_anew(source: Path, whole: Result, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stale = partial_path(out)
    stale.mkdir()
    (stale / whole.manifest.files.__iter__().__next__()).write_text("left by something else")
    (stale / ".fingerprint.json").write_text("{}")
    quantize(spec_of(source), out, QUIET)
    same_folder(out, whole.folder)


@pytest.mark.parametrize("name", ["config.json", "joint_head.safetensors", "tokenizer.json"])
def test_every_file_of_the_source_is_part_of_the_work(
    source: Path, tmp_path: Path, name: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    work = run.prepare(spec_of(copy), QUIET)
    before = run._fingerprint(work)
    data = bytearray((copy / name).read_bytes())
    data[-2] ^= 1
    (copy / name).write_bytes(data)
    assert run._fingerprint(work) != before


def test_hidden_folders_are_no_part_of_a_checkpoint_s_identity(
    source: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    (copy / ".cache" / "old").mkdir(parents=True)
    shutil.copy(copy / "config.json", copy / ".cache" / "old" / "config.json")
    assert finish.identity(finish.hash_files(copy)) == checkpoint_sha256(copy)


def test_a_full_disk_is_told_and_loses_nothing(
    source: Path, whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, calls, pwrite = tmp_path / "out", iter(range(60)), os.pwrite

    def limited(descriptor: int, data: bytes, at: int) -> int:
        if next(calls, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", limited)
    with pytest.raises(InputError, match="no space left while writing"):
        quantize(spec_of(source), out, QUIET)
    assert not out.exists()
    monkeypatch.undo()
    quantize(spec_of(source), out, QUIET)
    same_folder(out, whole.folder)


def test_a_source_that_changes_is_noticed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "source"
    copy.mkdir()
    for path in source.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    side_files = finish.copy_side_files

    def touch(source: Path, target: Path) -> list[str]:
        os.utime(copy / "model.safetensors")
        return side_files(source, target)

    monkeypatch.setattr(finish, "copy_side_files", touch)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        quantize(spec_of(copy), tmp_path / "out", QUIET)
    assert not (tmp_path / "out").exists()


def test_a_wrong_result_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = ShardFile.put

    def damaging(self: ShardFile, name: str, offset: int, data: bytes) -> None:
        if name.endswith("layers.1.input_layernorm.weight"):
            data = bytes([data[0] ^ 1]) + bytes(data[1:])
        put(self, name, offset, data)

    monkeypatch.setattr(ShardFile, "put", damaging)
    with pytest.raises(AuditError, match=r"input_layernorm\.weight differs from the source"):
        quantize(spec_of(source), tmp_path / "out", QUIET)
    assert list(tmp_path.iterdir()) == []


def test_two_runs_do_not_write_one_folder(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = run.prepare(spec_of(source), QUIET)
    with run.output_folder(out, lambda: run._fingerprint(first)):
        with pytest.raises(InputError, match="another clefq is writing"):
            quantize(spec_of(source), out, QUIET)
        raise_after = True
    assert raise_after and out.exists()


def test_two_processes_do_not_write_one_folder(source: Path, tmp_path: Path) -> None:
    """The second is refused in one line while the first runs, and finds its result afterwards."""
    out = tmp_path / "out"
    code = (
        "import sys; from pathlib import Path; from clefq.store.atomic import sole_writer\n"
        "with sole_writer(Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", code, str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None and first.stdout.readline() == "locked\n"
    with pytest.raises(InputError, match="another clefq is writing") as caught:
        quantize(spec_of(source), out, QUIET)
    assert "\n" not in caught.value.message
    assert not out.exists() and not partial_path(out).exists()
    first.kill()
    first.communicate()
    first_made = quantize(spec_of(source), out, QUIET).manifest
    # the same work again is done already, other work and a damaged output are not
    assert quantize(spec_of(source), out, QUIET).manifest == first_made
    for spec in (spec_of(source), replace(spec_of(source), scheme="fp8")):
        (out / "tokenizer.json").write_text("{}")
        with pytest.raises(InputError, match="exists already"):
            quantize(spec, out, QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_read_only_place_is_one_line(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is kept out by permissions here, so the system's answer is put in its mouth."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(InputError) as caught:
        quantize(spec_of(source), tmp_path / "new" / "out", QUIET)
    assert (
        str(caught.value)
        == f"cannot write {tmp_path / 'new' / 'out'}. Fix: choose a writable --out."
    )


def test_what_a_killed_run_left_unmarked_is_not_trusted(
    source: Path, whole: Result, tmp_path: Path
) -> None:
    """A kill between the last two steps leaves all files and no mark: whose are they?"""
    out = tmp_path / "out"
    shutil.copytree(whole.folder, partial_path(out))
    shard = sorted(partial_path(out).glob("*.safetensors"))[1]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    quantize(spec_of(source), out, QUIET)
    same_folder(out, whole.folder)


def test_the_preflight_refuses(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "available_memory", lambda: 100_000_000)
    with pytest.raises(InputError, match=r"100\.0 MB of memory free, this run needs [\d.]+ [MG]B"):
        quantize(spec_of(source), tmp_path / "out", QUIET)
    monkeypatch.undo()
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InputError, match="free, this run needs"):
        quantize(spec_of(source), tmp_path / "out", QUIET)
    assert list(tmp_path.iterdir()) == []


def test_a_full_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needs = preflight.needs_of_stream(1000, 16, "cuda")
    assert needs.gpu == 800_000_000 + 16 * 150_000_000
    monkeypatch.setattr(preflight, "free_gpu_memory", lambda: 3_000_000_000)
    with pytest.raises(InputError, match=r"the GPU has 3\.0 GB of memory free, .* needs 3\.2 GB"):
        preflight.check(needs, tmp_path / "out")
    monkeypatch.setattr(preflight, "free_gpu_memory", lambda: 5_000_000_000)
    preflight.check(needs, tmp_path / "out")
    monkeypatch.setattr(preflight, "free_gpu_memory", lambda: pytest.fail("no GPU is used"))
    preflight.check(preflight.needs_of_stream(1000, 16), tmp_path / "out")
    # a long prompt's activations count
    flash = Widths(4096, 12288, 4096)
    alone = preflight.Needs(0, 0, gpu=preflight.gpu_of_oneshot(10**9))
    short, long = (
        preflight.with_prompts(alone, preflight.Prompts(n, 2 * n, flash)).gpu for n in (512, 87_000)
    )
    assert short < 3.1e9 < 12e9 < long


def test_amounts_are_in_a_unit_that_tells_them_apart() -> None:
    assert preflight.short_of(0, 81_920) == "0.0 kB free, this run needs 82.0 kB"
    assert preflight.short_of(999, 1000) == "0.9 kB free, this run needs 1.0 kB"
    assert preflight.short_of(12, 999) == "12 bytes free, this run needs 999 bytes"
    assert preflight.short_of(18_040_000_000, 18_060_000_000, "memory") == (
        "18.0 GB of memory free, this run needs 18.1 GB"
    )


def test_oneshot_keeps_weights_on_disk_when_memory_is_short() -> None:
    source, output, layer = 18_000_000_000, 8_000_000_000, 500_000_000
    rich = preflight.needs_of_oneshot(source, output, layer, 64_000_000_000)
    poor = preflight.needs_of_oneshot(source, output, layer, 16_000_000_000)
    assert not rich.offload
    assert poor.offload
    assert poor.memory < 16_000_000_000 < rich.memory
    assert poor.disk == rich.disk + source
