"""Each API against a stand-in written from its public pages, over real sockets.

Sources: `Api.source` of each; Cloudflare's envelope as in its API reference for Workers AI; vLLM's
and SGLang's request models as their wheels 0.33.0 and 0.5.23 hold them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clefq.clef.answers import answer
from clefq.clef.records import Record, parse_record
from clefq.console import Console
from clefq.engines import http_client
from clefq.engines.base import EngineSpec, RecordResult
from clefq.engines.http_apis import (
    APIS,
    api_of_models,
    api_of_url,
    fault_of,
    request_body,
    split_url,
)
from clefq.engines.http_client import Pace, seconds_of
from clefq.engines.http_engine import HttpEngine, HttpOptions
from clefq.engines.http_prompts import counted_cuts, estimated_cuts, mark_cut
from clefq.engines.predict import PredictJob, predict_set
from clefq.errors import ClefqError, InputError
from clefq.names.models import served_model
from clefq.store.predictions import read_predictions
from clefq.store.sets import SetDraft, SourceInfo, write_set
from tests.engines.stand_in import Stand, running

pytestmark = pytest.mark.usefixtures("no_pause")

PREDICT = Path(__file__).resolve().parents[2] / "docs" / "predict.md"
QUESTIONS = {
    "sure": {"type": "noul", "instructions": "Is it?"},
    "mood": {"type": "score", "instructions": "How bad?", "criteria": ["fine", "bad", "awful"]},
    "queue": {
        "type": "choice",
        "instructions": {"ask": "which"},
        "criteria": {"tech": "computers", "billing": None, "other": "rest"},
    },
}
HELD = {
    "sure": {"true": 0.8125, "false": 0.1875},
    "mood": {"0": 0.5, "1": 0.375, "2": 0.125},
    "queue": {"billing": 0.625, "other": 0.0625, "tech": 0.3125},
}


def record(id_: str = "r", questions: Any = None, state: Any = None, **more: Any) -> Record:
    state = {"b": 1, "a": "é"} if state is None else state
    body = {"id": id_, "cohort": "c", "state": state, "questions": questions or QUESTIONS}
    return parse_record(body | more, "test")


RECORD = record()


def systemone(body: dict[str, Any], tokens: int = 100) -> dict[str, Any]:
    asked = record(questions=body["questions"], state=body["state"])
    answers = {q.id: answer(q, HELD[q.id], None) for q in asked.questions}
    return {"model": body.get("model"), "answers": answers, "usage": {"input_tokens": tokens}}


def decisions(body: dict[str, Any]) -> dict[str, Any]:
    """As vLLM's `entrypoints/openai/decisions/adapters.py` answers."""
    assert isinstance(body["input"], str)
    found = []
    for question in body["questions"]:
        held = HELD[question["name"]]
        if question["type"] == "predicate":
            assert set(question) == {"type", "name", "instructions"}
            found.append({"type": "predicate", "name": None, "probability": held["true"]})
        elif question["type"] == "choice":
            values = [choice["value"] for choice in question["choices"]]
            rows = [{"value": value, "probability": held[value]} for value in values]
            found.append({"type": "choice", "probabilities": rows, "choice": "?"})
        else:
            rows = [
                {"value": i, "label": level["label"], "probability": held[str(i)]}
                for i, level in enumerate(question["levels"])
            ]
            found.append({"type": "score", "probabilities": rows, "score": 0.625})
    return {"model": body["model"], "answers": found, "usage": {"input_tokens": 90}}


def ask(url: str, records: list[Record], options: HttpOptions | None = None, model: str = "clef"):
    engine = HttpEngine(url, model, EngineSpec(concurrency=1), options)
    try:
        return engine, {r.record_id: r for group in engine.predict(records) for r in group}
    finally:
        engine.close()


def check(result: RecordResult) -> None:
    assert result.errors == {}
    for question, held in HELD.items():
        expected = [held[option] for option in result.option_ids[question]]
        assert np.exp(result.logprobs[question]) == pytest.approx(expected)


def test_workers_ai_has_a_path_an_envelope_and_a_token_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand = Stand(lambda body: {"result": systemone(body), "success": True, "errors": []})
    monkeypatch.setenv("CLOUDFLARE_API_TOKEN", "secret")
    monkeypatch.delenv("CLEFQ_API_KEY", raising=False)
    with running(stand) as url:
        account = f"{url}/client/v4/accounts/abc"
        engine, results = ask(account, [RECORD], HttpOptions("workers-ai"))
        _, again = ask(f"{account}/ai/run/@cf/cloudflare/clef", [RECORD])
    check(results["r"])
    check(again["r"])
    body, token = stand.bodies[0], stand.headers[0]["authorization"]
    assert stand.paths == ["/client/v4/accounts/abc/ai/run/@cf/cloudflare/clef"] * 2
    assert (body["model"], token) == ("@cf/cloudflare/clef", "Bearer secret")
    assert engine.info.api == "workers-ai"
    assert stand.listed == 0  # it lists its models elsewhere


def test_a_failed_envelope_is_an_error_of_the_rows() -> None:
    stand = Stand(lambda _: {"result": None, "success": False, "errors": [{"message": "too big"}]})
    with running(stand) as url:
        _, results = ask(f"{url}/ai/run/@cf/cloudflare/clef", [RECORD])
        stand.failures = [(400, {})]
        _, other = ask(f"{url}/ai/run/@cf/cloudflare/clef", [RECORD])
    assert "too big" in results["r"].errors["sure"]
    assert "answered 400" in other["r"].errors["sure"]


def test_workers_ai_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDFLARE_ACCOUNT_ID", "abc")
    engine = HttpEngine("", "clef-flash", EngineSpec(), HttpOptions("workers-ai"))
    wanted = "https://api.cloudflare.com/client/v4/accounts/abc/ai/run/@cf/cloudflare/clef-flash"
    assert engine.address == wanted
    monkeypatch.delenv("CLOUDFLARE_ACCOUNT_ID")
    with pytest.raises(InputError, match="no --url"):
        HttpEngine("", "clef", EngineSpec(), HttpOptions("workers-ai"))


@pytest.mark.parametrize("owner", ["vllm", "sglang"])
def test_a_server_that_lists_its_models_is_known_by_its_name(owner: str) -> None:
    stand = Stand(systemone, owner=owner)
    with running(stand) as url:
        engine, results = ask(url, [RECORD])
    check(results["r"])
    assert engine.info.api == owner
    instructions = stand.bodies[0]["questions"]["queue"]["instructions"]
    # vLLM would render an object with Python's repr
    assert instructions == ('{"ask":"which"}' if owner == "vllm" else {"ask": "which"})


def test_decisions_are_asked_and_read_in_openai_s_words() -> None:
    stand = Stand(decisions)
    with running(stand) as url:
        engine, results = ask(f"{url}/v1/decisions", [RECORD])
    check(results["r"])
    body = stand.bodies[0]
    assert (stand.paths, engine.info.api) == (["/v1/decisions"], "decisions")
    assert body["input"] == '{"a":"é","b":1}'
    by_name = {question["name"]: question for question in body["questions"]}
    assert by_name["mood"]["levels"] == [{"label": "fine"}, {"label": "bad"}, {"label": "awful"}]
    assert by_name["queue"]["choices"][0] == {"value": "billing", "description": ""}


@pytest.mark.parametrize("name", APIS)
def test_every_api_is_asked_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLEFQ_API_KEY", raising=False)
    stand = Stand(decisions if APIS[name].form == "decisions" else systemone)
    with running(stand) as url:
        engine, results = ask(url, [RECORD], HttpOptions(name))
    check(results["r"])
    assert (engine.info.api, len(stand.bodies)) == (name, 1)


def test_the_table_of_the_docs_has_every_api_with_its_limits() -> None:
    table = PREDICT.read_text("utf-8").partition("| `--api` |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*)$", table, re.M)
    assert [name for name, _ in rows] == list(APIS)
    for name, row in rows:
        limits, path = APIS[name].limits, APIS[name].path
        assert path.rstrip("/") in row or "the same" in row
        said = {
            f"{limits.questions} questions": limits.questions,
            f"{limits.options} options": limits.options,
            f"{limits.levels} levels": limits.levels,
            f"{limits.cuts_at or 0:,} tokens": limits.cuts_at,
        }
        assert [words for words, value in said.items() if (words in row) != bool(value)] == []


def test_another_path_s_systemone_is_taken_by_name() -> None:
    stand = Stand(systemone)
    with running(stand) as url:
        _, results = ask(f"{url}/api/v1/decisions", [RECORD], HttpOptions("systemone"))
    check(results["r"])
    assert stand.paths == ["/api/v1/decisions"]


MANY = {"type": "choice", "instructions": "?", "criteria": {f"o{i:02d}": None for i in range(27)}}


@pytest.mark.parametrize(
    ("api", "questions", "word"),
    [
        ("vllm", {"q": MANY}, "at most 26 options; q has 27"),
        ("decisions", {"q": MANY}, "at most 26 options"),
        ("vllm", {"q": {"type": "noul", "criteria": {"true": None}}}, "cannot leave"),
        (
            "vllm",
            {"q": {"type": "choice", "criteria": {"a": {"x": 1}, "b": None}}},
            "descriptions as text",
        ),
        ("decisions", {"q": {"type": "noul", "criteria": {"true": "yes"}}}, "no descriptions"),
        ("sglang", {"q": {"type": "score", "criteria": ["a", 2]}}, "takes text, objects and lists"),
        (
            "typesafe",
            {"q": {"type": "score", "criteria": [str(i) for i in range(11)]}},
            "10 levels",
        ),
        ("workers-ai", {f"q{i}": {"type": "noul", "instructions": "?"} for i in range(65)}, "64"),
    ],
)
def test_known_limits_are_refused_before_a_request(api: str, questions: Any, word: str) -> None:
    fault = fault_of(APIS[api], record(questions=questions), Path())
    assert fault is not None and word in fault
    assert fault_of(APIS["systemone"], record(questions=questions), Path()) is None


@pytest.mark.parametrize(("api", "sent"), [("sglang", "sure"), ("systemone", None)])
def test_a_question_without_instructions_is_its_id(api: str, sent: str | None) -> None:
    bare = record(questions={"sure": {"type": "noul"}})
    body = request_body(bare, "clef", Path(), APIS[api])
    assert body["questions"]["sure"].get("instructions") == sent


def test_a_state_that_is_a_number_is_sent_as_its_text() -> None:
    for name, sent in (("sglang", "5107"), ("systemone", 5107)):
        body = request_body(record(state=5107), "clef", Path(), APIS[name])
        assert body["state"] == sent


def test_images_within_and_beyond_the_limits(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x" * 1000)
    pictured = record(images=["a.png"])
    assert fault_of(APIS["workers-ai"], pictured, tmp_path) is None
    assert "no images" in (fault_of(APIS["decisions"], pictured, tmp_path) or "")
    five = record(images=[f"{i}.png" for i in range(5)])
    assert "takes 4 images" in (fault_of(APIS["workers-ai"], five, tmp_path) or "")
    small = replace(APIS["workers-ai"].limits, image_bytes=999)
    api = replace(APIS["workers-ai"], limits=small)
    assert "images of at most" in (fault_of(api, pictured, tmp_path) or "")


def test_every_limit_has_its_source() -> None:
    assert all(api.source for api in APIS.values())
    with pytest.raises(InputError, match="unknown API"):
        HttpOptions("soap")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.cloudflare.com/client/v4/accounts/x", "workers-ai"),
        ("https://gateway.example/ai/run/@cf/cloudflare/clef", "workers-ai"),
        ("https://api.typesafe.ai", "typesafe"),
        ("https://host/v1/decisions/", "decisions"),
        ("https://nottypesafe.ai", None),
        ("http://localhost:8000/v1/systemone", None),
    ],
)
def test_addresses_that_give_their_api_away(url: str, name: str | None) -> None:
    found = api_of_url(url)
    assert (found and found.name) == name


def test_addresses_are_split_into_server_and_endpoint() -> None:
    assert split_url("http://h/x/v1/systemone/", None, "m") == ("http://h/x", "/v1/systemone")
    assert split_url("http://h", APIS["decisions"], "m") == ("http://h", "/v1/decisions")
    assert split_url("http://h", APIS["workers-ai"], "@cf/a/b")[1] == "/ai/run/@cf/a/b"
    assert api_of_models(None) is api_of_models({"data": [3]}) is APIS["systemone"]


def test_a_budget_ends_the_run_and_the_next_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = SourceInfo("t", "", "generated", None, {}, "Apache-2.0", None)
    records = [record(f"r{i}", state=f"text {i}") for i in range(6)]
    write_set(tmp_path / "set", records, {}, SetDraft("eval", "set", {}, (source,)))
    stand = Stand(systemone)
    job = PredictJob(
        served_model("clef"),
        tmp_path / "set",
        tmp_path / "p.parquet",
        "http",
        EngineSpec(concurrency=1),
    )
    console = Console(quiet=True)
    notes: list[str] = []
    console.note = notes.append  # type: ignore[method-assign]
    with running(stand) as url:
        with pytest.raises(ClefqError, match="budget of 4 requests is used up"):
            predict_set(replace(job, url=url, http=HttpOptions(budget=4)), console)
        assert len(stand.bodies) == 4
        # neither how many at once nor how fast makes it another run
        again = replace(job, url=url, spec=EngineSpec(concurrency=2), http=HttpOptions(rate=900))
        summary = predict_set(again, console)
    assert summary.resumed >= 3
    assert len(stand.bodies) <= 7
    first = next(note for note in notes if "requests to" in note)
    assert first.startswith(f"6 requests to {url}/v1/systemone (systemone)")
    assert "4 requests in all at most" in first
    meta = read_predictions(tmp_path / "p.parquet").meta
    assert (meta.api, meta.prompts) == ("systemone", "estimated")


def test_what_the_server_asks_to_wait_is_waited(no_pause: list[float]) -> None:
    stand = Stand(systemone)
    stand.failures = [(429, {"retry-after": "7"}), (529, {})]
    with running(stand) as url:
        _, results = ask(url, [RECORD])
        check(results["r"])
        assert 7.0 in no_pause
        stand.failures = [(429, {"retry-after": "4000"})]
        with pytest.raises(ClefqError, match="asks to wait 4,000 seconds"):
            ask(url, [RECORD])


def test_retry_after_may_be_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert 25 < (seconds_of(soon) or 0) <= 30
    assert seconds_of("12") == 12.0
    assert seconds_of("soon") is seconds_of(None) is None


def test_a_rate_spaces_the_requests(no_pause: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client.time, "monotonic", lambda: 100.0)
    pace = Pace(rate=4)
    for _ in range(3):
        pace.take()
    assert no_pause == [0.25, 0.5]
    pace.hold(9)
    pace.take()
    assert no_pause[-1] == 9.0


def test_counts_that_fall_short_are_found() -> None:
    ours = {f"r{i}": 1000 + 100 * i for i in range(40)}
    cut = {key: min(count - 12, 2048) for key, count in ours.items()}  # a shorter template
    found = counted_cuts(ours, cut)
    assert set(found) == {key for key, count in ours.items() if count - 12 > 2048 + 28}
    assert found["r39"] == 4900 - 12 - 2048
    assert counted_cuts(ours, {key: count + 300 for key, count in ours.items()}) == {}
    assert counted_cuts({}, {}) == {}
    everywhere = counted_cuts({"a": 3000, "b": 4000}, {"a": 2048, "b": 2048})
    assert everywhere == {"a": 952, "b": 1952}


def test_without_a_tokenizer_a_shared_count_is_the_limit() -> None:
    lengths = {f"r{i}": 400 * (i + 1) for i in range(30)}
    honest = {key: size // 4 for key, size in lengths.items()}
    assert estimated_cuts(lengths, honest) == {}
    cut = {key: min(count, 2048) for key, count in honest.items()}
    found = estimated_cuts(lengths, cut)
    assert set(found) == {key for key, count in honest.items() if count > 2048}
    assert found["r29"] == pytest.approx(3000 - 2048, abs=2)
    constant = estimated_cuts(lengths, dict.fromkeys(lengths, 11))
    assert set(constant) == set(lengths)
    one = {"a": 40_000, "b": 70_000}
    assert estimated_cuts(one, {"a": 10_000, "b": 16_384}) == {}
    assert set(estimated_cuts(one, {"a": 10_000, "b": 16_384}, 16_384)) == {"b"}


def test_what_a_server_says_that_it_cut_stays() -> None:
    asked = record("a", state="x" * 9000)
    result = RecordResult("a", {}, {}, {"sure": "x"}, input_tokens=500, truncated_tokens=3)
    marked, how = mark_cut([asked], [result], {"a": 2000})
    assert (marked[0].truncated_tokens, how) == (3, "counted")
    silent = replace(result, truncated_tokens=0)
    assert mark_cut([asked], [silent], {"a": 2000})[0][0].truncated_tokens == 1500
