"""The http engine against a SystemOne server of the tests' own, over real sockets."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clefq.clef.answers import answer
from clefq.clef.records import Record, parse_record, record_to_json
from clefq.console import Console
from clefq.engines.base import EngineSpec, RecordResult
from clefq.engines.http_answers import AnswerError, read_answers, settle
from clefq.engines.http_engine import HttpEngine
from clefq.engines.predict import PredictJob, predict_set
from clefq.errors import ClefqError, InputError
from clefq.names.models import served_model
from clefq.store.predictions import read_predictions
from clefq.store.sets import open_set
from tests.engines.stand_in import Stand, running

pytestmark = pytest.mark.usefixtures("no_pause")

QUIET = Console(quiet=True)


def truth(record: Record) -> dict[str, dict[str, float]]:
    """The probabilities that the test server holds for a record: random but fixed."""
    rng = np.random.default_rng(abs(hash(json.dumps(record_to_json(record)["questions"]))) % 2**32)
    return {
        q.id: dict(zip(q.option_ids, rng.dirichlet(np.ones(len(q.option_ids))), strict=True))
        for q in record.questions
    }


class Server(Stand):
    """A SystemOne server with random but fixed answers.

    Attributes:
        digits: Decimals of its numbers; None for exact ones.
        spoil: Changes a response before it is sent.
    """

    def __init__(self) -> None:
        super().__init__(self.truly)
        self.digits: int | None = 4
        self.spoil: Any = lambda _: None

    def truly(self, body: dict[str, Any]) -> dict[str, Any]:
        value = {"id": "x", "cohort": "x", "state": body["state"], "questions": body["questions"]}
        record = parse_record(value, "request")
        held = truth(record)
        answers = {q.id: answer(q, held[q.id], self.digits) for q in record.questions}
        response = {
            "model": body["model"],
            "answers": answers,
            "usage": {"input_tokens": 11, "x_truncated_tokens": 3},
        }
        self.spoil(response)
        return response


@pytest.fixture
def server() -> Server:
    return Server()


def run(url: str, records: list[Record], **options: Any) -> dict[str, RecordResult]:
    engine = HttpEngine(url, "clef", EngineSpec(**options))
    try:
        return {r.record_id: r for group in engine.predict(records) for r in group}
    finally:
        engine.close()


def test_answers_become_logprobs_in_prompt_order(server: Server, records: list[Record]) -> None:
    server.digits = None
    with running(server) as url:
        results = run(url + "/v1/systemone/", records)
    assert len(results) == len(records)
    for record in records:
        expected = truth(record)
        result = results[record.id]
        assert (result.input_tokens, result.truncated_tokens) == (11, 3)
        for question in record.questions:
            values = result.logprobs[question.id]
            wanted = [expected[question.id][option] for option in question.option_ids]
            assert np.allclose(np.exp(values), wanted, atol=1e-14)
            assert abs(np.exp(values).sum() - 1) <= 1e-12
    questions = {json.dumps(record_to_json(r)["questions"]) for r in records}
    assert {json.dumps(body["questions"]) for body in server.bodies} == questions
    assert all(header["x-clefq-precision"] == "full" for header in server.headers)


@pytest.mark.parametrize(("digits", "quantum"), [(None, None), (4, 1e-4), (6, 1e-6)])
def test_the_file_declares_the_server_s_rounding(
    server: Server, set_path: Path, tmp_path: Path, digits: int | None, quantum: float | None
) -> None:
    server.digits = digits
    out = tmp_path / "p.parquet"
    with running(server) as url:
        job = PredictJob(served_model("clef"), set_path, out, "http", EngineSpec(), url)
        summary = predict_set(job, QUIET)
    assert summary.errors == 0
    meta = read_predictions(out).meta
    assert meta.probability_quantum == quantum
    assert (meta.engine, meta.scheme, meta.model_sha256) == ("http", "unknown", None)
    assert (meta.kernels, meta.arithmetic, meta.variant) == ("real", "unknown", "clef")


def test_a_server_that_says_what_it_runs_is_believed(server: Server) -> None:
    with running(server) as url:
        assert "does not say" in HttpEngine(url, "clef", EngineSpec()).warnings[0]
        server.details = {"arithmetic": "w4a4", "kernels": "simulated", "device": "cpu"}
        engine = HttpEngine(url, "clef", EngineSpec())
        assert engine.warnings == ()
        assert (engine.info.arithmetic, engine.info.kernels) == ("w4a4", "simulated")
        assert engine.info.dtype == "unspecified"
        assert HttpEngine(url, "another", EngineSpec()).warnings


@pytest.mark.parametrize(
    "details", [None, {}, {"arithmetic": "w4a4", "kernels": "unknown"}, {"kernels": "real"}]
)
def test_what_a_server_does_not_say_is_marked(
    server: Server, details: dict[str, Any] | None
) -> None:
    """The marks are what a report's banner goes by."""
    server.details = details
    with running(server) as url:
        engine = HttpEngine(url, "clef", EngineSpec())
    assert "does not say" in engine.warnings[0]
    assert engine.info.dtype == "unknown"


def test_arithmetic_without_a_name_is_refused(server: Server) -> None:
    server.details = {"arithmetic": "w8a16", "kernels": "real"}
    with running(server) as url, pytest.raises(InputError, match="runs w8a16 arithmetic"):
        HttpEngine(url, "clef", EngineSpec())


def test_passing_failures_are_retried(
    server: Server, records: list[Record], no_pause: list[float]
) -> None:
    server.failures = [503, 429, 500]
    with running(server) as url:
        results = run(url, records[:1], concurrency=1)
    assert not results[records[0].id].errors
    assert len(server.bodies) == 4
    assert no_pause == sorted(no_pause)
    assert len(no_pause) == 3


def test_a_refused_record_is_an_error_of_its_rows(server: Server, records: list[Record]) -> None:
    server.failures = [422]
    with running(server) as url:
        results = run(url, records[:3], concurrency=1)
    failed = [result for result in results.values() if result.errors]
    assert len(failed) == 1
    assert set(failed[0].errors.values()) == {"the server answered 422: mood 422"}


@pytest.mark.parametrize(
    ("status", "message", "fix"),
    [
        (401, "refuses the key", "CLEFQ_API_KEY"),
        (404, "has no /v1/systemone", "--url"),
        (501, "has no /v1/systemone", "--api"),
        (503, "still overloaded", "resumes"),
    ],
)
def test_what_no_record_can_mend_ends_the_run(
    server: Server, records: list[Record], status: int, message: str, fix: str
) -> None:
    server.failures = [status] * 50
    with running(server) as url, pytest.raises(ClefqError, match=message) as caught:
        run(url, records[:2], concurrency=1)
    assert fix in str(caught.value.fix)


def test_no_server_is_one_line() -> None:
    with pytest.raises(ClefqError, match=r"cannot reach http://127\.0\.0\.1:9") as caught:
        HttpEngine("http://127.0.0.1:9", "clef", EngineSpec())
    assert "start the server" in str(caught.value.fix)
    with pytest.raises(InputError, match="is no http address"):
        HttpEngine("localhost:8000", "clef", EngineSpec())


def test_a_run_resumes(server: Server, set_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.parquet"
    count = sum(1 for _ in open_set(set_path).records())
    with running(server) as url:
        spec = EngineSpec(concurrency=1)
        job = PredictJob(served_model("clef"), set_path, out, "http", spec, url)
        seen = 0

        def fail_later(response: dict[str, Any]) -> None:
            nonlocal seen
            seen += 1
            if seen == 5:
                server.failures = [401] * 20

        server.spoil = fail_later
        with pytest.raises(ClefqError, match="refuses the key"):
            predict_set(job, QUIET)
        assert not out.exists()
        server.failures, asked = [], len(server.bodies)
        summary = predict_set(job, QUIET)
        assert 0 < summary.resumed <= 5
        assert len(server.bodies) - asked == count - summary.resumed


def test_a_finished_run_is_not_asked_again(
    server: Server, set_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers may be paid for; but a server that says it runs something else is asked."""
    out = tmp_path / "p.parquet"
    count = sum(1 for _ in open_set(set_path).records())
    with running(server) as url:
        job = PredictJob(served_model("clef"), set_path, out, "http", EngineSpec(), url)

        def asked(job: PredictJob = job) -> int:
            before = len(server.bodies)
            summary = predict_set(job, Console())
            new = len(server.bodies) - before
            assert summary.finished == (new == 0)
            return new

        assert asked() == count
        written = out.read_bytes()
        assert asked() == 0
        assert "is finished" in capsys.readouterr().err
        # how fast changes no answer
        assert asked(replace(job, spec=EngineSpec(concurrency=2))) == 0
        assert out.read_bytes() == written
        assert asked(replace(job, again=True)) == count
        server.details = {"arithmetic": "w8a8", "kernels": "real", "sha256": "a" * 64}
        assert asked() == count
        assert "the server now says model_sha256 aaaa" in capsys.readouterr().err
        assert asked() == 0
        server.details = {**server.details, "sha256": "b" * 64}
        assert asked() == count
        assert read_predictions(out).meta.model_sha256 == "b" * 64
        server.details = {**server.details, "engine_version": "2"}
        assert asked() == count
        # another model's name is another run
        job = replace(job, model=replace(job.model, model_id="other"))
        assert asked(job) == count


def test_a_finished_run_without_an_answer_is_asked_again(
    server: Server, set_path: Path, tmp_path: Path
) -> None:
    out = tmp_path / "p.parquet"
    with running(server) as url:
        job = PredictJob(served_model("clef"), set_path, out, "http", EngineSpec(), url)
        server.failures = [422] * sum(1 for _ in open_set(set_path).records())
        assert predict_set(job, QUIET).errors > 0
        summary = predict_set(job, QUIET)
    assert summary.errors == 0 and not summary.finished


def test_images_and_the_key_are_sent(
    server: Server, records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"png bytes")
    value = record_to_json(records[0])
    pictured = parse_record(value | {"images": ["images/a.png"]}, "test")
    gone = parse_record(value | {"id": "gone", "images": ["images/b.png"]}, "test")
    film = parse_record(value | {"id": "film", "videos": ["videos/b.mp4"]}, "test")
    monkeypatch.setenv("CLEFQ_API_KEY", "secret")
    with running(server) as url:
        engine = HttpEngine(url, "clef", EngineSpec())
        groups = list(engine.predict([pictured, gone, film], tmp_path))
    results = {result.record_id: result for group in groups for result in group}
    assert not results[pictured.id].errors
    assert "no image" in next(iter(results["gone"].errors.values()))
    assert "videos" in next(iter(results["film"].errors.values()))
    sent = server.bodies[0]["images"][0]
    assert sent == "data:image/png;base64," + base64.b64encode(b"png bytes").decode()
    assert server.headers[0]["authorization"] == "Bearer secret"


def test_local_options_are_refused() -> None:
    with pytest.raises(InputError, match="cannot set --truncate-state, --dtype") as caught:
        HttpEngine("http://x", "clef", EngineSpec(truncate_state=True, dtype="float32"))
    assert "where the server is started" in str(caught.value.fix)


QUESTION = {
    "n": {"type": "noul"},
    "c": {"type": "choice", "criteria": {"b": None, "a": None, "c": None}},
    "s": {"type": "score", "criteria": ["low", "high"]},
}
RECORD = parse_record({"id": "r", "cohort": "c", "state": 1, "questions": QUESTION}, "test")
GOOD: dict[str, Any] = {
    "n": {"type": "noul", "noul": 0.25},
    "c": {"type": "choice", "probabilities": {"a": 0.5, "b": 0.5, "c": 0.0}},
    "s": {"type": "score", "probabilities": {"1": 0.75, "0": 0.25}},
}


def test_options_are_put_in_order_and_zero_is_minus_infinity() -> None:
    result = read_answers(RECORD, {"answers": GOOD})
    assert np.exp(result.logprobs["n"]).tolist() == [0.25, 0.75]
    assert np.exp(result.logprobs["c"]).tolist() == [0.5, 0.5, 0.0]
    assert np.allclose(np.exp(result.logprobs["s"]), [0.25, 0.75])


@pytest.mark.parametrize(
    ("question", "bad", "message"),
    [
        ("n", None, "did not answer"),
        ("n", {"type": "score"}, "type 'score'"),
        ("n", {"type": "noul", "noul": "0.5"}, "probability is '0.5'"),
        ("n", {"type": "noul", "noul": True}, "probability is True"),
        ("n", {"type": "noul", "noul": 1.5}, "not between 0 and 1"),
        ("n", {"type": "noul", "noul": float("nan")}, "not between 0 and 1"),
        ("c", {"type": "choice"}, "options are not those"),
        ("c", {"type": "choice", "probabilities": {"a": 0.5, "b": 0.5}}, "options are not those"),
        (
            "c",
            {"type": "choice", "probabilities": {"a": 0.3, "b": 0.3, "c": 0.3}},
            "sum to 0.900000",
        ),
    ],
)
def test_a_bad_answer_fails_its_question_only(
    question: str, bad: dict[str, Any] | None, message: str
) -> None:
    result = read_answers(RECORD, {"answers": GOOD | {question: bad}})
    assert message in result.errors[question]
    assert set(result.logprobs) == set(QUESTION) - {question}


def test_a_response_without_answers_is_refused() -> None:
    with pytest.raises(AnswerError):
        read_answers(RECORD, {"choices": []})


def test_rounding_excuses_only_its_own_size() -> None:
    """An answer on the coarse grid, off by more than the file's step allows, is an error."""
    fine = GOOD | {"n": {"type": "noul", "noul": 0.123456}}
    off = GOOD | {"c": {"type": "choice", "probabilities": {"a": 0.5, "b": 0.4999, "c": 0.0}}}
    results, quantum = settle(
        [read_answers(RECORD, {"answers": fine}), read_answers(RECORD, {"answers": off})]
    )
    assert quantum == 1e-6
    assert results[1].errors == {"c": "the server's probabilities sum to 0.999900"}
    results, quantum = settle([read_answers(RECORD, {"answers": off})])
    assert quantum == 1e-4
    assert not results[0].errors


def test_rounded_probabilities_of_many_options_are_accepted() -> None:
    rng = random.Random(3)
    names = {f"o{index}": None for index in range(255)}
    question = {"q": {"type": "choice", "criteria": names}}
    record = parse_record({"id": "r", "cohort": "c", "state": 1, "questions": question}, "test")
    weights = np.array([rng.random() for _ in names])
    held = dict(zip(sorted(names), weights / weights.sum(), strict=True))
    rounded = answer(record.questions[0], held)
    results, quantum = settle([read_answers(record, {"answers": {"q": rounded}})])
    assert quantum == 1e-4
    assert not results[0].errors
