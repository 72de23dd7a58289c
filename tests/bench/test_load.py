"""Load on a server that behaves as told: rates, warm-up, refusals, failures, wrong answers."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clefq
from clefq.bench.load import Load, LoadSpec, Run, Sample
from clefq.bench.load_report import parse_server_timing, row_of, warnings_of
from clefq.bench.replies import ReplyChecker, read_expected
from clefq.bench.server import ServerJob, ServerReport, bench_server
from clefq.bench.source import RecordSource
from clefq.clef.answers import answer
from clefq.clef.records import Record
from clefq.console import Console
from clefq.engines.base import EngineSpec
from clefq.engines.predict import PredictJob, predict_set
from clefq.errors import ClefqError, InputError
from clefq.names.models import served_model
from clefq.store.sets import SetDraft, open_set, write_set
from tests.bench.fake import Fake, serving, truth

NANO = Path(clefq.__file__).parent / "nano"
SYNTHETIC = RecordSource(None, ("500",), 8, NANO / "weights")
EVAL = RecordSource(NANO / "sets" / "nano-eval", ("500",), 40, NANO / "weights")
QUIET = Console(quiet=True)


def bench(fake: Fake, *loads: Load, source: RecordSource = SYNTHETIC, **spec: Any) -> ServerReport:
    times = LoadSpec(**{"duration": 0.6, "warmup": 0.2, "timeout": 5.0, **spec})
    with serving(fake) as url:
        return bench_server(ServerJob(url, None, loads, times, source), QUIET)


def test_closed_loop_keeps_so_many_in_flight() -> None:
    report = bench(Fake(delay=0.04), Load(clients=1), Load(clients=4))
    one, four = report.rows
    assert one.latency and four.latency
    # upper bounds would be bounds on what else the machine is doing
    assert one.latency.median >= 0.04
    # each client's answers fit the measured time, and one may have begun before it
    assert one.requests <= 0.6 / 0.04 + 1
    assert four.requests <= 4 * (0.6 / 0.04 + 1)
    assert 2 * one.requests_per_second < four.requests_per_second
    assert four.tokens_per_second == pytest.approx(100 * four.requests_per_second)
    assert (one.failed, one.refused, one.wrong, one.lost) == (0, 0, 0, 0)
    assert (report.model, report.server, report.n_records) == ("fake-clef", "fake/1", 8)


def test_open_loop_charges_a_slow_server_for_all_who_waited() -> None:
    """50 arrivals a second meet a server that manages 25: waits grow to about half the run."""
    fake = Fake(delay=0.04, serial=True)
    report = bench(fake, Load(clients=1), Load(rate=50.0), warmup=0.0, duration=1.0)
    closed, opened = report.rows
    assert closed.latency and opened.latency
    assert opened.latency.p99 > 0.4
    assert opened.latency.median > 2 * closed.latency.median
    # every arrival was answered in the end, but not all within the measured time
    assert opened.answered == opened.requests > 30
    assert opened.requests_per_second < 27


def test_arrivals_are_poisson_at_the_rate() -> None:
    report = bench(Fake(), Load(rate=150.0), duration=1.5)
    (row,) = report.rows
    assert row.requests == pytest.approx(225, abs=60)
    assert row.generator_lag_p99 is not None
    assert 0 <= row.generator_lag_p99 < 5


def test_warm_up_is_not_measured() -> None:
    fake = Fake()
    started: list[float] = []
    slow: list[int] = []

    def slow_at_first(number: int, body: dict[str, Any]) -> Any:
        started.append(time.perf_counter())
        if number and time.perf_counter() - started[1] < 0.6:
            slow.append(number)
            time.sleep(0.3)
        return body

    fake.spoil = slow_at_first
    (row,) = bench(fake, Load(clients=1), warmup=1.5, duration=2.0).rows
    # the first request only asks whether the server is there
    assert slow and row.latency
    assert row.requests <= len(fake.requests) - 1 - len(slow)


def test_refusals_are_counted_apart_and_clients_come_back_when_told() -> None:
    asked: list[float] = []

    def refuses_the_third(number: int) -> int:
        asked.append(time.perf_counter())
        return 429 if number == 2 else 200

    fake = Fake(status=refuses_the_third, headers={429: "Retry-After: 0.3"})
    (row,) = bench(fake, Load(clients=1), warmup=0.0, duration=1.0).rows
    assert (row.refused, row.refused_with_retry_after, row.failed) == (1, 1, 0)
    assert asked[3] - asked[2] >= 0.3
    fake = Fake(status=lambda n: 429 if n % 2 else 200)
    (row,) = bench(fake, Load(rate=100.0)).rows
    assert row.refused > 10
    assert row.refused_with_retry_after == 0


def test_failures_are_counted_by_kind() -> None:
    moods = {1: 503, 2: "drop", 3: "garbage", 4: 500, 5: 503}
    fake = Fake(status=lambda n: moods.get(n, 200))
    (row,) = bench(fake, Load(clients=1), warmup=0.0, duration=1.5).rows
    assert row.errors == {"500": 1, "503": 2, "closed": 1, "malformed": 1}
    assert row.failed == 5
    assert row.lost == 2
    assert row.requests == row.answered + 5


def test_a_server_that_hangs_is_a_timeout_and_the_run_ends() -> None:
    started = time.monotonic()
    fake = Fake(status=lambda n: "hang" if n > 3 else 200)
    report = bench(fake, Load(clients=2), Load(rate=20.0), timeout=0.3, warmup=0.0)
    assert time.monotonic() - started < 20
    for row in report.rows:
        assert row.errors.keys() == {"timeout"}
        assert row.lost == row.errors["timeout"] > 0


def test_arrivals_beyond_the_connections_wait_on_the_servers_account() -> None:
    (row,) = bench(
        Fake(delay=0.1), Load(rate=60.0), connections=2, timeout=0.5, warmup=0.0, duration=1.0
    ).rows
    assert row.errors.keys() == {"timeout"}
    assert row.latency
    assert row.latency.p99 > 0.3


@pytest.mark.parametrize("framing", [{"chunked": True}, {"close": True}])
def test_other_framings(framing: dict[str, bool]) -> None:
    (row,) = bench(Fake(**framing), Load(clients=2)).rows
    assert row.answered > 3
    assert row.failed == 0


def test_the_key_and_images_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEFQ_API_KEY", "secret")
    fake = Fake()
    source = RecordSource(None, ("image-640", "470"), 1, NANO / "weights")
    bench(fake, Load(clients=1), source=source, duration=0.1, warmup=0.0)
    assert all(b"authorization: bearer secret" in head for head in fake.seen)
    images = [body["images"] for body in fake.requests if "images" in body]
    assert len(images) >= 1
    assert all(one[0].startswith("data:image/png;base64,") for one in images)
    assert any("images" not in body for body in fake.requests)


def test_an_answer_to_another_question_is_found_without_expectations() -> None:
    def other(number: int, body: dict[str, Any]) -> Any:
        if number > 3:
            body["answers"]["tone"]["probabilities"].pop("0")
        return body

    (row,) = bench(Fake(spoil=other), Load(clients=1)).rows
    assert row.faults == {"malformed": row.wrong}
    assert row.wrong > 5


@pytest.mark.parametrize("body", [b"", b"[]", b"nonsense", b"\xff\xfe", b'{"answers": 3}'])
def test_what_is_no_answer_is_malformed(body: bytes) -> None:
    records = list(open_set(EVAL.set_path).records())[:1]  # type: ignore[arg-type]
    assert ReplyChecker(records).judge(0, body).fault == "malformed"


def reply(record: Record, of: Record) -> bytes:
    held = truth(of)
    answers = {q.id: answer(q, held[q.id]) for q in record.questions}
    return json.dumps({"answers": answers, "usage": {"input_tokens": 7}}).encode()


def alike(count: int) -> list[Record]:
    """Records of the eval set that ask the same questions."""
    groups: dict[Any, list[Record]] = {}
    for record in open_set(EVAL.set_path).records():  # type: ignore[arg-type]
        key = tuple((q.id, q.option_ids) for q in record.questions)
        groups.setdefault(key, []).append(record)
    return max(groups.values(), key=len)[:count]


def expectations(records: list[Record]) -> dict[str, dict[str, np.ndarray]]:
    return {
        record.id: {
            q.id: np.array([truth(record)[q.id][option] for option in q.option_ids])
            for q in record.questions
        }
        for record in records
    }


def test_swapped_answers_are_told_from_different_ones() -> None:
    records = alike(6)
    judge = ReplyChecker(records, expectations(records))
    assert judge.judge(0, reply(records[0], records[0])).fault == ""
    assert judge.judge(0, reply(records[0], records[0])).worst == pytest.approx(0, abs=6e-5)
    assert judge.judge(0, reply(records[0], records[3])).fault == "swapped"
    stranger = Record("new", "c", "some state", records[0].questions)
    assert judge.judge(0, reply(records[0], stranger)).fault == "different"
    assert judge.judge(0, reply(records[0], stranger)).tokens == 7


def test_a_swap_under_load_is_found(tmp_path: Path) -> None:
    """The server hands out the answer before; predictions of the same server tell."""
    fake = Fake()
    path, same = tmp_path / "fake.parquet", tmp_path / "same"
    write_set(same, alike(20), {}, SetDraft("eval", "same", {}, ()))
    source = RecordSource(same, (), None, NANO / "weights")
    with serving(fake) as url:
        model = served_model("fake-clef")
        predict_set(PredictJob(model, same, path, "http", EngineSpec(), url), QUIET)
        check = ServerJob(url, None, (Load(clients=4),), LoadSpec(0.5, 0.1), source, path)
        (row,) = bench_server(check, QUIET).rows
        assert row.checked > 10
        assert (row.wrong, row.lost) == (0, 0)
        assert row.worst is not None
        assert row.worst <= 1e-4

        before: list[Any] = []

        def late(number: int, body: dict[str, Any]) -> Any:
            before.append(body)
            return before[-2] if len(before) % 3 == 0 else body

        fake.spoil = late
        (row,) = bench_server(check, QUIET).rows
        assert row.faults["swapped"] > 0
        assert row.wrong >= row.faults["swapped"]


def test_predictions_of_another_set_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "fake.parquet"
    with serving(Fake()) as url:
        sets = NANO / "sets" / "nano-calibration"
        predict_set(
            PredictJob(served_model("fake-clef"), sets, path, "http", EngineSpec(), url), QUIET
        )
        job = ServerJob(url, None, (Load(clients=1),), LoadSpec(0.1, 0.0), EVAL, path)
        with pytest.raises(InputError, match="made on another set"):
            bench_server(job, QUIET)
    records = list(open_set(NANO / "sets" / "nano-eval").records())[:3]
    with pytest.raises(InputError, match="no answer to any"):
        read_expected(path, records, None)


def test_a_server_that_refuses_or_is_not_there_is_one_line() -> None:
    with pytest.raises(ClefqError, match="refuses the first record \\(422\\): mood 422"):
        bench(Fake(status=lambda _: 422), Load(clients=1))
    job = ServerJob("http://127.0.0.1:1", None, (Load(clients=1),), LoadSpec(), SYNTHETIC)
    with pytest.raises(ClefqError, match="cannot reach"):
        bench_server(job, QUIET)


def run_of(samples: list[Sample], load: Load = Load(clients=1)) -> Run:  # noqa: B008
    return Run(load, start=10.0, end=20.0, samples=samples, cpu=9.0, wall=10.0)


def test_a_request_belongs_to_the_time_in_which_it_was_due() -> None:
    row = row_of(
        run_of(
            [
                Sample(9.0, 9.0, 9.5, "200", tokens=1000),  # warm-up
                Sample(9.9, 9.9, 10.1, "200", tokens=100),  # due before, answered within
                Sample(12.0, 12.0, 13.0, "200", tokens=10, fault="swapped", worst=0.4),
                Sample(19.5, 19.5, 22.5, "200", tokens=1),  # due within, answered after
                Sample(15.0, 15.0, 15.2, "503"),
                Sample(5.0, 5.0, 6.0, "closed"),
            ]
        )
    )
    assert (row.requests, row.answered, row.errors) == (3, 2, {"503": 1})
    assert row.requests_per_second == pytest.approx(0.2)
    assert row.tokens_per_second == pytest.approx(11)
    assert row.latency
    assert (row.latency.median, row.latency.p99) == (2.0, 3.0)
    assert row.faults == {"swapped": 1}
    # lost counts the warm-up's too: nothing may get lost at any time
    assert row.lost == 1
    assert (row.checked, row.worst) == (1, 0.4)
    assert "90% of a core" in warnings_of([row])[0]


def test_a_generator_that_is_late_says_so() -> None:
    late = [Sample(12.0, 12.4, 12.6, "200", late=0.4) for _ in range(100)]
    waiting = [Sample(12.0, 12.4, 12.6, "200", late=0.001) for _ in range(100)]
    calm = {"load": Load(rate=10.0)}
    assert "itself was up to 400 ms late" in " ".join(warnings_of([row_of(run_of(late, **calm))]))
    row = row_of(run_of(waiting, **calm))
    assert row.generator_lag_p99 == 0.001
    assert "late" not in " ".join(warnings_of([row]))


def test_a_run_without_an_answer_has_no_percentiles() -> None:
    row = row_of(run_of([Sample(12.0, 12.0, 13.0, "429", retry_after=True)]))
    assert row.latency is None
    assert (row.refused, row.refused_with_retry_after, row.failed) == (1, 1, 0)


def test_server_timing() -> None:
    header = 'encode;dur=0.5, queue;desc="a queue";dur="12", cache;desc=hit, x;dur=abc, y;dur=nan'
    assert parse_server_timing(header) == {"encode": 0.0005, "queue": 0.012}
    assert parse_server_timing("") == {}
