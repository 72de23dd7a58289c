"""`clefq serve` with fake engines: `python -m tests.serving.fleet.fake_server PORT FAKE…`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import clefq.nano
from clefq.errors import ClefqError
from clefq.serving.fleet.fleet import Fleet
from clefq.serving.fleet.process import Launch
from clefq.serving.fleet.server import Address, FrontServer, listen
from clefq.serving.fleet.spec import Card, FleetSpec, Timeouts
from clefq.serving.fleet.wire import Start
from clefq.serving.http.app import create_app
from clefq.serving.http.settings import ServerSettings
from clefq.serving.prompts import PromptMaker
from clefq.serving.settings import ServeSettings

COMMAND = (sys.executable, "-m", "tests.serving.fleet.fake_worker")


def log(line: str) -> None:
    print(line, flush=True)


async def main(port: int, fakes: list[str]) -> int:
    folder = Path(clefq.nano.__file__).parent / "weights"
    launches = [Launch(COMMAND, {**os.environ, "FAKE": json.dumps(json.loads(f))}) for f in fakes]
    timeouts = Timeouts(start=20, request=20, stall=20, stop=5)
    start = Start(folder, ServeSettings(max_length=2048, max_images=0))
    fleet = Fleet(FleetSpec(start, launches, Card(("nano",), "bf16"), timeouts), log)
    settings = ServerSettings(access_log=False)
    prompts = PromptMaker(folder, 0)
    if os.environ.get("FAKE_SERVER") == "no processor":
        prompts = PromptMaker(folder, 1)
        prompts.folder = Path("/nowhere")
    app = create_app(fleet, prompts, settings, on_failure=lambda error: server.fail(error))
    listener = listen(Address("127.0.0.1", port))
    server = FrontServer(app, fleet, lambda: log("ready"), log, grace=30)
    return await server.run(listener)


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(int(sys.argv[1]), sys.argv[2:])))
    except ClefqError as error:
        log(f"error: {error}")
        sys.exit(int(error.exit_code))
