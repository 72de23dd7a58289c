"""Keeps the logs and bars of the quantization libraries off the user's terminal."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Iterator

_LIBRARIES = ("llmcompressor", "compressed_tensors")
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

        for name in _LIBRARIES:
            logger.disable(name)
        yield
