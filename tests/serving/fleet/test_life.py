"""The server's life beyond its first hour: another model in its folder, restarts, SIGHUP, TLS."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

import clefq.nano
from clefq.clef.checkpoint import checkpoint_sha256
from clefq.errors import CheckpointError, InputError
from clefq.serving.fleet import rollover
from clefq.serving.fleet.assembly import FleetPlan
from clefq.serving.fleet.fingerprint import check_unchanged, fingerprint
from clefq.serving.fleet.fleet import Fleet
from clefq.serving.fleet.process import Launch
from clefq.serving.fleet.rollover import check_room
from clefq.serving.fleet.server import Certificate
from clefq.serving.fleet.spec import FleetSpec, ModelInfo
from clefq.serving.fleet.wire import Start
from clefq.serving.settings import ServeSettings
from tests.serving.fleet.test_server import Server, body, engine_pids, free_port, serving

NANO = Path(clefq.nano.__file__).parent / "weights"
ASK = "/v1/systemone"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of our own."""
    return Path(shutil.copytree(NANO, tmp_path / "model"))


def replace_model(folder: Path) -> None:
    """Another model in the place of the first: one weight differs."""
    file = next(iter(sorted(folder.glob("*.safetensors"))))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.unlink()
    file.write_bytes(data)


def start_of(folder: Path, *, hashed: bool) -> Start:
    sha256 = checkpoint_sha256(folder) if hashed else None
    return Start(folder, ServeSettings(), fingerprint=fingerprint(folder), sha256=sha256)


def test_another_checkpoint_is_noticed_and_a_copy_of_the_same_is_none(folder: Path) -> None:
    start = start_of(folder, hashed=True)
    check_unchanged(start)
    (folder / "clefq.json").write_text("{}")  # decides nothing
    check_unchanged(start)
    again = shutil.copytree(folder, folder.with_name("again"))
    shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match="is gone"):
        check_unchanged(start)
    Path(again).rename(folder)
    assert fingerprint(folder) != start.fingerprint
    check_unchanged(start)
    replace_model(folder)
    with pytest.raises(CheckpointError, match="holds another checkpoint"):
        check_unchanged(start)
    with pytest.raises(CheckpointError, match="holds another checkpoint"):
        # not hashed yet: what cannot be shown to be the same is refused
        check_unchanged(Start(folder, ServeSettings(), fingerprint=start.fingerprint))


def wait_for(what: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def kill_engine(server: Server) -> None:
    os.kill(engine_pids(server.process.pid)[0], signal.SIGKILL)


def test_a_restart_never_serves_another_model_than_it_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLDER", str(folder))
    with serving({}) as server:
        server.until(200)
        stated = httpx.get(f"{server.url}/v1/models").json()["data"][0]["clefq"]
        assert stated["sha256"] == checkpoint_sha256(folder)
        assert stated["scheme"] == "bf16"
        replace_model(folder)
        kill_engine(server)
        server.until(503)
        assert httpx.post(server.url + ASK, json=body()).status_code == 503
        assert httpx.get(f"{server.url}/livez").status_code == 200
        code, output = server.end(30)
    assert code == 2, output
    assert "holds another checkpoint than at the server's start" in output


def test_a_model_that_is_gone_ends_the_server_with_the_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLDER", str(folder))
    with serving({}) as server:
        server.until(200)
        shutil.rmtree(folder)
        kill_engine(server)
        code, output = server.end(30)
    assert code == 2, output
    assert "1 restarts have failed: giving up" in output
    assert f"error: engine 0: {folder} is gone." in output.splitlines()[-1]


def test_a_hangup_reads_the_tokens_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("first: one\n")
    monkeypatch.setenv("TOKEN_FILE", str(tokens))

    def status(server: Server, secret: str) -> int:
        headers = {"authorization": f"Bearer {secret}"}
        return httpx.get(f"{server.url}/v1/models", headers=headers).status_code

    with serving({}) as server:
        server.until(200)
        assert (status(server, "one"), status(server, "two")) == (200, 401)
        tokens.write_text("second: two 5/s\n")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: status(server, "two") == 200)
        assert status(server, "one") == 401
        tokens.write_text("a: b c d\n")
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert status(server, "two") == 200
        server.process.terminate()
        code, output = server.end()
    assert code == 0, output
    assert "1 tokens from now on" in output
    assert "the tokens stay as they were" in output


def test_another_model_takes_over_without_a_gap(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = free_port()
    monkeypatch.setenv("FOLDER", str(folder))
    monkeypatch.setenv("ADMIN_PORT", str(admin))
    reload = f"http://127.0.0.1:{admin}/reload"
    header = {"x-clefq-admin": "1"}
    with serving({"delay": 0.05, "load": 0.5}) as server:
        server.until(200)
        first = checkpoint_sha256(folder)
        statuses: list[int] = []
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                statuses.append(httpx.post(server.url + ASK, json=body()).status_code)

        clients = [threading.Thread(target=ask) for _ in range(4)]
        for client in clients:
            client.start()
        replace_model(folder)
        assert httpx.post(reload).status_code == 403
        reply = httpx.post(reload, headers=header, timeout=30)
        assert reply.status_code == 200, reply.text
        time.sleep(0.5)
        stop.set()
        for client in clients:
            client.join()
        assert set(statuses) == {200}
        stated = httpx.get(f"{server.url}/v1/models").json()["data"][0]["clefq"]["sha256"]
        assert stated == reply.json()["sha256"] == checkpoint_sha256(folder) != first
        wait_for(lambda: len(engine_pids(server.process.pid)) == 1)
        # one that cannot start changes nothing
        shutil.rmtree(folder)
        assert httpx.post(reload, headers=header, timeout=30).status_code in (409, 503)
        assert httpx.post(server.url + ASK, json=body()).status_code == 200
        server.process.terminate()
        code, output = server.end()
    assert code == 0, output
    assert "another model answers from now on" in output


def test_two_models_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Start(NANO, ServeSettings(gpu_memory=0.6))
    spec = FleetSpec(start, [Launch(("true",), {})], ModelInfo(("m",), "bf16"))
    running = Fleet(spec, lambda line: None)
    with pytest.raises(InputError, match=r"two engines do not fit on a GPU: each takes 0\.6"):
        check_room(FleetPlan(spec, "bf16", ("GPU 0",)), running)
    check_room(FleetPlan(spec, "bf16", ("cores 0",)), running)
    monkeypatch.setattr(rollover, "available_bytes", lambda: 11 << 30)
    monkeypatch.setattr(running, "gauges", lambda: {"engine_memory_bytes{0}": 10 << 30})
    with pytest.raises(InputError, match=r"the first holds 10\.0 GiB, 11\.0 GiB are free"):
        check_room(FleetPlan(spec, "bf16", ("cores 0",)), running)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    made = (folder / "cert.pem", folder / "key.pem")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    try:
        subprocess.run(
            [*command, "-out", str(made[0]), "-keyout", str(made[1])],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    return made


def test_tls(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CERTIFICATE", str(certificate[0]))
    monkeypatch.setenv("KEY", str(certificate[1]))
    context = ssl.create_default_context(cafile=str(certificate[0]))
    with serving({}) as server, httpx.Client(verify=context) as client:
        url = server.url.replace("http:", "https:")

        def ready() -> bool:
            try:
                return client.get(f"{url}/readyz").status_code == 200
            except httpx.TransportError:
                return False

        wait_for(ready)
        assert client.post(url + ASK, json=body()).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/readyz")
        assert client.get(f"{url}/livez").status_code == 200
        server.process.terminate()
        assert server.end()[0] == 0


def test_a_certificate_that_cannot_be_used(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(other), "2048"], check=True,
                   capture_output=True)  # fmt: skip
    for pair in ((certificate[0], other), (certificate[0], tmp_path / "none"), certificate[::-1]):
        with pytest.raises(InputError, match=r"--ssl-certfile .* cannot be used"):
            Certificate(*pair)
