"""Quantized Clef under vLLM: the plugin, its settings, and a small offline API.

What people who drive vLLM themselves need is here: `ARCHITECTURE` for `hf_overrides`, `TASK` for
the pooling task, and `schema_layout(encoded)` for `PoolingParams.extra_kwargs`. Everything is
imported on first use, so that importing this package loads neither torch nor vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clefq.serving.layout import ARCHITECTURE, TASK, schema_layout, split_flat

if TYPE_CHECKING:
    from clefq.serving.offline import Clef
    from clefq.serving.settings import ServeSettings

__all__ = ["ARCHITECTURE", "TASK", "Clef", "ServeSettings", "schema_layout", "split_flat"]


def __getattr__(name: str) -> Any:
    if name == "Clef":
        from clefq.serving.offline import Clef

        return Clef
    if name == "ServeSettings":
        from clefq.serving.settings import ServeSettings

        return ServeSettings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
