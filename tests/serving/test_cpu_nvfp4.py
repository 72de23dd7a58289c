"""The CPU's stand-in kernels, against a slow reference that searches value tables."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from clefq.serving.cpu_nvfp4 import quantize_activations, round_e2m1, unpack_e2m1  # noqa: E402
from tests.engines.quantizing import E2M1, nearest, reference_nvfp4  # noqa: E402


def test_rounding_is_to_nearest_with_ties_to_even() -> None:
    values = np.concatenate([np.linspace(-8, 8, 6401), [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]])
    ours = round_e2m1(torch.tensor(values, dtype=torch.float32)).numpy()
    np.testing.assert_array_equal(ours, nearest(values.astype(np.float32), E2M1))


def test_nibbles_unpack_low_first() -> None:
    packed = torch.tensor([[0x10, 0xF7]], dtype=torch.uint8)
    np.testing.assert_array_equal(unpack_e2m1(packed).numpy(), [[0.0, 0.5, 6.0, -6.0]])


def test_activations_are_quantized_as_the_format_says() -> None:
    generator = torch.Generator().manual_seed(0)
    values = (
        torch.randn(7, 64, generator=generator)
        * torch.tensor([1e-3, 1.0, 40.0, 1, 1, 0, 9])[:, None]
    )
    divisor = torch.tensor(448.0 * 6.0 / 50.0)
    ours = quantize_activations(values, divisor).double().numpy() / float(divisor)
    expected = reference_nvfp4(values.double().numpy(), float(divisor))
    # the reference rounds in float64: a tie in one may be a near-tie in the other
    same = np.isclose(ours, expected, rtol=1e-6, atol=0)
    assert same.mean() > 0.999
    assert np.isfinite(ours).all()


def test_ties_fall_as_in_the_simulation_of_the_transformers_engine() -> None:
    from clefq.engines.simulation import Nvfp4Inputs

    generator = torch.Generator().manual_seed(1)
    values = torch.randn(500, 64, generator=generator).bfloat16()
    for amax in (3.3, 9.0, 12.7):
        divisor = torch.tensor(448.0 * 6.0 / amax)
        theirs, _ = Nvfp4Inputs(float(divisor)).quantize(values)
        assert torch.equal(quantize_activations(values, divisor), theirs)
