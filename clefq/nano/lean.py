"""Starting values for a training from nothing, and leaner layers for it.

The library's model code is made for loading weights and for reading: this module gives it
starting values that learn, and the same arithmetic in fewer kernels.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import torch
from torch.nn import functional


def start_value(name: str, parameter: torch.Tensor) -> None:
    """Starting values for training from nothing; the library's are made for loading weights.

    Matrices keep the scale of their input, with those that write to the residual stream smaller
    by 1/√16 (two per layer). DeltaNet's memory starts with spans from one to a thousand tokens;
    the library's bias of 1 would make it forget within one.
    """
    residual = (".o_proj.weight", ".out_proj.weight", ".down_proj.weight", ".linear_fc2.weight")
    if name.endswith("dt_bias"):
        step = torch.exp(torch.empty_like(parameter).uniform_(math.log(1e-3), math.log(0.1)))
        parameter.copy_(step + torch.log(-torch.expm1(-step)))  # softplus inverted
    elif name.endswith("A_log"):
        parameter.uniform_(0.0, math.log(8.0))
    elif name.endswith("conv1d.weight"):
        parameter.uniform_(-0.5, 0.5)
    elif name.endswith("embed_tokens.weight"):
        parameter.normal_(0.0, 0.1)
    elif parameter.ndim == 2 and "embed" not in name and "lm_head" not in name:
        parameter.normal_(0.0, parameter.shape[1] ** -0.5)
        if name.endswith(residual):
            parameter.mul_(0.25)


def use_lean_layers() -> None:
    """Replaces slow pieces of the reference layers by the same arithmetic in fewer kernels.

    The depthwise convolution of four taps becomes four shifted products (its library kernel's
    gradient takes longer than the rest of the layer), the norms one fused kernel each.
    """
    from transformers.models.qwen3_5 import modeling_qwen3_5

    def convolve(
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **_: Any,
    ) -> torch.Tensor:
        assert bias is None and activation == "silu"
        rows = hidden_states.transpose(1, 2)  # [records, length, channels], contiguous
        taps, length = weight.shape[-1], rows.shape[1]
        padded = functional.pad(rows, (0, 0, taps - 1, 0))
        weight = weight.to(rows.dtype)
        mixed = padded[:, :length] * weight[:, 0]
        for tap in range(1, taps):
            mixed = mixed + padded[:, tap : tap + length] * weight[:, tap]
        return functional.silu(mixed).transpose(1, 2)

    def norm(self: Any, x: torch.Tensor) -> torch.Tensor:
        gain = 1.0 + self.weight.float()
        return functional.rms_norm(x.float(), gain.shape, gain, self.eps).type_as(x)

    def gated_norm(self: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        gain = self.weight.float()
        normed = functional.rms_norm(x.float(), gain.shape, gain, self.variance_epsilon)
        return (normed * functional.silu(gate.float())).type_as(x)

    module: Any = modeling_qwen3_5
    module.causal_conv1d_fn = convolve
    module.Qwen3_5RMSNorm.forward = norm
    module.Qwen3_5RMSNormGated.forward = gated_norm


def use_one_tuning() -> None:
    """Builds one launch configuration of each DeltaNet kernel, instead of timing up to 27.

    Building takes a second each and the whole run has minutes; at this size the choice hardly
    matters. Must be called before the kernels are imported.
    """
    if importlib.util.find_spec("triton") is None:
        return
    autotuner = importlib.import_module("triton.runtime.autotuner")
    original = autotuner.Autotuner.__init__

    def distance(config: Any) -> tuple[int, int, int]:
        blocks = sum(abs(v - 64) for v in config.kwargs.values() if isinstance(v, int))
        return abs(config.num_warps - 4), abs(config.num_stages - 2), blocks

    def short(self: Any, fn: Any, names: Any, configs: Any, *more: Any, **named: Any) -> None:
        chosen = [min(configs, key=distance)] if configs else configs
        original(self, fn, names, chosen, *more, **named)

    autotuner.Autotuner.__init__ = short
