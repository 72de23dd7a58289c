"""Prometheus metrics: requests, stages, tokens, and what the engines say of themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

import clefq
from clefq.serving.http.admission import Admission
from clefq.serving.http.backend import Backend

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from clefq.serving.http.observation import Observation

STAGES = ("read", "encode", "images", "queue", "engine", "answer")
_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60,
)  # fmt: skip
_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
# Gauges of a backend that only ever grow.
_COUNTERS = (
    "engine_restarts", "prompts_retried", "prompts_unanswered", "prompts_aborted",
    "prompts_answered", "batches",
)  # fmt: skip
_KEY = re.compile(r"(?P<name>[a-z][a-z0-9_]*)(?:\{(?P<label>[^{}]*)\})?")


class Metrics:
    """What `/metrics` exports.

    Args:
        backend: Gives the engines that answer now, for their gauges and what they run.
        admission: For what is in hand.
        registry: Where to register; a fresh one when None. Give the process's own
            (`prometheus_client.REGISTRY`) where another server's `/metrics` should show these.
    """

    def __init__(
        self,
        backend: Callable[[], Backend],
        admission: Admission,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        if registry is None:  # the process's own registry has it already
            ProcessCollector(registry=self.registry)
        register = self.registry
        self._requests = Counter(
            "clefq_requests", "Requests by route and HTTP status.", ["route", "status"],
            registry=register,
        )  # fmt: skip
        self._errors = Counter(
            "clefq_errors", "Answers that are errors, by type.", ["type"], registry=register
        )
        self._clients = Counter(
            "clefq_token_requests", "Requests by the token's name and HTTP status.",
            ["token", "status"], registry=register,
        )  # fmt: skip
        self._refused = Counter(
            "clefq_connections_refused", "Connections ended before a request, by error type.",
            ["type"], registry=register,
        )  # fmt: skip
        self._seconds = Histogram(
            "clefq_request_seconds", "Time from the request's head to its answer, answered ones.",
            buckets=_SECONDS, registry=register,
        )  # fmt: skip
        self._stages = Histogram(
            "clefq_stage_seconds", "Time of an answered request by stage.", ["stage"],
            buckets=_SECONDS, registry=register,
        )  # fmt: skip
        self._tokens = Histogram(
            "clefq_prompt_tokens", "Prompt tokens of an answered request.",
            buckets=_TOKENS, registry=register,
        )  # fmt: skip
        self._questions = Counter("clefq_questions", "Questions answered.", registry=register)
        self._images = Counter("clefq_images", "Images of answered requests.", registry=register)
        self._truncated = Counter(
            "clefq_truncated_tokens", "Tokens cut from over-long states.", registry=register
        )
        register.register(_Moment(backend, admission))

    def record(self, seen: Observation) -> None:
        """Counts one finished request."""
        status = str(seen.status)
        self._requests.labels(seen.route, status).inc()
        if seen.error is not None:
            self._errors.labels(seen.error).inc()
        if seen.client_name is not None:
            self._clients.labels(seen.client_name, status).inc()
        if seen.input_tokens is None:
            return
        self._seconds.observe(seen.seconds)
        for stage, seconds in seen.stages.items():
            self._stages.labels(stage).observe(seconds)
        self._tokens.observe(seen.input_tokens)
        self._questions.inc(seen.questions)
        self._images.inc(seen.images)
        self._truncated.inc(seen.truncated_tokens)

    def refused(self, kind: str) -> None:
        """Counts a connection that was ended before there was a request."""
        self._refused.labels(kind).inc()


class _Moment(Collector):
    """Numbers that are read when they are asked for."""

    def __init__(self, backend: Callable[[], Backend], admission: Admission) -> None:
        self._current = backend
        self._admission = admission

    @property
    def _backend(self) -> Backend:
        return self._current()

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "clefq_pending_requests", "Requests in hand: queued or run.",
            value=self._admission.pending,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "clefq_reading_requests", "Requests whose body is arriving.",
            value=self._admission.reading,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "clefq_pending_bytes", "Memory of their bodies and decoded images.",
            value=self._admission.pending_bytes,
        )  # fmt: skip
        state = GaugeMetricFamily("clefq_state", "1 for the server's state.", labels=["state"])
        for name in ("starting", "ready", "draining"):
            state.add_metric([name], float(self._backend.state == name))
        yield state
        yield from _engine_metrics(self._backend.gauges())
        if self._backend.state != "starting":
            yield self._info()

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not ask a backend that is not there yet."""
        return iter(())

    def _info(self) -> Metric:
        info = self._backend.info
        names = ("version", "model", "engine", "engine_version", "scheme", "arithmetic", "kernels")
        family = GaugeMetricFamily("clefq_info", "1; what this server runs.", labels=names)
        values = [clefq.__version__, info.names[0]]
        values += [getattr(info, name) for name in names[2:]]
        family.add_metric(values, 1.0)
        return family


def _engine_metrics(gauges: Mapping[str, float]) -> Iterator[Metric]:
    families: dict[str, Metric] = {}
    for key, value in gauges.items():
        found = _KEY.fullmatch(key)
        if found is None:
            continue
        name, label = found["name"], found["label"]
        labels = ["engine"] if label is not None else []
        if name not in families:
            make: Callable[..., Metric] = (
                CounterMetricFamily if name in _COUNTERS else GaugeMetricFamily
            )
            families[name] = make(f"clefq_{name}", _HELP.get(name, name), labels=labels)
        family = families[name]
        assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
        family.add_metric([label] if label is not None else [], value)
    yield from families.values()


_HELP = {
    "engines": "Engines that this server runs.",
    "engines_alive": "Engines that answer.",
    "engine_restarts": "Engines that died and were started again.",
    "prompts_retried": "Prompts asked again because an engine died.",
    "prompts_unanswered": "Prompts answered 503: deadline, or two engines lost.",
    "prompts_aborted": "Prompts whose client went away.",
    "prompts_answered": "Prompts that an engine has answered; by `batches`, the size of a step.",
    "batches": "Groups of answers that an engine gave together.",
    "engine_memory_bytes": "Resident memory of an engine's processes, without that of its GPU.",
    "in_flight": "Requests that an engine has.",
    "waiting": "Requests that wait for an engine.",
}
