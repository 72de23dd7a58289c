"""Starting values for a training from nothing, and leaner layers for it.

The library's model code is made for loading weights and for reading: this module gives it
starting values that learn, and the same arithmetic in fewer kernels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

_CHUNK = 64


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
    gradient takes longer than the rest of the layer), the norms one fused kernel each, and the
    gated delta rule is scanned with three products a chunk. (The Triton kernels for the rule are
    not used: on Hopper their gradient is wrong with Triton 3.4 to 3.7.0.)
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
    module.torch_chunk_gated_delta_rule = gated_delta_rule
    module.causal_conv1d_fn = convolve
    module.Qwen3_5RMSNorm.forward = norm
    module.Qwen3_5RMSNormGated.forward = gated_norm


def gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The gated delta rule from an empty state, in chunks; differentiable, FP32 inside.

    Within a chunk the rank-one updates are condensed by a triangular solve (the UT transform of
    Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
    2024, with the decay of "Gated Delta Networks", 2025); only the state goes from chunk to chunk.

    Args:
        query: [records, length, heads, key width], L2-normalized here and scaled by 1/√width.
        key: The same shape, L2-normalized here.
        value: [records, length, heads, value width].
        g: Log of the state's decay, [records, length, heads], at most 0.
        beta: Strength of each update, [records, length, heads], in (0, 1).

    Returns:
        [records, length, heads, value width] in the queries' dtype, and None (no final state).
    """
    with torch.autocast(query.device.type, enabled=False):
        return _chunked_rule(query, key, value, g, beta).type_as(query), None


def _chunked_rule(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    length, wide = query.shape[1], _at_least_float32(query)
    chunks = -(-length // _CHUNK)

    def chunked(x: torch.Tensor) -> torch.Tensor:
        """As [chunks, records, heads, chunk, width]."""
        tail = (0, 0) * (x.ndim - 2)
        x = functional.pad(x.to(wide), (*tail, 0, chunks * _CHUNK - length))
        return x.unflatten(1, (chunks, _CHUNK)).movedim(1, 0).transpose(2, 3).contiguous()

    q = chunked(_unit(query.to(wide)) * query.shape[-1] ** -0.5)
    k, v, strength = chunked(_unit(key.to(wide))), chunked(value), chunked(beta.unsqueeze(-1))
    decay = chunked(g.unsqueeze(-1)).cumsum(-2)  # log of the decay since the chunk's start
    later = torch.ones(_CHUNK, _CHUNK, dtype=torch.bool, device=q.device).triu(1)
    pairwise = (decay - decay.transpose(-1, -2)).masked_fill(later, -torch.inf).exp()
    system = (k * strength) @ k.transpose(-1, -2) * pairwise
    right = torch.cat([v * strength, k * (strength * decay.exp())], dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    written, read = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    end = decay[..., -1:, :]
    k_to_end = (k * (end - decay).exp()).transpose(-1, -2)
    kept = end.exp()
    state = torch.zeros_like(k_to_end[0] @ written[0])
    states, updates = [], []
    for chunk in range(chunks):
        update = written[chunk] - read[chunk] @ state
        states.append(state)
        updates.append(update)
        state = state * kept[chunk] + k_to_end[chunk] @ update
    out = (q * decay.exp()) @ torch.stack(states)
    out = out + (q @ k.transpose(-1, -2) * pairwise) @ torch.stack(updates)
    return out.transpose(2, 3).movedim(0, 1).flatten(1, 2)[:, :length]


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _at_least_float32(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
