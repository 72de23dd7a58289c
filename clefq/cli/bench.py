"""`clefq bench`: throughput and latency, of checkpoints here or of a server anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefq.cli.options import Json, Quiet, Run

if TYPE_CHECKING:
    from clefq.bench.load import Load
    from clefq.bench.source import RecordSource
    from clefq.engines.base import EngineName

_FOREVER = 86_400.0  # seconds
# What one process can ask of one address; beyond, memory goes before the first request is sent.
_MOST_CLIENTS = 20_000
_MOST_RATE = 100_000.0

group = typer.Typer(
    no_args_is_help=True, help="Measure throughput and latency, here or of a server."
)

Records = Annotated[
    str | None,
    typer.Option("--records", metavar="SET", help="Set folder, or a set of the run folder."),
]
Lengths = Annotated[
    str,
    typer.Option(
        "--lengths",
        metavar="N,…",
        help="Without --records: synthetic ones of N tokens, or options-77, 16k, image-640.",
    ),
]
Count = Annotated[
    int | None,
    typer.Option(
        "--count", min=1, metavar="N", help="Records: of a set, the first N; else N of each length."
    ),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Also write the JSON.")]


@group.command("server")
def server(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="http://HOST:PORT of any SystemOne server.")
    ],
    records: Records = None,
    lengths: Lengths = "500",
    count: Count = None,
    clients: Annotated[
        str | None,
        typer.Option(
            "--clients", metavar="N,…", help="Closed loop: N requests in flight; a row each."
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate", metavar="R,…", help="Open loop: R random arrivals a second; a row each."
        ),
    ] = None,
    duration: Annotated[
        float, typer.Option("--duration", metavar="S", help="Seconds measured, each row.")
    ] = 30.0,
    warmup: Annotated[
        float, typer.Option("--warmup", metavar="S", help="Seconds before, not measured.")
    ] = 5.0,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", help="A request that takes longer failed.")
    ] = 60.0,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Default: the server's first model."),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            "--check",
            metavar="FILE",
            help="Predictions on the same set: every answer must be its own record's.",
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", metavar="P", help="With --check: allowed difference."),
    ] = 0.02,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="MODEL",
            help="Whose tokenizer counts synthetic records. Default: the miniature's.",
        ),
    ] = None,
    out: Out = None,
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Load a SystemOne server and say how fast it answers, and whether rightly.

    `--clients` keeps N requests in flight. `--rate` sends at random moments
    whatever the server does, and counts latency from when a request was due.
    Without either: 1 and 8 clients. The bearer token is read from CLEFQ_API_KEY.
    Exits with 1 where an answer was wrong.
    """
    from clefq.bench.load import LoadSpec
    from clefq.bench.server import ServerJob, bench_server
    from clefq.cli.bench_tables import server_text
    from clefq.console import Console
    from clefq.errors import ExitCode, InputError
    from clefq.store.atomic import check_writable, write_json

    if not (0 < duration < _FOREVER and 0 <= warmup < _FOREVER and 0 < timeout < _FOREVER):
        raise InputError(
            "--duration and --timeout must be positive, all times below a day.",
            fix="--duration 30 --warmup 5 --timeout 60",
        )
    if not 0 <= tolerance < 1:
        raise InputError("--tolerance must be between 0 and 1.", fix="--tolerance 0.02")
    if check is not None and records is None:
        raise InputError("--check needs --records: the set that was predicted.")
    job = ServerJob(
        url=url,
        model=model,
        loads=_loads(clients, rate),
        spec=LoadSpec(duration, warmup, timeout),
        source=_source(_Records(records, lengths, count, tokenizer), run),
        check=check,
        tolerance=tolerance,
    )
    if out is not None:
        check_writable(out)
    console = Console(json_output=json_output, quiet=quiet)
    report = bench_server(job, console)
    if out is not None:
        write_json(out, report.to_json())
    console.result(report.to_json(), server_text(report))
    if any(row.wrong for row in report.rows):
        raise typer.Exit(int(ExitCode.FAIL))


@dataclass(frozen=True, slots=True)
class _Records:
    """The options that say which records."""

    records: str | None
    lengths: str
    count: int | None
    tokenizer: str | None


def _source(chosen: _Records, run: Path | None) -> RecordSource:
    from clefq.bench.source import RecordSource, parse_kinds
    from clefq.names.models import find_model
    from clefq.names.run_folder import find_run, find_set
    from clefq.nano import WEIGHTS

    folder, path, here = WEIGHTS, None, find_run(run)
    if chosen.tokenizer is not None:
        folder = find_model(chosen.tokenizer, here).folder
    if chosen.records is not None:
        path = find_set(chosen.records, here)
    return RecordSource(path, parse_kinds(chosen.lengths), chosen.count, folder)


def _loads(clients: str | None, rate: str | None) -> tuple[Load, ...]:
    from clefq.bench.load import Load
    from clefq.errors import InputError

    if clients is None and rate is None:
        clients = "1,8"
    loads = []
    try:
        loads += [Load(clients=int(part)) for part in (clients or "").split(",") if part.strip()]
        loads += [Load(rate=float(part)) for part in (rate or "").split(",") if part.strip()]
    except ValueError as error:
        raise InputError(
            "--clients and --rate take numbers, several with commas.", fix="--clients 1,8,64"
        ) from error
    sizes = [load.clients if load.rate is None else load.rate for load in loads]
    if not loads or not all(size is not None and 0 < size < float("inf") for size in sizes):
        raise InputError("--clients and --rate must be positive.", fix="--clients 1,8,64")
    for load in loads:
        if (load.clients or 0) > _MOST_CLIENTS or (load.rate or 0) > _MOST_RATE:
            raise InputError(
                f"{load.name} is more than one load generator can send.",
                fix=f"at most --clients {_MOST_CLIENTS} or --rate {_MOST_RATE:.0f}.",
            )
    return tuple(loads)


@group.command("offline")
def offline(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…", help="Checkpoint folders, variants or hub ids; the first is 1.00×."
        ),
    ],
    engine: Annotated[
        str,
        typer.Option("--engine", metavar="E,…", help="transformers, vllm, or both with a comma."),
    ] = "transformers",
    records: Records = None,
    lengths: Lengths = "500,1000",
    count: Count = None,
    runs: Annotated[
        int, typer.Option("--runs", min=1, metavar="N", help="Timed passes; the median counts.")
    ] = 3,
    alone: Annotated[
        int,
        typer.Option("--alone", min=0, metavar="N", help="Records run one by one, for latency."),
    ] = 40,
    again: Annotated[
        bool, typer.Option("--again", help="Measure the first row again at the end, for drift.")
    ] = False,
    max_length: Annotated[
        int, typer.Option("--max-length", metavar="N", help="Most tokens of a prompt.")
    ] = 16_384,
    batch_tokens: Annotated[
        int | None,
        typer.Option("--batch-tokens", metavar="N", help="Most tokens of one batch or step."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="CPU threads.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="MODEL",
            help="Whose tokenizer counts synthetic records. Default: the first MODEL's.",
        ),
    ] = None,
    out: Out = None,
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare checkpoints and engines on this machine, in one table.

    Each row is measured in a process of its own: records and tokens a second
    (median pass, encoding and answers included), latency of one record at a
    time, start-up, memory, bytes on disk, and what arithmetic was executed.
    """
    from clefq.bench.offline import OfflineJob, bench_offline
    from clefq.cli.bench_tables import offline_text
    from clefq.console import Console
    from clefq.engines.base import EngineSpec
    from clefq.names.models import find_model
    from clefq.names.run_folder import find_run
    from clefq.store.atomic import check_writable, write_json

    here = find_run(run)
    found = tuple(find_model(name, here) for name in models)
    chosen = _Records(records, lengths, count, tokenizer or str(found[0].folder))
    job = OfflineJob(
        models=found,
        engines=_engines(engine),
        spec=EngineSpec(max_length, False, batch_tokens, device, "auto", threads),
        source=_source(chosen, run),
        runs=runs,
        alone=alone,
        again=again,
    )
    if out is not None:
        check_writable(out)
    console = Console(json_output=json_output, quiet=quiet)
    report = bench_offline(job, console)
    if out is not None:
        write_json(out, report.to_json())
    console.result(report.to_json(), offline_text(report))


def _engines(text: str) -> tuple[EngineName, ...]:
    from clefq.engines.select import parse_engine
    from clefq.errors import InputError

    engines = tuple(dict.fromkeys(parse_engine(part.strip()) for part in text.split(",")))
    if "http" in engines:
        raise InputError("a server is not measured offline.", fix="use `clefq bench server URL`.")
    return engines
