"""The training layers compute what the reference layers compute, gradients included."""

import pytest
import torch

from tools.nano.lean import gated_delta_rule


@pytest.mark.parametrize("length", [1, 63, 64, 200])
def test_gated_delta_rule_equals_the_reference(length: int) -> None:
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

    torch.manual_seed(length)
    shape = (2, length, 3)
    inputs = [torch.randn(*shape, 16) for _ in range(3)]
    inputs += [-torch.rand(*shape) * 0.5, torch.rand(*shape)]
    pull = torch.randn(*shape, 16)
    results = []
    for rule in (gated_delta_rule, torch_recurrent_gated_delta_rule):
        leaves = [x.clone().requires_grad_() for x in inputs]
        query, key, value, g, beta = leaves
        out, _ = rule(
            query,
            key,
            value,
            g=g,
            beta=beta,
            initial_state=None,
            output_final_state=False,
            use_qk_l2norm_in_kernel=True,
        )
        (out * pull).sum().backward()
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, rtol=2e-4, atol=2e-5)
