"""What vLLM's workers are asked by name, so that no function has to be sent to them.

vLLM imports this module in every process that holds a part of the model, before the model is
made. Where clefq runs from a checkout that is not installed, its plugin has no entry point there:
this import registers the model all the same.
"""

from __future__ import annotations

from typing import Any

from clefq.serving.arithmetic import describe_layers
from clefq.serving.plugin import register

register()


class Inspection:
    """Mixed into vLLM's worker class (`worker_extension_cls`)."""

    def clefq_kernels(self: Any) -> list[str]:
        """`scheme/kernel` of every linear layer that this worker holds."""
        return describe_layers(self.get_model())
