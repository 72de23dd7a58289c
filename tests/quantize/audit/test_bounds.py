"""Sizes that scales imply, held against what no weight and no activation can have. No model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from clefq.clef.config_match import FP8, NVFP4, ModuleFormat
from clefq.clef.tensor_files import read_header
from clefq.quantize.audit import bounds
from clefq.quantize.audit.report import AuditReport

LAYER = "model.language_model.layers"
W4A4 = ModuleFormat(NVFP4, 4, "float", "tensor_group", 16, (4, "local"), "tensor_group")
STATIC = ModuleFormat(FP8[0], 8, "float", "tensor", None, (8, False), "tensor")
CHANNEL = ModuleFormat(FP8[0], 8, "float", "channel", None, (8, True), "token")
LEAVES = {
    "self_attn.q_proj": 6.0,
    "self_attn.k_proj": 6.0,
    "self_attn.v_proj": 6.0,
    "self_attn.o_proj": 20.0,
    "mlp.gate_proj": 5.0,
    "mlp.up_proj": 5.0,
    "mlp.down_proj": 150.0,
}
Tensors = dict[str, torch.Tensor]


def tensors(scheme: ModuleFormat, layers: int = 5) -> Tensors:
    """Scales and norms as of a sound checkpoint: weights up to 0.4, inputs as in `LEAVES`."""
    found: Tensors = {}
    for layer in range(layers):
        for leaf, reach in LEAVES.items():
            module, wide = f"{LAYER}.{layer}.{leaf}", 0.4 * (1 + layer / 10)
            reach *= 1 + layer / 10
            if scheme.format == NVFP4:
                found[f"{module}.weight_packed"] = torch.zeros(64, 128, dtype=torch.uint8)
                scales = torch.full((64, 16), 300.0)
                found[f"{module}.weight_scale"] = scales.to(torch.float8_e4m3fn)
                found[f"{module}.weight_global_scale"] = torch.tensor([2688 / wide])
                found[f"{module}.input_global_scale"] = torch.tensor([2688 / reach])
                continue
            found[f"{module}.weight"] = torch.zeros(64, 256, dtype=torch.float8_e4m3fn)
            shape = (64, 1) if scheme.strategy == "channel" else (1,)
            found[f"{module}.weight_scale"] = torch.full(shape, wide / 448)
            if scheme is STATIC:
                found[f"{module}.input_scale"] = torch.tensor([reach / 448])
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{LAYER}.{layer}.{norm}.weight"] = torch.linspace(-0.3, 0.2, 256).bfloat16()
    return found


def audited(folder: Path, scheme: ModuleFormat, content: Tensors) -> AuditReport:
    save_file(content, folder / "model.safetensors")
    refs = read_header(folder / "model.safetensors")
    modules = [name.removesuffix(".weight_scale") for name in refs if name.endswith("weight_scale")]
    report = AuditReport("")
    schemes = dict.fromkeys(modules, scheme)
    bounds.weights(report, refs, schemes)
    bounds.inputs(report, refs, schemes)
    bounds.norms(report, refs)
    return report


@pytest.mark.parametrize("scheme", [W4A4, STATIC, CHANNEL])
def test_sound_scales(tmp_path: Path, scheme: ModuleFormat) -> None:
    report = audited(tmp_path, scheme, tensors(scheme))
    assert report.breaches == [] and report.notes == []
    assert bool(report.unproven) is (scheme is not CHANNEL)


def invert(content: Tensors, suffix: str) -> None:
    for name in content:
        if name.endswith(suffix):
            content[name] = (1 / content[name].float()).to(content[name].dtype)


@pytest.mark.parametrize(
    ("scheme", "suffix", "count"),
    [
        (W4A4, "weight_global_scale", 35),
        (W4A4, "input_global_scale", 35),
        (STATIC, "weight_scale", 35),
        (STATIC, "input_scale", 30),  # down_proj's reciprocals are possible, and listed
        (CHANNEL, "weight_scale", 35),
    ],
)
def test_every_scale_inverted(
    tmp_path: Path, scheme: ModuleFormat, suffix: str, count: int
) -> None:
    content = tensors(scheme)
    invert(content, suffix)
    report = audited(tmp_path, scheme, content)
    assert len(report.breaches) == count
    assert all("reciprocal" in breach.message for breach in report.breaches)
    if count < 35:
        assert any("5 projections (down_proj)" in line for line in report.unproven)


@pytest.mark.parametrize("factor", [30.0, 1 / 3000])
@pytest.mark.parametrize("scheme", [W4A4, STATIC, CHANNEL])
def test_one_weight_scale_of_another_size(
    tmp_path: Path, scheme: ModuleFormat, factor: float
) -> None:
    content = tensors(scheme)
    name = f"{LAYER}.2.self_attn.o_proj." + (
        "weight_global_scale" if scheme is W4A4 else "weight_scale"
    )
    content[name] *= 1 / factor if scheme is W4A4 else factor
    (breach,) = audited(tmp_path, scheme, content).breaches
    assert breach.subject == name
    assert "times as large as in other layers" in breach.message


def test_input_scales_that_nobody_measured(tmp_path: Path) -> None:
    content = tensors(W4A4)
    for name in content:
        if name.endswith("input_global_scale"):
            content[name].fill_(2688)
    report = audited(tmp_path, W4A4, content)
    assert [b.subject for b in report.breaches] == ["every input scale"]


def test_members_of_a_static_fp8_product(tmp_path: Path) -> None:
    content = tensors(STATIC)
    content[f"{LAYER}.1.mlp.up_proj.input_scale"] /= 30
    subjects = {breach.subject for breach in audited(tmp_path, STATIC, content).breaches}
    assert f"{LAYER}.1.mlp.gate_up_proj" in subjects


def test_a_norm_stored_as_one_plus_w_gets_a_word(tmp_path: Path) -> None:
    content = tensors(CHANNEL)
    content[f"{LAYER}.3.input_layernorm.weight"] += 1
    (note,) = audited(tmp_path, CHANNEL, content).notes
    assert "stored as 1 + w" in note


def test_the_bounds_hold_for_any_input() -> None:
    """What the formulas rest on: an RMSNorm's output, whatever comes in."""
    rng = np.random.default_rng(0)
    gain = 1 + rng.normal(0, 0.4, 64)
    lower = (gain.size / np.sum(gain**-2)) ** 0.5
    upper = gain.size**0.5 * np.abs(gain).max()
    spikes = np.eye(64) * 100 + rng.normal(0, 0.01, (64, 64))
    for rows in (rng.normal(0, 1, (500, 64)), spikes, np.ones((1, 64)), 1 / gain[None]):
        out = rows / np.sqrt((rows**2).mean(1, keepdims=True)) * gain
        reach = np.abs(out).max(1)
        assert (reach >= lower * (1 - 1e-9)).all() and (reach <= upper * (1 + 1e-9)).all()
