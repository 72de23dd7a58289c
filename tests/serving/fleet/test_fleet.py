"""Real processes with fake engines: routing, death, retry, restart, deadlines, drain, abort."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clefq.errors import ClefqError
from clefq.serving.fleet import fleet as fleet_module
from clefq.serving.fleet import process as process_module
from clefq.serving.fleet.fleet import Fleet
from clefq.serving.fleet.process import Launch
from clefq.serving.fleet.spec import FleetSpec, ModelInfo
from clefq.serving.fleet.wire import Start
from clefq.serving.http.backend import EngineDown, Scores
from clefq.serving.settings import ServeSettings
from tests.serving.fleet.conftest import Log, MakeFleet, prompt, run


@asynccontextmanager
async def started(fleet: Fleet) -> AsyncIterator[Fleet]:
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.close()


async def ask(fleet: Fleet, token: int, length: int = 8) -> Scores:
    """Asks, and checks that the answer is that of this prompt."""
    scores = await fleet.score(prompt(token, length), f"r{token}")
    assert scores.flat.tolist() == [token, token]
    assert scores.input_tokens == length
    assert scores.queue_seconds >= 0
    assert scores.engine_seconds > 0
    return scores


async def until(condition: Any, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.fixture(autouse=True)
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "restart_delay", lambda failures: 0.05 * failures)


def test_many_at_once_get_their_own_answers(make_fleet: MakeFleet) -> None:
    async def body() -> None:
        async with started(make_fleet({"delay": 0.002}, {"delay": 0.005})) as fleet:
            assert fleet.state == "ready"
            assert (fleet.info.names, fleet.info.device, fleet.info.scheme) == (
                ("m",),
                "fake",
                "bf16",
            )
            await asyncio.gather(*(ask(fleet, token, 1 + token % 900) for token in range(400)))
            gauges = fleet.gauges()
            assert (gauges["engines"], gauges["engines_alive"]) == (2, 2)
            assert fleet.in_flight == gauges["queued"] == gauges["tokens_in_flight{0}"] == 0
        with pytest.raises(EngineDown):
            await ask(fleet, 1)

    run(body())


def test_work_goes_where_the_fewest_tokens_are(make_fleet: MakeFleet) -> None:
    async def body() -> None:
        async with started(make_fleet({"delay": 0.5}, {"delay": 0.5})) as fleet:
            long = asyncio.create_task(ask(fleet, 1, 1000))
            await asyncio.sleep(0)
            short = [asyncio.create_task(ask(fleet, token, 100)) for token in range(2, 7)]
            await asyncio.sleep(0.05)
            gauges = fleet.gauges()
            assert (gauges["in_flight{0}"], gauges["in_flight{1}"]) == (1, 5)
            await asyncio.gather(long, *short)

    run(body())


def test_what_has_no_room_waits_in_order(make_fleet: MakeFleet) -> None:
    async def body() -> None:
        async with started(make_fleet({"delay": 0.02})) as fleet:
            order: list[int] = []

            async def one(token: int, length: int) -> None:
                scores = await ask(fleet, token, length)
                order.append(token)
                waited.append(scores.queue_seconds)

            waited: list[float] = []
            # room is four steps of 1,024 tokens; the third fits only when both others are done
            sizes = [2000, 2000, 4000, 8]
            tasks = [
                asyncio.create_task(one(token, size)) for token, size in enumerate(sizes, start=1)
            ]
            await asyncio.sleep(0)
            assert fleet.gauges()["queued"] == 2
            await asyncio.gather(*tasks)
            assert order == [1, 2, 3, 4]
            assert waited[0] < 0.01 < waited[2]

    run(body())


def test_a_prompt_larger_than_the_room_runs_alone(make_fleet: MakeFleet) -> None:
    async def body() -> None:
        async with started(make_fleet({})) as fleet:
            await asyncio.gather(*(ask(fleet, token, 5000) for token in range(1, 4)))

    run(body())


def test_requests_of_a_dead_engine_are_asked_again_elsewhere(
    make_fleet: MakeFleet, log: Log
) -> None:
    async def body() -> None:
        fleet = make_fleet({"delay": 0.3}, {"delay": 0.3})
        async with started(fleet):
            victim = fleet.engines[0][1]
            assert victim is not None
            tasks = [asyncio.create_task(ask(fleet, token)) for token in range(1, 41)]
            await asyncio.sleep(0.1)
            os.kill(victim, signal.SIGKILL)
            await asyncio.gather(*tasks)
            assert fleet.gauges()["prompts_retried"] == 20
            await until(lambda: fleet.gauges()["engines_alive"] == 2)
            assert fleet.gauges()["engine_restarts"] == 1
            assert fleet.engines[0][1] != victim
            assert log.has("engine 0: its process was ended by SIGKILL")
            assert sum("engine 0: loaded in" in line for line in log) == 2
            await ask(fleet, 77)

    run(body())


def test_with_one_engine_they_wait_for_its_successor(make_fleet: MakeFleet) -> None:
    async def body() -> None:
        fleet = make_fleet({"delay": 0.2, "load": 0.3})
        async with started(fleet):
            tasks = [asyncio.create_task(ask(fleet, token)) for token in range(1, 9)]
            await asyncio.sleep(0.05)
            os.kill(fleet.engines[0][1] or 0, signal.SIGKILL)
            await until(lambda: fleet.state == "starting")
            await asyncio.gather(*tasks)
            assert fleet.state == "ready"

    run(body())


def test_a_prompt_that_kills_is_tried_twice_and_no_more(make_fleet: MakeFleet, log: Log) -> None:
    async def body() -> None:
        fleet = make_fleet({"die_on": 666}, {"die_on": 666})
        async with started(fleet):
            with pytest.raises(EngineDown, match="two engines died"):
                await ask(fleet, 666)
            await until(lambda: fleet.gauges()["engines_alive"] == 2)
            assert fleet.gauges()["engine_restarts"] == 2
            assert fleet.gauges()["prompts_unanswered"] == 1
            await ask(fleet, 5)

    run(body())


def test_restarts_are_repeated_until_one_succeeds(
    make_fleet: MakeFleet, log: Log, tmp_path: Path
) -> None:
    async def body() -> None:
        fleet = make_fleet({"mark": str(tmp_path / "mark"), "starts": 3})
        async with started(fleet):
            os.kill(fleet.engines[0][1] or 0, signal.SIGKILL)
            await until(lambda: fleet.gauges()["engine_restarts"] == 4 and fleet.state == "ready")
            assert sum("not yet" in line for line in log) == 3
            await ask(fleet, 5)

    run(body())


def test_a_machine_that_is_out_of_processes_for_a_while(
    make_fleet: MakeFleet, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        fleet = make_fleet({})
        async with started(fleet):
            popen, left = subprocess.Popen, [OSError(11, "Resource temporarily unavailable")] * 2

            def start(*arguments: Any, **options: Any) -> Any:
                if left:
                    raise left.pop()
                return popen(*arguments, **options)

            monkeypatch.setattr(process_module.subprocess, "Popen", start)
            descriptors = len(list(Path("/proc/self/fd").iterdir()))
            os.kill(fleet.engines[0][1] or 0, signal.SIGKILL)
            await until(lambda: fleet.gauges()["engine_restarts"] == 3 and fleet.state == "ready")
            assert sum("cannot be started: Resource temporarily" in line for line in log) == 2
            await ask(fleet, 5)
            # nothing of the failed starts is left open
            assert len(list(Path("/proc/self/fd").iterdir())) == descriptors

    run(body())


def test_a_silent_engine_is_replaced_and_its_requests_answered(
    make_fleet: MakeFleet, log: Log
) -> None:
    async def body() -> None:
        fleet = make_fleet({"hang_on": 13}, {}, stall=1.0)
        async with started(fleet):
            # both engines get something; only the first hangs, and takes what it had with it
            hanging = asyncio.create_task(ask(fleet, 13))
            await asyncio.sleep(0.05)
            await asyncio.gather(*(ask(fleet, token) for token in range(20, 40)))
            await hanging
            assert log.has("it answered nothing for 1 s")
            await until(lambda: fleet.gauges()["engines_alive"] == 2)

    run(body())


def test_no_request_outlives_its_deadline(make_fleet: MakeFleet) -> None:
    async def body() -> None:
        async with started(make_fleet({"hang_on": 13}, request=0.5)) as fleet:
            begun = time.monotonic()
            with pytest.raises(EngineDown, match="no answer within"):
                await ask(fleet, 13)
            assert time.monotonic() - begun < 2
            assert fleet.in_flight == 0
            await ask(fleet, 5)

    run(body())


def test_a_client_that_goes_away_frees_the_engine(make_fleet: MakeFleet, tmp_path: Path) -> None:
    async def body() -> None:
        mark = tmp_path / "mark"
        async with started(make_fleet({"hang_on": 13, "mark": str(mark)})) as fleet:
            # the second waits behind the first, which fills the engine
            first = asyncio.create_task(ask(fleet, 13, 5000))
            second = asyncio.create_task(ask(fleet, 14, 5000))
            third = asyncio.create_task(ask(fleet, 15, 5000))
            await asyncio.sleep(0.1)
            assert fleet.gauges()["queued"] == 2
            second.cancel()
            first.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
            await third
            assert fleet.in_flight == 0
            # the one in the engine was aborted there, the one in the queue never got that far
            await until(lambda: mark.read_text().count("abort") == 1)
            assert fleet.gauges()["prompts_aborted"] == 1

    run(body())


def test_a_refused_prompt_has_no_logits(make_fleet: MakeFleet, log: Log) -> None:
    async def body() -> None:
        async with started(make_fleet({"refuse_on": 13})) as fleet:
            scores = await fleet.score(prompt(13), "r13")
            assert scores.flat.size == 0
            assert scores.flat.dtype == np.float32
            assert log.has("r13: the engine refused its prompt: not today")

    run(body())


def test_draining_answers_what_was_accepted(make_fleet: MakeFleet) -> None:
    async def body() -> None:
        fleet = make_fleet({"delay": 0.2}, {"delay": 0.2})
        async with started(fleet):
            tasks = [asyncio.create_task(ask(fleet, token, 900)) for token in range(1, 31)]
            await asyncio.sleep(0.05)
            pids = [pid for _, pid, _ in fleet.engines if pid is not None]
            assert fleet.gauges()["queued"] > 0
            await fleet.drain()
            assert fleet.state == "draining"
            assert all(task.done() for task in tasks)
            await asyncio.gather(*tasks)
            assert not any(alive(pid) for pid in pids)
            await fleet.drain()

    run(body())


def test_closing_fails_what_is_unanswered(make_fleet: MakeFleet) -> None:
    async def body() -> None:
        fleet = make_fleet({"hang_on": 13})
        await fleet.start()
        task = asyncio.create_task(ask(fleet, 13))
        await asyncio.sleep(0.05)
        await fleet.close()
        with pytest.raises(EngineDown, match="the server stops"):
            await task

    run(body())


def test_what_an_engine_prints_as_it_stops_is_not_shown(make_fleet: MakeFleet, log: Log) -> None:
    async def body() -> None:
        async with started(make_fleet({})) as fleet:
            await ask(fleet, 7)
            await fleet.close()

    run(body())
    assert not log.has("taken apart")


def test_an_engine_that_does_not_stop_is_ended(make_fleet: MakeFleet) -> None:
    async def body() -> None:
        fleet = make_fleet({"stubborn": True}, stop=0.3)
        await fleet.start()
        pid = fleet.engines[0][1] or 0
        await fleet.close()
        assert not alive(pid)

    run(body())


@pytest.mark.parametrize("how", ["close", "kill"])
def test_no_descendant_is_left(make_fleet: MakeFleet, tmp_path: Path, how: str) -> None:
    async def body() -> None:
        mark = tmp_path / "mark"
        fleet = make_fleet({"orphan": True, "mark": str(mark)})
        async with started(fleet):
            child = int(mark.read_text().split("child ")[1].split()[0])
            assert alive(child)
            if how == "kill":
                os.kill(fleet.engines[0][1] or 0, signal.SIGKILL)
                # ended and reaped: a zombie would still be there
                await until(lambda: not alive(child))
        assert not alive(child)

    run(body())


def test_a_model_that_does_not_load_ends_the_start(make_fleet: MakeFleet) -> None:
    async def body() -> None:
        fleet = make_fleet({}, {"fail": "out of memory"})
        with pytest.raises(ClefqError, match="out of memory") as caught:
            await fleet.start()
        assert caught.value.fix == "try less"
        assert fleet.state == "starting"
        pids = [pid for _, pid, _ in fleet.engines]
        assert not any(alive(pid) for pid in pids if pid is not None)

    run(body())


def test_a_crash_while_loading_names_its_error(make_fleet: MakeFleet) -> None:
    async def body() -> None:
        with pytest.raises(ClefqError, match="engine 0: RuntimeError: no such kernel"):
            await make_fleet({"crash": "no such kernel"}).start()

    run(body())


def test_a_start_that_takes_too_long_ends(make_fleet: MakeFleet) -> None:
    async def body() -> None:
        with pytest.raises(ClefqError, match="not ready within 1 s"):
            await make_fleet({"load": 30}, start=1).start()

    run(body())


def test_stopping_while_it_starts(make_fleet: MakeFleet) -> None:
    async def body() -> None:
        fleet = make_fleet({"load": 30})
        starting = asyncio.create_task(fleet.start())
        await until(lambda: fleet.engines[0][1] is not None)
        pid = fleet.engines[0][1] or 0
        await fleet.close()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not alive(pid)
        with pytest.raises(EngineDown):
            await ask(fleet, 1)

    run(body())


def gauge_names() -> set[str]:
    """Names of a fleet's gauges, without labels; some come with its processes."""
    spec = FleetSpec(
        Start(Path("model"), ServeSettings()), [Launch(("true",), {})], ModelInfo(("m",), "bf16")
    )
    names = {name.partition("{")[0] for name in Fleet(spec, lambda line: None).gauges()}
    return names | {"engine_memory_bytes"}


def test_gauges_tell_steps_and_memory(make_fleet: MakeFleet) -> None:
    async def body() -> None:
        fleet = make_fleet({"delay": 0.05})
        async with started(fleet):
            for _ in range(2):
                await asyncio.gather(*(ask(fleet, token) for token in range(1, 5)))
            values = fleet.gauges()
            assert {name.partition("{")[0] for name in values} == gauge_names()
            assert values["prompts_answered{0}"] == 8
            assert 2 <= values["batches{0}"] <= 8
            assert values["engine_memory_bytes{0}"] > 1 << 20

    run(body())
