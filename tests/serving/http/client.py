"""Asking an app: in this process, or over a real socket."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from clefq.serving.http.app import create_app, service_of
from clefq.serving.http.connection import connections_of
from clefq.serving.http.settings import ServerSettings
from clefq.serving.prompts import PromptMaker
from tests.serving.http.fake import FakeBackend

ASK = "/v1/systemone"
BODY: dict[str, Any] = {
    "model": "clef",
    "state": {"ticket": "charged twice", "count": 2},
    "questions": {
        "refund": {"type": "noul", "instructions": "Does the customer ask for a refund?"},
        "team": {"type": "choice", "criteria": {"tech": None, "billing": "Payments"}},
        "anger": {"type": "score", "criteria": ["calm", "annoyed", "furious"]},
    },
}
TYPESAFE = {"x-clefq-dialect": "typesafe"}


class Asker:
    """One app, asked in this process.

    Attributes:
        backend: Its engines.
        app: The app; its lifespan is not run.
    """

    def __init__(
        self, prompts: PromptMaker, settings: ServerSettings | None = None,
        backend: FakeBackend | None = None,
    ) -> None:  # fmt: skip
        self.backend = backend or FakeBackend()
        self.app = create_app(self.backend, prompts, settings)

    def __call__(
        self, body: Any = BODY, path: str = ASK, method: str = "POST",
        headers: Any = None,
    ) -> httpx.Response:  # fmt: skip
        """Sends one request; bytes as they are, anything else as JSON."""

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
                if isinstance(body, bytes):
                    return await client.request(method, path, content=body, headers=headers)
                return await client.request(method, path, json=body, headers=headers)

        return asyncio.run(send())

    def get(self, path: str, headers: Any = None) -> httpx.Response:
        """Sends a GET."""

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
                return await client.get(path, headers=headers)

        return asyncio.run(send())


@contextmanager
def listening(app: FastAPI) -> Iterator[int]:
    """Runs an app as the front process does, in a thread; yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    shared = connections_of(service_of(app), log_refusals=False)
    config = uvicorn.Config(
        app,
        port=port,
        log_level="error",
        access_log=False,
        ws="none",
        http=shared.protocol,  # type: ignore[arg-type]
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.01)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
