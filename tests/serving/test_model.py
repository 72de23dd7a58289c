"""The model refuses a kernel that it does not fit, whoever started vLLM."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.serve
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from clefq.serving.model import check_deltanet  # noqa: E402

SMALL = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
LARGE = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}


class Layer(torch.nn.Module):
    def __init__(self, backend: str) -> None:
        super().__init__()
        self.gdn_prefill_backend = backend


def test_flashinfer_with_heads_of_another_size() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Layer("flashinfer"))
    check_deltanet(model, LARGE)
    check_deltanet(torch.nn.Sequential(Layer("triton")), SMALL)
    with pytest.raises(ValueError, match="--gdn-prefill-backend triton"):
        check_deltanet(model, SMALL)
