"""Keeps the logs and bars of the quantization libraries off the user's terminal."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator

_LIBRARIES = ("llmcompressor", "compressed_tensors")


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silences llm-compressor, compressed-tensors and their progress bars inside the block."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from loguru import logger

        for name in _LIBRARIES:
            logger.disable(name)
        try:
            yield
        finally:
            for name in _LIBRARIES:
                logger.enable(name)
