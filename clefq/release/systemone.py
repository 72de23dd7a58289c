"""`clef-systemone`: a SystemOne server for one checkpoint folder.

Published beside a checkpoint, in a package of its own: nothing here may need more of clefq than
the serving code.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from clefq import __version__
from clefq.clef.encoding import DEFAULT_MAX_LENGTH
from clefq.errors import ClefqError, MissingDependencyError
from clefq.serving.fleet.assembly import Engines, plan_fleet
from clefq.serving.fleet.fleet import Fleet
from clefq.serving.fleet.spec import Timeouts
from clefq.serving.http.settings import ServerSettings
from clefq.serving.http.tokens import tokens_from
from clefq.serving.settings import GDN_BACKENDS, ServeSettings

PROGRAM = "clef-systemone"
TOKEN_VARIABLE = "CLEF_SYSTEMONE_TOKEN"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or Ctrl-C.

    Args:
        arguments: Of the command line; None takes this process's.

    Returns:
        The exit code of a failure; after serving, the process ends here.
    """
    given = _parser().parse_args(arguments)
    try:
        serve(given)
    except ClefqError as error:
        for line in (error.message, *error.faults, *([f"fix: {error.fix}"] if error.fix else [])):
            print(f"{PROGRAM}: {line}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def serve(given: argparse.Namespace) -> NoReturn:
    """Checks, loads and serves; ends the process.

    Raises:
        ClefqError: No vLLM, no checkpoint, too few GPUs, or a taken port.
    """
    if find_spec("vllm") is None:
        raise MissingDependencyError("vLLM", "pip install 'vllm>=0.25.1,<0.34'")
    from clefq.serving.fleet.front import Door, run_server
    from clefq.serving.fleet.server import Address, leave, listen
    from clefq.serving.http.logs import event, log_to

    settings = ServeSettings(
        max_length=given.max_length,
        max_images=given.max_images,
        step_tokens=given.batch_tokens,
        max_cudagraph_tokens=given.max_cudagraph_tokens,
        gdn_backend=given.gdn_backend,
        tensor_parallel=given.tp,
        gpu_memory=given.gpu_memory,
        eager=given.eager,
        cpu_threads=given.threads,
    )
    engines = Engines(
        folder=given.model,
        own_name=given.model.resolve().name,
        further_names=tuple(given.served_model_name),
        settings=settings,
        copies=given.dp,
        timeouts=Timeouts(request=given.request_timeout),
        verbose=given.verbose,
    )
    own = tokens_from((), os.environ.get(TOKEN_VARIABLE), None)
    server = ServerSettings(
        bearer_tokens=tokens_from((), os.environ.get(TOKEN_VARIABLE), given.token_file),
        truncate_state=given.truncate_state,
        max_pending=given.max_queue,
        answer_seconds=given.request_timeout,
    )
    plan = plan_fleet(engines, os.environ)  # before the port is taken
    listener = listen(Address(given.host, given.port))
    log_to("json")
    event(f"loading {engines.folder} into {engines.copies} engine(s)")

    door = Door(listener, token_file=given.token_file, further_tokens=own)

    def ready(fleet: Fleet, url: str) -> None:
        event(f"ready: {url}/v1/systemone, model {fleet.info.names[0]}")

    leave(asyncio.run(run_server(plan, server, door, ready, event)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Serve a Clef checkpoint folder: POST /v1/systemone, GET /v1/models, /health, "
        "/metrics. /health answers 200 once every engine is loaded.",
    )
    add = parser.add_argument
    add("--version", action="version", version=f"{PROGRAM} {__version__}")
    add("--model", type=Path, required=True, metavar="DIR", help="the checkpoint folder")
    add("--host", default="127.0.0.1", help="interface; 0.0.0.0 for all (default: %(default)s)")
    add("--port", type=int, default=8000, help="0 for any free one (default: %(default)s)")
    add("--dp", type=int, default=1, metavar="N", help="engines, each with GPUs of its own")
    add("--tp", type=int, default=1, metavar="N", help="GPUs of each engine")
    add("--served-model-name", action="append", default=[], metavar="NAME", help="a further name")
    add("--max-length", type=int, default=DEFAULT_MAX_LENGTH, metavar="N",
        help="most tokens of a prompt (default: %(default)s)")  # fmt: skip
    add("--truncate-state", action="store_true", help="cut over-long states instead of refusing")
    add("--max-images", type=int, default=4, metavar="N", help="most images of a request")
    add("--batch-tokens", type=int, default=8192, metavar="N", help="most tokens of a step")
    add("--max-cudagraph-tokens", type=int, default=2048, metavar="N",
        help="CUDA graphs for steps up to this size")  # fmt: skip
    add("--gdn-backend", choices=GDN_BACKENDS, default="auto", help="DeltaNet prefill kernel")
    add("--gpu-memory", type=float, default=0.9, metavar="F", help="fraction of a GPU to take")
    add("--eager", action="store_true", help="no compilation: starts sooner, runs slower")
    add("--threads", type=int, metavar="N", help="CPU threads of each engine (no GPU)")
    add("--max-queue", type=int, default=256, metavar="N", help="requests in hand; then 429")
    add("--request-timeout", type=float, default=180.0, metavar="S", help="of a request, seconds")
    add("--token-file", type=Path, metavar="FILE",
        help=f"bearer tokens to ask for, one a line (or ${TOKEN_VARIABLE})")  # fmt: skip
    add("--verbose", action="store_true", help="show vLLM's own log")
    return parser


def run() -> None:
    """Entry point of the console script."""
    sys.exit(main())


if __name__ == "__main__":
    run()
