"""What a load run says: rates, percentiles, errors by kind, wrong answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from clefq.bench.load import REFUSED, Run, Sample
from clefq.bench.timing import Percentiles, summary

OK = "200"
# From here on the generator itself may be what is measured.
BUSY = 0.7
# Share of the latency that may be the generator's own.
LATE = 0.2


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One load, measured.

    A request belongs to the measured time where it was due in it, whenever it ended. Rates count
    what was answered within the measured time.

    Attributes:
        load: Name of the load.
        clients: Closed loop, else None.
        rate: Requests per second that were due (open loop), else None.
        seconds: Measured time.
        requests: Due in it.
        answered: Of these, answered with 200.
        requests_per_second: Answered within the measured time; higher is better.
        tokens_per_second: Input tokens of those, as the server counts them.
        latency: Seconds from due to answered, of `answered`; None where nothing was.
        refused: Answered with 429.
        refused_with_retry_after: Of these, with a `Retry-After` header.
        errors: Everything else that is not 200: HTTP status or `timeout`, `closed` (before a
            whole response), `unreachable`, `malformed` (not HTTP) → how many.
        faults: Of all answers with status 200, warm-up included, those that are wrong: see
            `Verdict`.
        checked: Answers that were compared with expected probabilities, warm-up included.
        lost: Requests without any response, warm-up included.
        worst: Largest difference from an expected probability.
        server_timing: Part → median seconds, as the server says; empty where it says nothing.
        generator_busy: CPU seconds per second of the load generator; near 1 it is the limit.
        generator_lag_p99: Seconds by which the generator was late for a request (open loop), else
            None. Timers alone make it about a millisecond; it is part of the latency.
    """

    load: str
    clients: int | None
    rate: float | None
    seconds: float
    requests: int
    answered: int
    requests_per_second: float
    tokens_per_second: float
    latency: Percentiles | None
    refused: int
    refused_with_retry_after: int
    errors: Mapping[str, int]
    faults: Mapping[str, int]
    checked: int
    lost: int
    worst: float | None
    server_timing: Mapping[str, float]
    generator_busy: float
    generator_lag_p99: float | None

    @property
    def failed(self) -> int:
        """Requests that were neither answered nor refused."""
        return sum(self.errors.values())

    @property
    def wrong(self) -> int:
        """Answers that are not those of their request."""
        return sum(self.faults.values())


_LOST = ("timeout", "closed", "unreachable", "malformed")


def row_of(run: Run) -> LoadRow:
    """Sums a run up."""
    seconds = run.end - run.start
    due = [sample for sample in run.samples if run.start <= sample.due < run.end]
    done = [s for s in run.samples if s.outcome == OK and run.start <= s.ended < run.end]
    answered = [sample for sample in due if sample.outcome == OK]
    refused = [sample for sample in due if sample.outcome == str(REFUSED)]
    rest = Counter(s.outcome for s in due if s.outcome not in (OK, str(REFUSED)))
    worst = [sample.worst for sample in run.samples if sample.worst is not None]
    open_loop = run.load.rate is not None
    return LoadRow(
        load=run.load.name,
        clients=run.load.clients,
        rate=run.load.rate,
        seconds=seconds,
        requests=len(due),
        answered=len(answered),
        requests_per_second=len(done) / seconds,
        tokens_per_second=sum(sample.tokens for sample in done) / seconds,
        latency=summary([s.ended - s.due for s in answered]) if answered else None,
        refused=len(refused),
        refused_with_retry_after=sum(sample.retry_after for sample in refused),
        errors=dict(sorted(rest.items())),
        faults=dict(sorted(Counter(s.fault for s in run.samples if s.fault).items())),
        checked=len(worst),
        lost=sum(sample.outcome in _LOST for sample in run.samples),
        worst=max(worst, default=None),
        server_timing=_timings(answered),
        generator_busy=run.cpu / run.wall,
        generator_lag_p99=summary([s.late for s in due]).p99 if open_loop and due else None,
    )


def _timings(samples: Sequence[Sample]) -> dict[str, float]:
    parts: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in parse_server_timing(sample.timing).items():
            parts.setdefault(name, []).append(value)
    return {name: median(values) for name, values in parts.items()}


def parse_server_timing(header: str) -> dict[str, float]:
    """Reads `encode;dur=0.4, engine;desc="x";dur=31` into seconds; what has no duration is left."""
    found: dict[str, float] = {}
    for entry in header.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "dur":
                try:
                    milliseconds = float(value.strip().strip('"'))
                except ValueError:
                    continue
                if math.isfinite(milliseconds):
                    found[name] = milliseconds / 1e3
    return found


def warnings_of(rows: Sequence[LoadRow]) -> list[str]:
    """What the reader must know before believing the rows."""
    found = []
    for row in rows:
        if row.generator_busy > BUSY:
            found.append(
                f"{row.load}: the load generator used {row.generator_busy:.0%} of a core: it may "
                "be the limit, not the server"
            )
        lag = row.generator_lag_p99
        if lag is not None and row.latency is not None and lag > LATE * row.latency.p99:
            found.append(
                f"{row.load}: the load generator itself was up to {1e3 * lag:,.0f} ms late (p99): "
                "the latency is partly its own"
            )
        if row.latency is not None and row.latency.count < 100:
            found.append(f"{row.load}: {row.latency.count} answers, so p99 is the slowest of them")
    return found
