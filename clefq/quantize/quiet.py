"""Keeps the logs and bars of the quantization libraries off the user's terminal."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Iterator

_LIBRARIES = ("llmcompressor", "compressed_tensors")
_LEVEL = "METRIC"
SWITCHES = ("LLM_COMPRESSOR_LOG_DISABLED", "COMPRESSED_TENSORS_LOG_DISABLED")


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silences llm-compressor's and compressed-tensors' bars and warnings inside the block.

    Their logs stay off for the rest of the process: both log while they are imported, which may
    happen later.
    """
    for switch in SWITCHES:
        os.environ.setdefault(switch, "true")
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import llmcompressor.logger  # noqa: F401  (reads the switches)
        from loguru import logger

        # GPTQ logs at a level of llm-compressor's own, which it leaves out where it is switched off
        if _LEVEL not in logger._core.levels:  # type: ignore[attr-defined]
            logger.level(_LEVEL, no=38)
        for name in _LIBRARIES:
            logger.disable(name)
        yield
