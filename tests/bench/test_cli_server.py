"""`clefq bench server` as people call it."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from clefq.cli.main import run
from tests.bench.fake import Fake, serving


def clefq(*args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    command = [sys.executable, "-m", "clefq.cli.main", "bench", "server", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


SHORT = ("--duration", "0.6", "--warmup", "0.1", "--count", "4")


def test_one_table_for_several_loads(tmp_path: Path) -> None:
    out = tmp_path / "load.json"
    fake = Fake(headers={200: "Server-Timing: engine;dur=5.1", 429: "Retry-After: 0.01"})
    fake.status = lambda n: {7: 429, 9: 503}.get(n % 10, 200)
    with serving(fake) as url:
        done = clefq(url, "--clients", "1,4", "--rate", "50", *SHORT, "--out", str(out))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.startswith(("1 ", "4 ", "50/s "))]
    assert any("p95 ms" in line for line in lines)
    assert re.search(r"^4 clients: failed: 503 ×[1-9]", done.stdout, re.MULTILINE)
    assert re.search(r"refused \(429\): (\d+), \1 of them with Retry-After", done.stdout)
    assert "engine" in done.stdout
    body = json.loads(out.read_text())
    assert [row["load"] for row in body["rows"]] == ["1 client", "4 clients", "50/s"]
    assert all(row["latency"]["p99"] > 0 for row in body["rows"])


def test_json_and_the_exit_code_of_wrong_answers() -> None:
    def nothing(number: int, body: dict[str, Any]) -> Any:
        return {**body, "answers": {}} if number else body

    with serving(Fake(spoil=nothing)) as url:
        done = clefq(url, "--clients", "1", *SHORT, "--json")
    assert done.returncode == 1
    (row,) = json.loads(done.stdout)["rows"]
    assert row["faults"]["malformed"] > 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nonsense",), "no http address"),
        (("http://127.0.0.1:1",), "cannot reach"),
        (("http://a", "--clients", "0"), "must be positive"),
        (("http://a", "--clients", "x"), "take numbers"),
        (("http://a", "--rate", "nan"), "must be positive"),
        (("http://a", "--duration", "0"), "must be positive"),
        (("http://a", "--duration", "nan"), "must be positive"),
        (("http://a", "--warmup", "inf"), "below a day"),
        (("http://a", "--tolerance", "nan"), "--tolerance"),
        (("http://a", "--clients", "99999999"), "more than one load generator can send"),
        (("http://a", "--rate", "1e300"), "more than one load generator can send"),
        (("http://a", "--lengths", "50000000"), "unknown kind"),
        (("http://a", "--check", "f.parquet"), "--check needs --records"),
        (("http://a", "--records", "nowhere"), "no set nowhere"),
        (("http://a", "--out", "/"), "Is a directory"),
        (("http://a", "--out", f"{__file__}/load.json"), "cannot use"),
        (("http://a", "--lengths", "many"), "unknown kind"),
        (("http://127.0.0.1:1", "--lengths", "50"), "questions alone take"),
    ],
)
def test_wrong_use_is_one_line(
    args: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["clefq", "bench", "server", *args])
    with pytest.raises(SystemExit) as stop:
        run()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("quiet", [False, True])
def test_a_server_that_keeps_silent_is_said_to_be_waited_for(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("clefq.bench.server._PATIENCE", 0.05)
    options = ("--clients", "1", *SHORT, "--json", *(["--quiet"] if quiet else []))
    with serving(Fake(delay=0.3)) as url:
        monkeypatch.setattr(sys, "argv", ["clefq", "bench", "server", url, *options])
        with contextlib.suppress(SystemExit):
            run()
    shown = capsys.readouterr()
    assert json.loads(shown.out)["rows"]
    said = f"waiting up to 120 s for a first answer of {url}\n"
    assert shown.err.count(said) == (0 if quiet else 1)


def test_a_port_where_nothing_listens_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["clefq", "bench", "server", "http://127.0.0.1:1"])
    begun = time.monotonic()
    with pytest.raises(SystemExit):
        run()
    assert time.monotonic() - begun < 5.0
    said = capsys.readouterr().err
    assert "cannot reach" in said and "start the server" in said and "waiting" not in said


def test_a_server_that_wants_a_token_says_so_even_for_its_models(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import httpx

    def locked(self: Any, url: str, **_: Any) -> httpx.Response:
        return httpx.Response(401, json={"error": "no token"})

    monkeypatch.setattr(httpx.Client, "get", locked)
    monkeypatch.setattr(sys, "argv", ["clefq", "bench", "server", "http://127.0.0.1:1"])
    with pytest.raises(SystemExit) as stop:
        run()
    assert stop.value.code == 2
    assert "CLEFQ_API_KEY" in capsys.readouterr().err
