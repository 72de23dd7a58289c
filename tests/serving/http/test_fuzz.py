"""Hostile bodies, in short; `python -m tests.serving.http.fuzz` does it at length."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from clefq.serving.http.app import create_app
from clefq.serving.http.errors import ApiError
from clefq.serving.http.request import Ask, parse_ask
from clefq.serving.http.settings import DIALECTS, Limits, ServerSettings
from clefq.serving.prompts import PromptMaker
from tests.serving.http import fuzz
from tests.serving.http.fake import FakeBackend

KEYS = ("model", "state", "questions", "images", "videos", "type", "criteria", "noul", "choice")
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
    lambda children: st.one_of(
        st.lists(children, max_size=4),
        st.dictionaries(
            st.one_of(st.sampled_from(KEYS), st.text(max_size=9)), children, max_size=5
        ),
    ),
    max_leaves=25,
)
QUESTION = st.fixed_dictionaries(
    {"type": st.sampled_from(["noul", "choice", "score"])},
    optional={"instructions": VALUES, "criteria": VALUES},
)
BODY = st.one_of(
    VALUES,
    st.fixed_dictionaries(
        {"state": VALUES, "questions": st.dictionaries(st.text(max_size=9), QUESTION, max_size=4)},
        optional={"model": VALUES, "images": VALUES, "videos": VALUES},
    ),
)


@given(BODY, st.sampled_from(DIALECTS))
@settings(max_examples=300, deadline=None)
def test_any_json_is_read_or_refused_with_a_place(value: Any, dialect: Any) -> None:
    raw = json.dumps(value).encode()
    try:
        ask = parse_ask(raw, dialect, Limits())
    except ApiError as error:
        assert 400 <= error.status(dialect) < 500
        for one in DIALECTS:
            json.dumps(error.body(one), ensure_ascii=False).encode()
    else:
        assert isinstance(ask, Ask)
        assert ask.record.state == value["state"]
        assert [q.id for q in ask.record.questions] == list(value["questions"])


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        parse_ask(raw, "release", Limits())
    except ApiError as error:
        assert error.status("release") in (400, 413, 422)


def test_no_request_makes_the_server_fail(prompts: PromptMaker) -> None:
    app = create_app(FakeBackend(max_length=8192), prompts, ServerSettings(access_log=False))
    with asyncio.Runner() as runner:
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t")

        def send(request: fuzz.Hostile) -> httpx.Response:
            return runner.run(client.post(fuzz.ASK, content=request.body, headers=request.headers))

        statuses = fuzz.run(send, 300)
        runner.run(client.aclose())
    # both answers and refusals are reached
    assert statuses[200] > 50
    assert {400, 413, 415, 422} <= set(statuses)
