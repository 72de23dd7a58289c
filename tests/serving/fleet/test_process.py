"""What an engine's output says about its death, and what a message looks like on the wire."""

from __future__ import annotations

import asyncio
import random
import socket
from dataclasses import replace

import pytest
from PIL import Image

from clefq.clef.encoding import Encoded, EncodedQuestion
from clefq.serving.fleet.process import root_cause
from clefq.serving.fleet.wire import Abort, Channel, EngineAnswer, EngineAsk, Pixels, Stop
from clefq.serving.layout import parse_layout
from clefq.serving.runtime import Prompt
from tests.serving.fleet.conftest import prompt, run

LOAD_FAILURE = """\
(EngineCore pid=7) ERROR 11-29 [core.py:1100] EngineCore failed to start.
(EngineCore pid=7) ERROR 11-29 [core.py:1100] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-29 [core.py:1100]   File "gpu_worker.py", line 3, in load
(EngineCore pid=7) ERROR 11-29 [core.py:1100] torch.OutOfMemoryError: CUDA out of memory: 2 GiB
Traceback (most recent call last):
  File "core_client.py", line 9, in wait
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_first_of_two_errors_counts_where_the_second_only_points_at_it() -> None:
    assert root_cause(LOAD_FAILURE.splitlines()) == ("OutOfMemoryError: CUDA out of memory: 2 GiB")


@pytest.mark.parametrize("text", ["", "all is well", "Error: none", "an error: lower case"])
def test_no_error_no_cause(text: str) -> None:
    assert root_cause(text.splitlines()) is None


def test_a_prompt_with_images_on_the_wire() -> None:
    picture = Image.frombytes("RGB", (3, 2), bytes(range(18)))
    question = EncodedQuestion("q", 1, (6, 7), ("a", "b"), ((7, 8), (8, 9)))
    encoded = Encoded("r", (1, 9, 9, 9, 9, 2, 3, 4, 5), (question,), 0)
    ask = EngineAsk.of(5, Prompt(encoded, (picture,), (1, 9, 2, 3, 4, 5)))
    assert (ask.token_ids, ask.tokens, ask.options) == ((1, 9, 2, 3, 4, 5), 9, 2)
    assert Image.frombytes("RGB", ask.images[0].size, ask.images[0].data).tobytes() == bytes(
        range(18)
    )
    # spans count from the end, so that they hold whatever the image takes
    assert parse_layout(ask.layout, 9).question_spans == ((6, 7),)


def test_messages_arrive_whole_and_in_order() -> None:
    async def body() -> None:
        left, right = socket.socketpair()
        here, there = await Channel.over(left), await Channel.over(right)
        sent = [
            EngineAsk.of(1, prompt(7, 20_000)),
            Abort(1),
            EngineAnswer(1, b"x" * 3_000_000, 5),
            Stop(),
        ]
        for message in sent:
            here.send(message)
        assert [await there.receive() for _ in sent] == sent
        here.send(sent[0])
        await here.flush()
        here.close()
        here.send(Stop())
        assert await there.receive() == sent[0]
        assert await there.receive() is None
        there.close()

    run(body())


def test_pixels_arrive_as_they_were() -> None:
    async def body() -> None:
        left, right = socket.socketpair()
        here, there = await Channel.over(left), await Channel.over(right)
        images = tuple(
            Pixels((size, 2), random.Random(size).randbytes(6 * size)) for size in (1, 9, 400_000)
        )
        ask = replace(EngineAsk.of(1, prompt(7)), images=images)
        here.send(ask)
        here.send(Stop())
        assert await there.receive() == ask
        assert await there.receive() == Stop()
        here.close()
        there.close()

    run(body())


def test_a_message_cut_short_is_the_end() -> None:
    async def body() -> None:
        left, right = socket.socketpair()
        there = await Channel.over(right)
        left.sendall(b"\0\0\0\0\0\0\0\xff\0\0\0\0half")
        left.close()
        assert await asyncio.wait_for(there.receive(), 5) is None
        there.close()

    run(body())
