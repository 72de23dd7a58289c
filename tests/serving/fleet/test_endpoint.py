"""The route inside vLLM's own server, and the command line for it: without vLLM."""

from __future__ import annotations

import asyncio
import shlex
import types
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clefq.nano
from clefq.serving.fleet import endpoint
from clefq.serving.fleet.endpoint import ClientBackend, SystemOneEndpoint, serves_clef
from clefq.serving.fleet.vllm_command import shell_text, vllm_command
from clefq.serving.http.backend import EngineDown
from clefq.serving.layout import ARCHITECTURE
from clefq.serving.settings import ServeSettings
from tests.serving.fleet.conftest import prompt, run

NANO = Path(clefq.nano.__file__).parent / "weights"


class Output:
    def __init__(self, values: list[float], tokens: int) -> None:
        flat = np.array([values], dtype=np.float32)
        data = types.SimpleNamespace(
            float=lambda: types.SimpleNamespace(
                cpu=lambda: types.SimpleNamespace(numpy=lambda: flat)
            )
        )
        self.finished = True
        self.outputs = types.SimpleNamespace(data=data)
        self.prompt_token_ids = [0] * tokens


class Client:
    """vLLM's engine client, as far as it is used."""

    errored = False
    model_config = types.SimpleNamespace(
        hf_config=types.SimpleNamespace(architectures=[ARCHITECTURE]),
        max_model_len=4097,
        multimodal_config=None,
        dtype="torch.bfloat16",
        model=str(NANO),
        revision=None,
    )

    def __init__(self) -> None:
        self.seen: list[tuple[Any, Any, str]] = []
        self.fail: Exception | None = None
        self.ended = 0

    async def encode(self, prompt: Any, params: Any, request_id: str) -> AsyncIterator[Output]:
        self.seen.append((prompt, params, request_id))
        try:
            if self.fail is not None:
                raise self.fail
            if prompt["prompt_token_ids"][0] == 13:
                await asyncio.sleep(60)
            yield Output([1.5, -0.5], len(prompt["prompt_token_ids"]))
        finally:
            self.ended += 1


@pytest.fixture(autouse=True)
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("vllm")
    module.__version__ = "9.9"
    module.PoolingParams = lambda **values: values
    monkeypatch.setitem(__import__("sys").modules, "vllm", module)


def backend(client: Client) -> ClientBackend:
    return ClientBackend(client, NANO, types.SimpleNamespace(served_model_name=["mine"]))


def test_what_it_asks_of_the_engine() -> None:
    async def body() -> None:
        client = Client()
        served = backend(client)
        assert served.info.names[0] == "mine"
        assert (served.info.max_length, served.info.max_images) == (4096, 0)
        assert served.state == "ready"
        scores = await served.score(prompt(7), "r")
        assert scores.flat.tolist() == [1.5, -0.5]
        assert scores.input_tokens == 8
        await served.score(prompt(8), "r")
        (first, params, one), (_, _, other) = client.seen
        assert first == {"prompt_token_ids": [7] * 8}
        assert params["task"] == "token_classify"
        assert params["use_activation"] is False
        assert "clefq_layout" in params["extra_kwargs"]
        # request ids are clients' and may repeat; the engine's may not
        assert one != other
        assert served.gauges()["in_flight{0}"] == 0

    run(body())


def test_faults_of_a_request_and_of_the_engine() -> None:
    async def body() -> None:
        client = Client()
        served = backend(client)
        client.fail = ValueError("too long")
        assert (await served.score(prompt(7), "r")).flat.size == 0
        client.errored = True
        with pytest.raises(EngineDown):
            await served.score(prompt(7), "r")

    run(body())


def test_a_client_that_goes_away_ends_the_engines_work() -> None:
    async def body() -> None:
        client = Client()
        served = backend(client)
        task = asyncio.create_task(served.score(prompt(13), "r"))
        await asyncio.sleep(0.01)
        assert served.gauges()["in_flight{0}"] == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.ended == 1
        assert served.gauges()["in_flight{0}"] == 0

    run(body())


def test_the_route_is_added_and_waits_for_the_engine() -> None:
    from fastapi import FastAPI
    from starlette.testclient import TestClient

    app = FastAPI()
    plugin = SystemOneEndpoint()
    plugin.attach_router(app)
    with TestClient(app) as client:
        assert client.post("/v1/systemone", json={}).status_code == 503
        asyncio.run(plugin.init_state(None, app.state, None))
        assert client.post("/v1/systemone", json={}).status_code == 503


def test_other_models_are_left_alone() -> None:
    other = types.SimpleNamespace(hf_config=types.SimpleNamespace(architectures=["Bert"]))
    assert serves_clef(Client.model_config)
    assert not serves_clef(other)
    bare = types.SimpleNamespace(hf_config=types.SimpleNamespace(architectures=None))
    assert not serves_clef(bare)
    assert endpoint.SystemOneEndpoint.required_tasks == ("token_classify",)


def test_the_command_for_vllms_own_server() -> None:
    settings = ServeSettings(max_length=1000, max_images=2, max_cudagraph_tokens=64)
    variables, arguments = vllm_command(NANO, settings, cpu=False)
    assert variables == {"VLLM_PLUGINS": "clefq", "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    assert arguments[0] == str(NANO)
    text = shell_text(variables, arguments, cpu=False)
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:4] == [*(f"{k}={v}" for k, v in variables.items()), "vllm", "serve"]
    assert words[4:] == arguments
    for flag in ("--no-enable-prefix-caching", "--enable-chunked-prefill", "--disable-log-stats"):
        assert flag in words
    sizes = words.index("--cudagraph-capture-sizes")
    assert words[sizes + 1 : sizes + 3] == ["32", "64"]
    assert words[words.index("--max-model-len") + 1] == "1001"
    # the miniature's heads do not fit the kernel that vLLM would choose on Hopper
    assert words[words.index("--gdn-prefill-backend") + 1] == "triton"
    assert "api_server --model" in shell_text(variables, arguments, cpu=True)
