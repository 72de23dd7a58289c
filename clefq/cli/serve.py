"""`clefq serve`: a SystemOne server, one engine per GPU behind one port."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefq.cli.options import Json, Quiet, Run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clefq.console import Console
    from clefq.serving.fleet.assembly import Engines
    from clefq.serving.fleet.fleet import Fleet
    from clefq.serving.fleet.server import Address, Certificate
    from clefq.serving.http.settings import Limits, ServerSettings
    from clefq.serving.http.tokens import Token
    from clefq.serving.settings import ServeSettings

TOKEN_VARIABLE = "CLEFQ_SERVE_TOKEN"
# Parameters that the `vllm serve` command line has no place for.
_OWN = (
    "host",
    "port",
    "dp",
    "served_model_name",
    "dialect",
    "truncate_state",
    "max_queue",
    "limit",
    "request_timeout",
    "engine_timeout",
    "token",
    "token_file",
    "access_log",
    "log_probes",
    "log_format",
    "max_connections",
    "max_restarts",
    "admin_port",
    "ssl_certfile",
    "ssl_keyfile",
    "allowed_hosts",
    "allowed_origins",
    "escape_special_tokens",
    "warm_cache",
)
# Set for the interpreter of the serving environment, so that it does not look for another one.
_HANDED_OVER = "CLEFQ_SERVE_HANDED_OVER"


def command(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Checkpoint folder, variant of the run folder, hub id (org/name@revision), or "
            "nano, the bundled miniature.",
        ),
    ],
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Interface; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", help="0: any free one.")] = 8000,
    dp: Annotated[
        int, typer.Option("--dp", metavar="N", help="Engines, each with GPUs of its own.")
    ] = 1,
    tp: Annotated[int, typer.Option("--tp", metavar="N", help="GPUs of each engine.")] = 1,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            "--served-model-name",
            metavar="NAME",
            help="A further name that requests may use (repeatable; the first is reported).",
        ),
    ] = None,
    dialect: Annotated[
        str,
        typer.Option(
            "--dialect", metavar="NAME", help="release or typesafe; a request's header wins."
        ),
    ] = "release",
    max_length: Annotated[
        int, typer.Option("--max-length", metavar="N", help="Most tokens of a prompt.")
    ] = 16_384,
    truncate_state: Annotated[
        bool,
        typer.Option("--truncate-state", help="Cut over-long states instead of refusing them."),
    ] = False,
    max_images: Annotated[
        int,
        typer.Option(
            "--max-images",
            metavar="N",
            help="Most images of a request; 0 leaves the vision tower out of memory.",
        ),
    ] = 4,
    batch_tokens: Annotated[
        int, typer.Option("--batch-tokens", metavar="N", help="Most tokens of an engine step.")
    ] = 8192,
    max_cudagraph_tokens: Annotated[
        int,
        typer.Option(
            "--max-cudagraph-tokens", metavar="N", help="CUDA graphs for steps up to this size."
        ),
    ] = 2048,
    gdn_backend: Annotated[
        str,
        typer.Option(
            "--gdn-backend", metavar="NAME", help="DeltaNet prefill: auto, triton or flashinfer."
        ),
    ] = "auto",
    four_bit: Annotated[
        str,
        typer.Option(
            "--four-bit",
            metavar="HOW",
            help="NVFP4 layers on a GPU : auto, kernel (vLLM's choice), bf16 (unpacked at "
            "load), simulated (W4A4).",
        ),
    ] = "auto",
    gpu_memory: Annotated[
        float,
        typer.Option(
            "--gpu-memory", metavar="F", help="Fraction of a GPU that an engine may take."
        ),
    ] = 0.9,
    eager: Annotated[
        bool, typer.Option("--eager", help="No compilation, no CUDA graphs: starts sooner.")
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option("--threads", metavar="N", help="CPU threads of each engine (no GPU)."),
    ] = None,
    max_queue: Annotated[
        int,
        typer.Option("--max-queue", metavar="N", help="Requests taken on at a time; then 429."),
    ] = 256,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=N",
            help="A limit of one request, as max_questions=32 (repeatable; see the API's page).",
        ),
    ] = None,
    request_timeout: Annotated[
        float,
        typer.Option("--request-timeout", metavar="S", help="A request's time in the engines."),
    ] = 180.0,
    engine_timeout: Annotated[
        float,
        typer.Option(
            "--engine-timeout",
            metavar="S",
            help="An engine that has work and is silent for so long is restarted.",
        ),
    ] = 60.0,
    token: Annotated[
        list[str] | None,
        typer.Option(
            "--token",
            metavar="T",
            help=f"Bearer token to ask for (repeatable; better in ${TOKEN_VARIABLE} or a file).",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="Lines TOKEN or NAME: TOKEN [20/s]; read again at SIGHUP.",
        ),
    ] = None,
    ssl_certfile: Annotated[
        Path | None, typer.Option("--ssl-certfile", metavar="FILE", help="Speak TLS with this.")
    ] = None,
    ssl_keyfile: Annotated[
        Path | None, typer.Option("--ssl-keyfile", metavar="FILE", help="Its key.")
    ] = None,
    allowed_hosts: Annotated[
        str,
        typer.Option("--allowed-hosts", metavar="A,B", help="Values of Host to answer to; any."),
    ] = "",
    allowed_origins: Annotated[
        str,
        typer.Option(
            "--allowed-origins", metavar="A,B", help="Web pages that may ask (CORS); none."
        ),
    ] = "",
    escape_special_tokens: Annotated[
        bool,
        typer.Option(
            "--escape-special-tokens",
            help="<|im_start|> and the like in a request stay text; the release makes tokens.",
        ),
    ] = False,
    max_connections: Annotated[
        int,
        typer.Option("--max-connections", metavar="N", help="At a time; idle ones make way."),
    ] = 4096,
    admin_port: Annotated[
        int | None,
        typer.Option(
            "--admin-port",
            metavar="N",
            help="POST /reload there, on the loopback interface: change the model without a gap.",
        ),
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(
            "--max-restarts",
            metavar="N",
            help="Failed starts in a row after which the server ends; 0 tries for ever.",
        ),
    ] = 10,
    access_log: Annotated[
        bool, typer.Option("--access-log/--no-access-log", help="One line per request.")
    ] = True,
    log_probes: Annotated[
        bool, typer.Option("--log-probes", help="Health checks and metrics in the log as well.")
    ] = False,
    log_format: Annotated[
        str,
        typer.Option(
            "--log-format", metavar="NAME", help="json, lines on stdout; or text, on stderr."
        ),
    ] = "json",
    warm_cache: Annotated[
        bool,
        typer.Option(
            "--warm-cache",
            help="Load, compile, warm, say how long it took, and end: the next start is faster.",
        ),
    ] = False,
    vllm_command: Annotated[
        bool,
        typer.Option(
            "--vllm-command",
            help="Print the `vllm serve` command that answers /v1/systemone as well, and exit.",
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show vLLM's own log.")] = False,
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Serve a checkpoint: POST /v1/systemone, GET /v1/models, /health, /metrics.

    `/readyz` answers 200 once every engine is loaded and warm. SIGTERM or Ctrl-C lets accepted
    requests finish and refuses new ones; a second one stops at once. An engine that dies is
    replaced, and what it had not answered is asked again.
    """
    from clefq.console import Console
    from clefq.errors import InputError
    from clefq.names.models import find_model
    from clefq.names.run_folder import find_run
    from clefq.serving.fleet.spec import Timeouts
    from clefq.serving.settings import ServeSettings

    console = Console(json_output=json_output, quiet=quiet)
    if not vllm_command:
        hand_over(console)
    found = find_model(model, find_run(run))
    settings = ServeSettings(
        max_length=max_length,
        max_images=max_images,
        step_tokens=batch_tokens,
        max_cudagraph_tokens=max_cudagraph_tokens,
        gdn_backend=gdn_backend,  # type: ignore[arg-type]  # checked there
        tensor_parallel=tp,
        gpu_memory=gpu_memory,
        eager=eager,
        four_bit=four_bit,  # type: ignore[arg-type]  # checked there
        cpu_threads=threads,
    )
    if vllm_command:
        _refuse_what_vllm_has_itself(context)
        _print_vllm_command(found.folder, settings, console)
        return
    timeouts = Timeouts(request=request_timeout, stall=engine_timeout)
    from clefq.serving.fleet.assembly import Engines
    from clefq.serving.fleet.server import Address, Certificate, leave
    from clefq.serving.http.logs import log_to
    from clefq.serving.http.settings import ConnectionLimits, ServerSettings
    from clefq.serving.http.tokens import tokens_from

    engines = Engines(
        folder=found.folder,
        own_name=found.variant,
        further_names=tuple(served_model_name or ()),
        settings=settings,
        copies=dp,
        timeouts=timeouts,
        max_restarts=max_restarts,
        verbose=verbose,
    )
    further = tokens_from(token or (), os.environ.get(TOKEN_VARIABLE), None)
    if (ssl_certfile is None) != (ssl_keyfile is None):
        raise InputError("--ssl-certfile and --ssl-keyfile belong together.", fix="give both.")
    server = ServerSettings(
        dialect=dialect,  # type: ignore[arg-type]  # checked there
        truncate_state=truncate_state,
        limits=_limits(max_images, limit or ()),
        bearer_tokens=tokens_from(token or (), os.environ.get(TOKEN_VARIABLE), token_file),
        allowed_hosts=_words(allowed_hosts),
        allowed_origins=_words(allowed_origins),
        connections=ConnectionLimits(max_connections=max_connections),
        max_pending=max_queue,
        answer_seconds=timeouts.request,
        escape_special_tokens=escape_special_tokens,
        access_log=access_log,
        log_probes=log_probes,
    )
    log_to(log_format)  # type: ignore[arg-type]  # checked there
    wanted = _Wanted(
        engines,
        server,
        Address(host, port),
        certificate=(
            Certificate(ssl_certfile, ssl_keyfile) if ssl_certfile and ssl_keyfile else None
        ),
        token_file=token_file,
        further_tokens=further,
        log_format=log_format,
        admin_port=admin_port,
        warm_cache=warm_cache,
    )
    leave(_serve(wanted, console))


def _limits(max_images: int, given: Sequence[str]) -> Limits:
    """The limits of a request, which the engines must be able to keep."""
    from clefq.errors import InputError
    from clefq.serving.http.settings import limits_from

    limits = limits_from([f"max_images={max_images}", *given])
    if limits.max_images > max_images:
        raise InputError(
            f"--limit max_images={limits.max_images} is more than --max-images {max_images}, "
            "which the engines are started for.",
            fix="raise --max-images.",
        )
    return limits


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


@dataclass(frozen=True, slots=True)
class _Wanted:
    """All that a server is told."""

    engines: Engines
    server: ServerSettings
    address: Address
    certificate: Certificate | None = None
    token_file: Path | None = None
    further_tokens: tuple[Token, ...] = ()
    log_format: str = "json"
    admin_port: int | None = None
    warm_cache: bool = False


def hand_over(console: Console) -> None:
    """Goes on in the serving environment's interpreter where this one lacks vLLM.

    The process is replaced, so that signals, exit code and terminal stay those of this one.

    Raises:
        MissingDependencyError: No environment here has vLLM.
    """
    from clefq.engines.select import python_for, runs_here
    from clefq.errors import MissingDependencyError

    if runs_here("vllm"):
        return
    if os.environ.get(_HANDED_OVER):
        raise MissingDependencyError(f"vLLM for {sys.executable}", "make setup-serve")
    python = python_for("vllm")
    console.note(f"serving with {python}")
    sys.stdout.flush()
    sys.stderr.flush()
    command = [str(python), "-m", "clefq.cli.main", *sys.argv[1:]]
    os.execve(python, command, {**os.environ, _HANDED_OVER: "1"})


def _refuse_what_vllm_has_itself(context: typer.Context) -> None:
    """Options of this server that would be missing, unnoticed, from the printed command.

    Raises:
        InputError: One was given.
    """
    from clefq.errors import InputError

    sources = ((name, context.get_parameter_source(name)) for name in _OWN)
    given = [
        "--" + name.replace("_", "-")
        for name, source in sources
        if source is not None and source.name == "COMMANDLINE"
    ]
    if given:
        raise InputError(
            f"--vllm-command cannot carry {', '.join(given)}.",
            fix="leave them out and give vllm serve its own (--host, --port, --api-key).",
        )


def _print_vllm_command(folder: Path, settings: ServeSettings, console: Console) -> None:
    from clefq.serving.fleet.devices import visible_gpus
    from clefq.serving.fleet.vllm_command import shell_text, vllm_command

    cpu = not visible_gpus(os.environ)
    variables, arguments = vllm_command(folder, settings, cpu=cpu)
    if console.json_output:
        console.result({"environment": variables, "arguments": arguments}, "")
    else:
        # as it stands: a line that is broken to fit the terminal could not be pasted
        typer.echo(shell_text(variables, arguments, cpu=cpu))


def _serve(wanted: _Wanted, console: Console) -> int:
    import asyncio

    from clefq.serving.fleet.assembly import plan_fleet
    from clefq.serving.fleet.front import Door, run_server
    from clefq.serving.fleet.server import Address, listen
    from clefq.serving.http.logs import event

    plan = plan_fleet(wanted.engines, os.environ)
    admin = wanted.admin_port
    door = Door(
        listen(wanted.address),
        wanted.certificate,
        wanted.token_file,
        wanted.further_tokens,
        admin=None if admin is None else listen(Address("127.0.0.1", admin)),
        replan=lambda: plan_fleet(wanted.engines, os.environ),
    )
    log = (lambda line: None) if console.quiet else event
    count = wanted.engines.copies
    log(
        f"loading {wanted.engines.folder} into {count} engine{'s' * (count > 1)}"
        f" ({'; '.join(plan.places)})"
    )

    def ready(fleet: Fleet, url: str) -> None:
        if wanted.warm_cache:
            _say_warm(fleet, console)
            # as anybody would end it
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            _announce(wanted, fleet, url, console)

    return asyncio.run(run_server(plan, wanted.server, door, ready, log))


def _say_warm(fleet: Fleet, console: Console) -> None:
    """How long the start took, and where what it compiled is kept."""
    loaded = max((ready.load_seconds for _, _, ready in fleet.engines if ready), default=0.0)
    warmed = max((ready.warm_seconds for _, _, ready in fleet.engines if ready), default=0.0)
    root = os.environ.get("VLLM_CACHE_ROOT") or "~/.cache/vllm"
    triton = os.environ.get("TRITON_CACHE_DIR") or "~/.triton"
    text = (
        f"warm: loaded and compiled in {loaded:.0f} s, {warmed:.0f} s of prompts after it; "
        f"compiled code is kept in {root} and {triton}. The next start here finds it."
    )
    console.result({"load_seconds": loaded, "warm_seconds": warmed}, text)


def _announce(wanted: _Wanted, fleet: Fleet, url: str, console: Console) -> None:
    import json

    from clefq.serving.http.logs import timed

    if wanted.log_format == "json" or console.json_output:
        # one line among those of the log
        sys.stdout.write(json.dumps(timed(ready_json(wanted, fleet, url)).values) + "\n")
        sys.stdout.flush()
    if not (console.quiet or console.json_output):
        console.note(ready_text(wanted, fleet, url))


def ready_json(wanted: _Wanted, fleet: Fleet, url: str) -> dict[str, object]:
    """What is served, for machines."""
    from dataclasses import asdict

    return {
        "event": "ready",
        "url": url,
        "pid": os.getpid(),
        **asdict(fleet.info),
        "dp": wanted.engines.copies,
        "tp": wanted.engines.settings.tensor_parallel,
        "engines": [
            {"number": number, "pid": pid, **({} if ready is None else asdict(ready))}
            for number, pid, ready in fleet.engines
        ],
    }


def ready_text(wanted: _Wanted, fleet: Fleet, url: str) -> RenderableType:
    """What is served, for people: at most 80 columns."""
    from clefq.console import name_table

    return name_table(_lines(wanted, fleet, url))


def _lines(wanted: _Wanted, fleet: Fleet, url: str) -> list[tuple[str, str]]:
    info, settings = fleet.info, wanted.engines.settings
    copies, parallel = wanted.engines.copies, settings.tensor_parallel
    images = f"{info.max_images or 'no'} image" + "s" * (info.max_images != 1)
    lines = [
        ("ready", f"{url}  (POST /v1/systemone; {url}/docs)"),
        ("model", f"{info.names[0]}, scheme {info.scheme}; also {', '.join(info.names[1:])}"),
        (
            "runs as",
            f"{info.arithmetic}, {info.kernels} kernels, {info.device}, vLLM {info.engine_version}",
        ),
        ("engines", f"{copies}" + (f" × {parallel} GPUs" if parallel > 1 else "")),
        (
            "takes",
            f"{info.max_length:,} tokens, {images}, {wanted.server.max_pending} requests at a time",
        ),
    ]
    if info.arithmetic == "w8a16":
        lines.append(("warning", "no FP8 kernels here: activations stay BF16, not the scheme"))
    if not wanted.server.bearer_tokens and not _is_loopback(wanted.address.host):
        lines.append(("warning", "open to the network and no --token asked for"))
    return lines


def _is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
