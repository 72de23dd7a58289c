"""What a server says about its requests: ids, timing, access log, metrics."""

from __future__ import annotations

import io
import json
import logging

import pytest

from clefq.serving.http.observation import ACCESS_LOGGER, access_log_to
from clefq.serving.http.settings import ServerSettings
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


def test_the_access_log_is_json_without_bodies(prompts: PromptMaker) -> None:
    stream = io.StringIO()
    logger = logging.getLogger(ACCESS_LOGGER)
    before = (logger.handlers, logger.propagate, logger.level)
    access_log_to(stream)
    try:
        asker = Asker(prompts, ServerSettings(bearer_tokens=("tok-secret",)))
        asker(headers={"authorization": "Bearer tok-secret", "x-request-id": "one"})
        asker(b'{"state": "private"', path=f"{ASK}?q=private",
              headers={"authorization": "Bearer tok-secret"})  # fmt: skip
        asker.get("/health")
        asker.get("/%E2%80%A8%0Anope")
        quiet = Asker(prompts, ServerSettings(access_log=False))
        quiet()
    finally:
        logger.handlers, logger.propagate = before[0], before[1]
        logger.setLevel(before[2])
    text = stream.getvalue()
    for secret in ("charged twice", "private", "tok-secret"):
        assert secret not in text
    first, second, third, fourth = (json.loads(line) for line in text.splitlines())
    assert (first["id"], first["status"], first["path"], first["questions"]) == ("one", 200, ASK, 3)
    assert set(first["stages"]) == {"read", "encode", "queue", "engine", "answer"}
    assert first["input_tokens"] > 0
    assert (second["status"], second["error"]) == (400, "invalid_json")
    assert (third["status"], fourth["status"]) == (200, 404)


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
        'clefq_state{state="ready"} 1.0',
        "clefq_engines_alive 1.0",
        "clefq_engine_restarts_total 2.0",
        'clefq_in_flight{engine="0"} 3.0',
    ):
        assert f"{line}\n" in text
    assert 'clefq_info{arithmetic="w4a4"' in text
    assert "process_resident_memory_bytes" in text
