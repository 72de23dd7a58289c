"""llm-compressor's name for `clefq.quantize.scale_search`: a weight observer.

An observer is what chooses scales in llm-compressor. Importing this file registers ours, so that
recipes may name it (`weight_observer: clefq_search`), with `QuantizationModifier` and with
`GPTQModifier`, which takes its scales and then rounds columns one by one.
"""

from __future__ import annotations

import torch
from llmcompressor.observers import Observer
from llmcompressor.observers.min_max import MemorylessMinMaxObserver

from clefq.clef.formats import SEARCH_OBSERVER
from clefq.clef.small_floats import NVFP4_GROUP
from clefq.quantize.scale_search import FP8, searched_scales


@Observer.register(SEARCH_OBSERVER)
class SearchObserver(MemorylessMinMaxObserver):
    """Searches NVFP4 group scales; those of other formats come from the largest weight.

    The global scale does too, over every member of a fused group, as without a search.
    """

    _seen: torch.Tensor | None = None

    def update_statistics_from_observed(self, observed: torch.Tensor) -> None:
        """Keeps the weight until its scales are asked for.

        Args:
            observed: `[1, rows, groups, 16]` for NVFP4.
        """
        super().update_statistics_from_observed(observed)
        self._seen = observed.detach()

    # the library decorates it with a bare `torch.no_grad`, which types as no function
    def get_qparams(self) -> dict[str, torch.Tensor | None]:  # type: ignore[override]
        """Scales, zero points and global scale, by llm-compressor's names."""
        seen, self._seen = self._seen, None
        found: dict[str, torch.Tensor | None] = super().get_qparams()  # type: ignore[call-arg]
        scale, divisor = found["scale"], found["global_scale"]
        if divisor is None or seen is None or scale is None or seen.shape[-1] != NVFP4_GROUP:
            return found
        searched = searched_scales(seen[0], scale.to(FP8), divisor)
        return {**found, "scale": searched.to(scale.dtype)}
