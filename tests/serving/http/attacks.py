"""Attacks on a running server, at full length; `test_connection.py` has them in short.

    python -m tests.serving.http.attacks --url http://127.0.0.1:8000 --pid PID [--only NAME …]

Prints one line an attack: what the attacker got, what an ordinary request cost meanwhile (a text
request of two questions, median and largest), and what the front process (PID) grew by at most.
Give it a server of your own, on the loopback interface.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

T = TypeVar("T")
ASK = "/v1/systemone"
BODY = {
    "state": "I was charged twice for March.",
    "questions": {"refund": {"type": "noul"}, "team": {"type": "choice",
                  "criteria": {"billing": None, "technical": None}}},
}  # fmt: skip
HEAD = f"POST {ASK} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"


@dataclass
class Watch:
    """What ordinary clients and the front process saw during an attack.

    Attributes:
        seconds: Of each ordinary request.
        statuses: Of them.
        grown: Most bytes that the front process held beyond those at the start.
    """

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    grown: int = 0

    def line(self) -> str:
        if not self.seconds:
            return "no ordinary request"
        return (
            f"ordinary: median {statistics.median(self.seconds):.3f} s, largest "
            f"{max(self.seconds):.3f} s, {dict(self.statuses)}; front +{self.grown >> 20} MiB"
        )


class Attacker:
    """One server under attack.

    Args:
        url: Of the server.
        pid: Of its front process.
    """

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid
        parts = urlsplit(url)
        self.address = (parts.hostname or "127.0.0.1", parts.port or 80)

    def resident(self) -> int:
        text = Path(f"/proc/{self.pid}/status").read_text()
        line = next(one for one in text.splitlines() if one.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    def descriptors(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=60)

    @contextmanager
    def watched(self) -> Iterator[Watch]:
        """Asks one ordinary request after the other for as long as the block runs."""
        watch = Watch()
        start, stop = self.resident(), threading.Event()

        def ask() -> None:
            while not stop.is_set():
                begun = time.perf_counter()
                try:
                    with httpx.Client(base_url=self.url, timeout=60) as client:
                        watch.statuses[client.post(ASK, json=BODY).status_code] += 1
                except httpx.TransportError:
                    watch.statuses[0] += 1
                watch.seconds.append(time.perf_counter() - begun)
                stop.wait(0.05)

        def measure() -> None:
            while not stop.wait(0.02):
                watch.grown = max(watch.grown, self.resident() - start)

        threads = [threading.Thread(target=one) for one in (ask, measure)]
        for thread in threads:
            thread.start()
        try:
            yield watch
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def quiet(self) -> str:
        with self.watched() as watch:
            time.sleep(5)
        return watch.line()

    def keep_alive(self) -> str:
        with httpx.Client(base_url=self.url) as client:
            took = []
            for _ in range(21):
                begun = time.perf_counter()
                client.get("/health")
                took.append(time.perf_counter() - begun)
        return f"first {took[0]:.4f} s, then median {statistics.median(took[1:]):.4f} s"

    def upgrade(self) -> str:
        raw = json.dumps(BODY).encode()
        head = "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMA\r\n"
        with self.connect() as connection:
            connection.sendall(f"{HEAD}content-length: {len(raw)}\r\n{head}\r\n".encode() + raw)
            return connection.recv(64).split(b"\r\n")[0].decode()

    def idle(self) -> str:
        with ExitStack() as stack, self.watched() as watch:
            held = [stack.enter_context(self.connect()) for _ in range(1000)]
            half = held[::2]
            for one in half:
                one.sendall(HEAD.encode())
            most = self.descriptors()
            time.sleep(90)
            left = self.descriptors()
        return f"descriptors {most} with 1,000 connections, {left} after 90 s; {watch.line()}"

    def endless_head(self) -> str:
        def send() -> int:
            sent = 0
            with suppress(OSError), self.connect() as one:
                one.sendall(b"GET / HTTP/1.1\r\nx: ")
                while sent < 80 << 20:
                    one.sendall(b"a" * (1 << 20))
                    sent += 1 << 20
            return sent

        with self.watched() as watch:
            sent = run_all([send] * 3)
            time.sleep(1)
        return f"took {sum(sent) >> 20} MiB of 240; {watch.line()}"

    def slow_bodies(self) -> str:
        with ExitStack() as stack, self.watched() as watch:
            for _ in range(500):
                one = stack.enter_context(self.connect())
                one.sendall(f"{HEAD}content-length: 100000\r\n\r\n{{".encode())
            time.sleep(10)
        return watch.line()

    def images(self) -> str:
        file = io.BytesIO()
        from PIL import Image

        Image.new("RGB", (4000, 6000), (90, 120, 150)).save(file, "PNG")
        picture = base64.b64encode(file.getvalue()).decode()
        count = 2  # as many of 24 million pixels as a request may have

        def ask() -> tuple[int, float]:
            begun = time.perf_counter()
            reply = httpx.post(
                self.url + ASK, json={**BODY, "images": [picture] * count}, timeout=120
            )
            return reply.status_code, time.perf_counter() - begun

        with self.watched() as watch:
            answers = run_all([ask] * 4)
        took = ", ".join(f"{status} after {seconds:.1f} s" for status, seconds in answers)
        return f"4 requests of {count} images: {took}; {watch.line()}"

    def schemas(self) -> str:
        text = "word and another " * 240_000
        body = {**BODY, "questions": {"q": {"type": "noul", "instructions": text}}}
        raw = json.dumps(body).encode()

        def ask() -> tuple[int, float]:
            begun = time.perf_counter()
            headers = {"content-type": "application/json"}
            reply = httpx.post(self.url + ASK, content=raw, headers=headers, timeout=120)
            return reply.status_code, time.perf_counter() - begun

        with self.watched() as watch:
            answers = run_all([ask] * 6)
        took = ", ".join(f"{status} after {seconds:.2f} s" for status, seconds in answers)
        return f"6 of {len(raw) >> 10} KiB: {took}; {watch.line()}"


def run_all(jobs: list[Callable[[], T]]) -> list[T]:
    found: list[T] = []
    threads = [threading.Thread(target=lambda job=job: found.append(job())) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


ATTACKS = ("quiet", "keep_alive", "upgrade", "endless_head", "slow_bodies", "images", "schemas",
           "idle")  # fmt: skip


def main() -> None:
    """Runs the attacks and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=ATTACKS)
    given = parser.parse_args()
    attacker = Attacker(given.url, given.pid)
    for name in given.only:
        print(f"{name}: {getattr(attacker, name)()}", flush=True)


if __name__ == "__main__":
    main()
