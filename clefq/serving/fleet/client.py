"""One prompt through vLLM's asynchronous engine: the call that the worker and the plugin share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clefq.serving.layout import TASK


async def encode(
    engine: Any,
    token_ids: Sequence[int],
    layout: dict[str, Any],
    images: Sequence[Any],
    request_id: str,
) -> tuple[NDArray[np.float32], int]:
    """Runs one prompt; cancelling this aborts it in the engine.

    Args:
        engine: vLLM's `AsyncLLM`, or the `EngineClient` of its server.
        token_ids: One pad token per image.
        layout: From `schema_layout`.
        images: PIL images, in prompt order.
        request_id: Unique among the requests in flight.

    Returns:
        float32 logits [options], and the length of the prompt as run.

    Raises:
        Exception: What vLLM raises; `engine.errored` tells whether it is gone.
    """
    import vllm

    prompt: dict[str, Any] = {"prompt_token_ids": list(token_ids)}
    if images:
        prompt["multi_modal_data"] = {"image": list(images)}
    params = vllm.PoolingParams(task=TASK, use_activation=False, extra_kwargs=layout)
    outputs = engine.encode(prompt, params, request_id)
    try:
        async for output in outputs:
            if output.finished:
                flat = output.outputs.data.float().cpu().numpy().reshape(-1)
                return flat, len(output.prompt_token_ids)
    finally:
        await outputs.aclose()
    raise RuntimeError("vLLM ended the request without an output")
