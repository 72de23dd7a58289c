"""A server of decisions over real sockets, whose answers, words and moods a test sets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Stand:
    """What it answers, and what it was asked.

    Attributes:
        respond: A request's body to the answer's.
        owner: Who owns its model, as `/v1/models` says, or None.
        details: What that says of the model under clefq's own key, or None.
        failures: Status codes with headers, or alone, to answer with before it answers properly.
        paths: Paths of the requests.
        bodies: Their bodies.
        headers: Their headers, in lower case.
        listed: How often `/v1/models` was read.
    """

    def __init__(self, respond: Callable[[dict[str, Any]], Any], owner: str | None = None) -> None:
        self.respond = respond
        self.owner = owner
        self.details: dict[str, Any] | None = None
        self.failures: list[int | tuple[int, dict[str, str]]] = []
        self.paths: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.listed = 0
        self.lock = threading.Lock()

    def entry(self) -> dict[str, Any]:
        """Its model in `/v1/models`."""
        said = {"owned_by": self.owner, "clefq": self.details}
        return {"id": "clef", **{name: value for name, value in said.items() if value is not None}}


@contextmanager
def running(stand: Stand) -> Iterator[str]:
    """Its address, while it listens."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            stand.listed += 1
            self.reply(200, {"object": "list", "data": [stand.entry()]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with stand.lock:
                stand.paths.append(self.path)
                stand.bodies.append(body)
                stand.headers.append({k.lower(): v for k, v in self.headers.items()})
                failure = stand.failures.pop(0) if stand.failures else None
            if failure is None:
                self.reply(200, stand.respond(body))
                return
            status, headers = failure if isinstance(failure, tuple) else (failure, {})
            self.reply(
                status, {"success": False, "errors": [{"message": f"mood {status}"}]}, headers
            )

        def reply(self, status: int, value: Any, headers: Any = None) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            for name, text in {**(headers or {}), "content-length": str(len(data))}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
