"""Other people's clients and hostile bodies on the real engine."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

pytestmark = pytest.mark.serve
pytest.importorskip("vllm")

from tests.serving.fleet.test_live import Live  # noqa: E402
from tests.serving.http import contract, fuzz  # noqa: E402
from tests.serving.http.test_docs import ANSWER, REQUEST  # noqa: E402

KEY = "the-servers-key"
# Clef reads ids, order and company of questions: its prompt holds them, and its head decides all
# fields jointly. How far an answer moves is up to the model.
READ_BY_THE_MODEL = {
    "MUST semantics.question-id", "SHOULD semantics.batching", "SHOULD semantics.question-order",
}  # fmt: skip


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    options = ("--max-length", "16384", "--max-images", "2", "--threads", "1")
    server = Live("--dialect", "typesafe", "--token", KEY, *options)
    yield server
    server.process.terminate()
    server.end()


def test_the_documented_answer(live: Live) -> None:
    headers = {"authorization": f"Bearer {KEY}", "x-clefq-dialect": "release"}
    reply = httpx.post(f"{live.url}/v1/systemone", json=REQUEST, headers=headers, timeout=120)
    for name, answer in reply.json()["answers"].items():
        shown = ANSWER["answers"][name]
        assert answer.get("choice") == shown.get("choice")
        for key in ("noul", "score", "confidence"):
            assert answer.get(key, 0) == pytest.approx(shown.get(key, 0), abs=0.02)


def test_the_contract_suite(live: Live) -> None:
    suite = contract.jevcompat(live.url, KEY)
    assert set(suite.failed) <= READ_BY_THE_MODEL, suite.failed
    assert set(suite.skipped) == {"MUST auth.ignored-when-off"}


def test_the_sdks(live: Live) -> None:
    for suite in (
        contract.typesafe_sdk(live.url, KEY),
        contract.systemone_client(live.url, KEY),
    ):
        assert suite.failed == {}


def test_hostile_bodies(live: Live) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=live.url, timeout=120, headers=headers) as client:

        def send(request: fuzz.Hostile) -> httpx.Response:
            return client.post(fuzz.ASK, content=request.body, headers=request.headers)

        statuses = fuzz.run(send, 60, seed=5)
        assert client.get("/health").status_code == 200
    assert statuses[200] > 5
    assert live.gauge("engine_restarts_total") == 0
