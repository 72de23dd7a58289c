"""What vLLM's workers are asked by name, so that no function has to be sent to them."""

from __future__ import annotations

from typing import Any

from clefq.serving.arithmetic import describe_layers

EXTENSION = "clefq.serving.fleet.inspection.Inspection"
METHOD = "clefq_kernels"


class Inspection:
    """Mixed into vLLM's worker class (`worker_extension_cls`)."""

    def clefq_kernels(self: Any) -> list[str]:
        """`scheme/kernel` of every linear layer that this worker holds."""
        return describe_layers(self.get_model())
