"""What a server says about its requests: ids, timing, access log, metrics."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from clefq.errors import InputError
from clefq.serving.http.logs import ACCESS_LOGGER, EVENT_LOGGER, Sparing, event, log_to
from clefq.serving.http.observation import trace_of
from clefq.serving.http.settings import ServerSettings
from clefq.serving.http.tokens import Token
from clefq.serving.prompts import PromptMaker
from tests.serving.http.client import ASK, Asker


def test_request_ids(asker: Asker) -> None:
    assert asker(headers={"x-request-id": "trace-1"}).headers["x-request-id"] == "trace-1"
    for bad in ("a b", "x" * 129, 'a"b', ""):
        given = asker(headers={"x-request-id": bad}).headers["x-request-id"]
        assert given != bad
        assert len(given) == 32
    response = asker(b"{", headers={"x-request-id": "trace-2"})
    assert (
        response.headers["x-request-id"] == response.headers["x-typesafe-request-id"] == "trace-2"
    )


def test_server_timing_has_the_four_stages(asker: Asker) -> None:
    asker.backend.seconds = 0.02
    timing = asker().headers["server-timing"]
    parts = dict(part.split(";dur=") for part in timing.split(", "))
    assert list(parts) == ["encode", "queue", "engine", "answer"]
    assert float(parts["engine"]) == pytest.approx(20)
    assert float(parts["queue"]) == pytest.approx(1)


@pytest.fixture
def streams() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Stdout and stderr of a log; the loggers are as before afterwards."""
    names = (ACCESS_LOGGER, EVENT_LOGGER, "uvicorn.error", "asyncio")
    loggers = [logging.getLogger(name) for name in names]
    before = [(one.handlers, one.filters, one.propagate, one.level) for one in loggers]
    yield io.StringIO(), io.StringIO()
    for one, (handlers, filters, propagate, level) in zip(loggers, before, strict=True):
        one.handlers, one.filters, one.propagate = handlers, filters, propagate
        one.setLevel(level)


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_log_is_json_without_bodies_and_probes(
    prompts: PromptMaker, streams: tuple[io.StringIO, io.StringIO]
) -> None:
    log_to("json", *streams)
    asker = Asker(prompts, ServerSettings(bearer_tokens=(Token("team", "tok-secret"),)))
    known = {"authorization": "Bearer tok-secret"}
    asker(headers={**known, "x-request-id": "one", "traceparent": TRACE})
    asker(b'{"state": "private"', path=f"{ASK}?q=private", headers=known)
    asker.get("/health")
    asker.get("/%E2%80%A8%0Anope")
    event("engine 0: gone")
    Asker(prompts, ServerSettings(access_log=False))()
    Asker(prompts, ServerSettings(log_probes=True)).get("/readyz")
    text = streams[0].getvalue()
    assert streams[1].getvalue() == ""
    for secret in ("charged twice", "private", "tok-secret"):
        assert secret not in text
    first, second, third, fourth, fifth = (json.loads(line) for line in text.splitlines())
    assert (first["id"], first["status"], first["path"], first["questions"]) == ("one", 200, ASK, 3)
    assert (first["token"], first["trace_id"]) == ("team", TRACE.split("-")[1])
    assert set(first["stages"]) == {"read", "encode", "queue", "engine", "answer"}
    assert first["input_tokens"] > 0
    assert (second["status"], second["error"]) == (400, "invalid_json")
    assert third["status"] == 404
    assert fourth["event"] == "engine 0: gone"
    assert fifth["path"] == "/readyz"
    assert all("time" in one for one in (first, second, third, fourth, fifth))


def test_the_logs_of_a_host_are_left_alone(streams: tuple[io.StringIO, io.StringIO]) -> None:
    hosts = logging.getLogger("uvicorn.error")
    before = (hosts.handlers, hosts.level)
    log_to("json", *streams, guest=True)
    assert (hosts.handlers, hosts.level) == before
    event("ours")
    assert json.loads(streams[0].getvalue())["event"] == "ours"
    log_to("json", *streams)
    assert hosts.handlers != before[0]


def test_the_log_as_text_is_for_people(
    prompts: PromptMaker, streams: tuple[io.StringIO, io.StringIO]
) -> None:
    log_to("text", *streams)
    Asker(prompts)()
    event("engine 0: gone")
    logging.getLogger(EVENT_LOGGER).error("broken", exc_info=KeyError("x"))
    assert streams[0].getvalue() == ""
    first, second, *rest = streams[1].getvalue().splitlines()
    assert f"POST {ASK} 200 id=" in first
    assert second.endswith(" engine 0: gone")
    assert rest[-1] == "KeyError: 'x'"
    with pytest.raises(InputError, match="--log-format is 'xml'"):
        log_to("xml")  # type: ignore[arg-type]


def test_repeated_lines_are_held_back_and_counted() -> None:
    now = [0.0]
    sparing = Sparing(lambda: now[0])

    def written(number: int) -> str | None:
        record = logging.LogRecord("a", logging.INFO, "", 0, "%s", (f"engine {number} died",), None)
        return record.getMessage() if sparing.filter(record) else None

    shown = [written(number) for number in range(1000)]
    assert sum(line is not None for line in shown) == 10
    assert sparing.let_through("another kind")
    now[0] = 11.0
    assert written(7) == "engine 7 died (990 more like this were left out)"


@pytest.mark.parametrize("given", [
    None, "", "00", TRACE.upper(), TRACE[:-1], "ff" + TRACE[2:], TRACE.replace("b7", "zz"),
    f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
])  # fmt: skip
def test_an_unsound_traceparent_is_ignored(given: str | None) -> None:
    assert trace_of(given) is None
    assert trace_of(TRACE) == tuple(TRACE.split("-")[1:3])


def test_metrics_count_what_happened(asker: Asker) -> None:
    asker()
    asker(b"{")
    asker.get("/nope")
    text = asker.get("/metrics").text
    for line in (
        'clefq_requests_total{route="/v1/systemone",status="200"} 1.0',
        'clefq_requests_total{route="/v1/systemone",status="400"} 1.0',
        'clefq_requests_total{route="other",status="404"} 1.0',
        'clefq_stage_seconds_count{stage="engine"} 1.0',
        "clefq_request_seconds_count 1.0",
        "clefq_questions_total 3.0",
        "clefq_pending_requests 0.0",
        "clefq_reading_requests 0.0",
        'clefq_errors_total{type="invalid_json"} 1.0',
        'clefq_token_requests_total{status="200",token="anybody"} 1.0',
        'clefq_state{state="ready"} 1.0',
        "clefq_engines_alive 1.0",
        "clefq_engine_restarts_total 2.0",
        'clefq_in_flight{engine="0"} 3.0',
    ):
        assert f"{line}\n" in text
    assert 'clefq_info{arithmetic="w4a4"' in text
    assert "process_resident_memory_bytes" in text
