"""`clefq serve` with fake engines: `python -m tests.serving.fleet.fake_server PORT FAKE…`.

The environment may name a FOLDER to serve, a TOKEN_FILE, a CERTIFICATE and its KEY, an ADMIN_PORT.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import clefq.nano
from clefq.errors import ClefqError
from clefq.serving.fleet import front
from clefq.serving.fleet.assembly import FleetPlan
from clefq.serving.fleet.fingerprint import fingerprint
from clefq.serving.fleet.front import Door, run_server
from clefq.serving.fleet.process import Launch
from clefq.serving.fleet.server import Address, Certificate, listen
from clefq.serving.fleet.spec import FleetSpec, ModelInfo, Timeouts
from clefq.serving.fleet.wire import Start
from clefq.serving.http.logs import log_to
from clefq.serving.http.settings import ServerSettings
from clefq.serving.http.tokens import tokens_from
from clefq.serving.prompts import PromptMaker
from clefq.serving.settings import ServeSettings

COMMAND = (sys.executable, "-m", "tests.serving.fleet.fake_worker")


def log(line: str) -> None:
    print(line, flush=True)


def named(variable: str) -> Path | None:
    return Path(os.environ[variable]) if variable in os.environ else None


def no_processor(folder: Path, max_images: int, **options: bool) -> PromptMaker:
    prompts = PromptMaker(folder, 1, **options)
    prompts.folder = Path("/nowhere")
    return prompts


async def main(port: int, fakes: list[str]) -> int:
    folder = named("FOLDER") or Path(clefq.nano.__file__).parent / "weights"
    launches = [Launch(COMMAND, {**os.environ, "FAKE": json.dumps(json.loads(f))}) for f in fakes]
    timeouts = Timeouts(start=20, request=20, stall=20, stop=5)

    def plan() -> FleetPlan:
        settings = ServeSettings(max_length=2048, max_images=0)
        start = Start(folder, settings, fingerprint=fingerprint(folder))
        spec = FleetSpec(start, launches, ModelInfo(("nano",), "bf16"), timeouts, max_restarts=1)
        return FleetPlan(spec, "bf16", ())

    tokens = named("TOKEN_FILE")
    settings = ServerSettings(
        access_log=False, bearer_tokens=tokens_from((), None, tokens) if tokens else ()
    )
    if os.environ.get("FAKE_SERVER") == "no processor":
        front.PromptMaker = no_processor  # type: ignore[assignment,misc]
    admin = os.environ.get("ADMIN_PORT")
    certificate, key = named("CERTIFICATE"), named("KEY")
    door = Door(
        listen(Address("127.0.0.1", port)),
        Certificate(certificate, key) if certificate and key else None,
        tokens,
        admin=listen(Address("127.0.0.1", int(admin))) if admin else None,
        replan=plan,
    )
    log_to("text", sys.stdout, sys.stdout)
    return await run_server(plan(), settings, door, lambda fleet, url: log(f"ready {url}"), log)


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(int(sys.argv[1]), sys.argv[2:])))
    except ClefqError as error:
        log(f"error: {error}")
        sys.exit(int(error.exit_code))
