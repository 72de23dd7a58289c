"""The order of scales and codes: told where rows, columns and neurons differ, else listed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from clefq.clef.config_match import NVFP4, ModuleFormat
from clefq.clef.tensor_files import read_header
from clefq.quantize.audit import order
from clefq.quantize.audit.report import AuditReport

W4A16 = ModuleFormat(NVFP4, 4, "float", "tensor_group", 16, None)
HIDDEN, WIDTH, LAYERS = 128, 256, 6


def neurons(uneven: float, seed: int) -> dict[str, torch.Tensor]:
    """MLPs whose neurons differ in size by e^±uneven, as NVFP4 numbers."""
    rng, found = np.random.default_rng(seed), {}
    for layer in range(LAYERS):
        sizes = np.exp(uneven * rng.normal(size=WIDTH))
        mlp = f"model.language_model.layers.{layer}.mlp"
        for leaf, shape, by in (
            ("gate_proj", (WIDTH, HIDDEN), sizes[:, None]),
            ("up_proj", (WIDTH, HIDDEN), sizes[:, None]),
            ("down_proj", (HIDDEN, WIDTH), sizes[None]),
        ):
            weight = rng.normal(size=shape) * by
            groups = np.abs(weight).reshape(shape[0], -1, 16)
            scales = groups.max(-1) / 6
            codes = np.rint(groups / scales[..., None]).clip(0, 6).reshape(shape)
            # magnitudes 0, 1, 2, 3, 4, 6: near enough to E2M1's grid
            nibbles = np.array([0, 2, 4, 5, 6, 6, 7], dtype=np.uint8)[codes.astype(int)]
            packed = nibbles[:, ::2] | (nibbles[:, 1::2] << 4)
            found[f"{mlp}.{leaf}.weight_packed"] = torch.from_numpy(packed)
            scaled = torch.from_numpy(scales * 8).to(torch.float8_e4m3fn)
            found[f"{mlp}.{leaf}.weight_scale"] = scaled
            found[f"{mlp}.{leaf}.weight_global_scale"] = torch.tensor([8.0])
    return found


def audited(folder: Path, content: dict[str, torch.Tensor]) -> AuditReport:
    save_file(content, folder / "model.safetensors")
    refs = read_header(folder / "model.safetensors")
    report = AuditReport("")
    modules = [name.removesuffix(".weight_scale") for name in refs if name.endswith("weight_scale")]
    order.check(report, refs, dict.fromkeys(modules, W4A16))
    return report


def swizzled(scales: torch.Tensor) -> torch.Tensor:
    rows, groups = scales.shape
    tiles = scales.view(torch.uint8).reshape(rows // 128, 4, 32, groups // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(rows, groups).view(torch.float8_e4m3fn)


def test_a_sound_order_is_proven(tmp_path: Path) -> None:
    report = audited(tmp_path, neurons(0.3, 0))
    assert (report.breaches, report.unproven) == ([], [])


@pytest.mark.parametrize(
    ("suffix", "change", "check"),
    [
        ("weight_scale", swizzled, "group scales"),
        ("weight_packed", lambda codes: (codes << 4) | (codes >> 4), "values"),
    ],
)
def test_another_order_is_a_breach(tmp_path: Path, suffix: str, change, check: str) -> None:  # type: ignore[no-untyped-def]
    content = neurons(0.3, 1)
    content = {
        name: change(value).contiguous() if name.endswith(suffix) else value
        for name, value in content.items()
    }
    report = audited(tmp_path, content)
    assert [breach.check for breach in report.breaches] == [check]
    assert report.causes()[0].subject == f"every {suffix}"


@pytest.mark.parametrize("seed", range(6))
def test_even_weights_tell_nothing_and_raise_no_alarm(tmp_path: Path, seed: int) -> None:
    report = audited(tmp_path, neurons(0.0, seed))
    assert report.breaches == []
    assert "the order of group scales and codes" in report.unproven[0]


def test_certainty_needs_most_layers() -> None:
    assert order._certain([20.0, 20.0, -1.0]) == 0
    assert order._certain([5.0] * 10) == 1
    assert order._certain([-5.0, None, -5.0, -5.0]) == -1
    assert order._certain([None]) == 0
