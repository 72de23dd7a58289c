"""Checkpoints side by side: a real run of the miniature, and the table's arithmetic."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

import clefq
from clefq.bench.measuring import Measured, OneJob, Speed, measure
from clefq.bench.offline import OfflineReport, by_cpu, cells_of
from clefq.bench.source import RecordSource, opened, parse_kinds
from clefq.bench.timing import summary
from clefq.cli.bench_tables import offline_text
from clefq.cli.main import run
from clefq.console import Console
from clefq.engines.base import EngineSpec
from clefq.errors import ClefqError, InputError

NANO = Path(clefq.__file__).parent / "nano"


def speed(seconds: tuple[float, ...], n_records: int = 10, **changes: object) -> Speed:
    made = Speed(
        records="500",
        n_records=n_records,
        failed=0,
        tokens=500 * n_records,
        seconds=seconds,
        cpu_seconds=tuple(2 * s for s in seconds),
        latency=summary([0.1, 0.2]),
    )
    return replace(made, **changes)


def row(name: str, *speeds: Speed, **changes: object) -> Measured:
    made = Measured(
        name=name,
        engine="transformers",
        engine_version="1",
        scheme=name,
        kernels="real",
        arithmetic="bf16",
        device="cpu",
        start_seconds=3.0,
        disk_bytes=12_000_000,
        peak_bytes=500_000_000,
        device_peak_bytes=None,
        weight_bytes=13_000_000,
        speeds=speeds,
        warnings=(),
    )
    return replace(made, **changes)


def test_ratios_are_of_median_passes_against_the_first_row() -> None:
    base = row("bf16", speed((1.0, 9.0, 2.0)), speed((4.0,), records="1000"))
    other = row("fp8", speed((1.0, 0.5, 1.0), cpu_seconds=(1.0,)), speed((8.0,), records="1000"))
    found = {(cell.name, cell.records): cell for cell in cells_of([base, other])}
    assert found["bf16", "500"].records_per_second == 5
    assert found["bf16", "500"].tokens_per_second == 2500
    assert found["fp8", "500"].ratio == 2
    assert found["fp8", "500"].cpu_ratio == 4
    assert found["fp8", "1000"].ratio == 0.5
    assert found["bf16", "1000"].ratio == 1


def test_jobs_and_results_survive_the_way_between_processes() -> None:
    source = RecordSource(NANO / "sets" / "nano-eval", ("500",), None, NANO / "weights")
    spec = EngineSpec(threads=1)
    for one in (source, replace(source, set_path=None, count=3)):
        job = OneJob("a", NANO / "weights", "vllm", spec, one, 2, 5, 1.5)
        assert OneJob.from_json(json.loads(json.dumps(job.to_json()))) == job
    made = row("bf16", speed((1.0, 2.0)), speed((1.0,), latency=None))
    assert Measured.from_json(json.loads(json.dumps(asdict(made)))) == made


def test_sources() -> None:
    source = RecordSource(None, ("470", "image-640"), 1, NANO / "weights")
    with opened(source) as loaded:
        assert [record.cohort for record in loaded.records] == ["470", "image-640"]
        assert all((loaded.root / r.images[0]).is_file() for r in loaded.records if r.images)
        assert loaded.name == "synthetic 470 tokens, image-640"
        root = loaded.root
    assert not root.exists()
    with opened(RecordSource(NANO / "sets" / "nano-eval", (), 5, NANO / "weights")) as loaded:
        assert len(loaded.records) == 5
        assert loaded.set_sha256
    assert parse_kinds("500, 16k,") == ("500", "16k")
    with pytest.raises(InputError, match="names no kind"):
        parse_kinds(",")


def job(**changes: object) -> OneJob:
    source = RecordSource(None, ("470", "image-640"), 1, NANO / "weights")
    spec = EngineSpec(threads=1)
    made = OneJob("nano", NANO / "weights", "transformers", spec, source, 2, 1, time.time())
    return replace(made, **changes)


def test_a_checkpoint_is_measured() -> None:
    measured = measure(job(), Console(quiet=True))
    assert (measured.arithmetic, measured.kernels, measured.scheme) == ("bf16", "real", "bf16")
    assert measured.disk_bytes == pytest.approx(11.7e6, rel=0.01)
    assert measured.weight_bytes == pytest.approx(12.5e6, rel=0.15)
    assert 200e6 < measured.peak_bytes < 20e9
    assert measured.start_seconds > 0
    text, image = measured.speeds
    assert 460 < text.tokens <= 470
    # the image's own tokens are counted
    assert image.tokens > 520
    assert (text.n_records, text.failed, len(text.seconds)) == (1, 0, 2)
    assert text.latency
    assert text.latency.count == 1


def test_records_that_cannot_be_answered_are_told() -> None:
    with pytest.raises(ClefqError, match="answers no record of image-640: record"):
        measure(job(spec=EngineSpec(max_length=490, threads=1), runs=1), Console(quiet=True))
    source = RecordSource(NANO / "sets" / "nano-eval", (), 12, NANO / "weights")
    short = job(spec=EngineSpec(max_length=700, threads=1), source=source, runs=1, alone=0)
    measured = measure(short, Console(quiet=True))
    (speed,) = measured.speeds
    assert 0 < speed.failed < 12
    assert speed.n_records == 12 - speed.failed
    assert speed.latency is None
    assert f"{speed.failed} records have no answer" in measured.warnings[-1]


def test_the_command_measures_in_a_process_of_its_own(tmp_path: Path) -> None:
    env = {**os.environ, "COLUMNS": "80", "TERM": "dumb", "OMP_NUM_THREADS": "1"}
    out, weights = tmp_path / "speed.json", str(NANO / "weights")
    command = [sys.executable, "-m", "clefq.cli.main", "bench", "offline", weights]
    command += ["--lengths", "470", "--count", "2", "--runs", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert re.search(r"^weights +bf16 .* 1\.00×", done.stdout, re.MULTILINE)
    body = json.loads(out.read_text())
    assert body["rows"][0]["start_seconds"] > 0.5
    assert body["cells"][0]["tokens_per_second"] > 10


def test_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = (
        row("transformers bf16", speed((1.0, 1.5)), weight_bytes=18_600_000_000),
        row("vllm nvfp4a16", speed((0.5, 0.5)), kernels="simulated", arithmetic="w4a16",
            weight_bytes=None),
    )  # fmt: skip
    report = OfflineReport(rows, tuple(cells_of(rows)), 2, tuple(by_cpu(rows, cells_of(rows))))
    RichConsole(width=80).print(offline_text(report))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "18.60 GB" in text
    assert re.search("vllm nvfp4a16 +w4a16 sim. +20.0 +10,000 +2.50×", text)
    assert "by CPU seconds, steadier on a busy machine: vllm nvfp4a16 2.50× (500)" in " ".join(
        text.split()
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nowhere",), "nowhere"),
        ((str(NANO / "weights"), "--engine", "http"), "not measured offline"),
        ((str(NANO / "weights"), "--engine", "fast"), "unknown engine"),
        ((str(NANO / "weights"), "--lengths", "x"), "unknown kind"),
        ((str(NANO / "weights"), "--threads", "0"), "threads is 0"),
    ],
)
def test_wrong_use_is_one_line(
    args: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["clefq", "bench", "offline", *args])
    with pytest.raises(SystemExit) as stop:
        run()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
