"""Roundings beside the plain one: told from damage, and one flipped bit in each is still seen."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file

from clefq.console import Console
from clefq.quantize import kernels
from clefq.quantize.audit import audit_checkpoint
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.audit.tallies import weight_args
from clefq.quantize.repair import repair_checkpoint
from tests.quantize.conftest import Make
from tests.quantize.editing import LAYER, Tensors, edit, edit_config

UP = f"{LAYER}.1.mlp.up_proj"


@pytest.fixture
def fp8(made: Make, tmp_path: Path) -> Path:
    shutil.copytree(made("fp8").folder, tmp_path / "fp8")
    (tmp_path / "fp8" / "clefq.json").unlink()
    return tmp_path / "fp8"


def assert_round_to_nearest(report: AuditReport) -> None:
    assert report.passed, report.breaches
    assert report.facts["other_rounding"] == []
    assert report.notes == ["no clefq.json: file hashes are not known."]
    assert report.counts["quantized"] == 25


def assert_a_flip_is_seen(folder: Path, source: Path) -> None:
    edit(folder, lambda tensors: tensors[f"{UP}.weight"].view(torch.uint8)[5, 9].bitwise_xor_(2))
    (breach,) = audit_checkpoint(folder, source).breaches
    assert (breach.check, breach.subject) == ("quantized", UP)
    assert breach.message.startswith("1 of ")


@pytest.mark.parametrize("wide_scales", [False, True])
def test_quotients_and_scales_in_f32(fp8: Path, source: Path, wide_scales: bool) -> None:
    """GPU kernels take the quotient in F32: about 3% of the codes differ, none is damage."""
    weights = load_file(source / "model.safetensors")
    changed = 0

    def change(tensors: Tensors) -> None:
        nonlocal changed
        for name, codes in tensors.items():
            if codes.dtype == torch.float8_e4m3fn:
                weight = weights[name].float()
                if wide_scales:
                    tensors[f"{name}_scale"] = weight.abs().amax(1, keepdim=True) / 448
                scale = tensors[f"{name}_scale"].float()
                wide = (weight / scale).clamp(-448, 448).to(codes.dtype)
                changed += int((wide.float() != codes.float()).sum())
                tensors[name] = wide

    edit(fp8, change)
    assert changed > 10_000
    assert_round_to_nearest(audit_checkpoint(fp8, source))
    assert_a_flip_is_seen(fp8, source)


def in_blocks(folder: Path, source: Path, size: tuple[int, int], wide: bool) -> None:
    """Quantizes every module anew with one scale per tile, through compressed-tensors."""
    height, width = size
    args = QuantizationArgs(
        num_bits=8, type="float", strategy="block", block_structure=list(size), symmetric=True
    )
    weights = load_file(source / "model.safetensors")

    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(".weight_scale")]:
            weight = weights[name.removesuffix("_scale")]
            weight = weight.float() if wide else weight
            rows = [part.split(width, 1) for part in weight.split(height)]
            low = torch.stack([torch.stack([tile.min() for tile in row]) for row in rows])
            high = torch.stack([torch.stack([tile.max() for tile in row]) for row in rows])
            scale, _ = calculate_qparams(low, high, args)
            codes = quantize(weight, scale, None, args, dtype=torch.float8_e4m3fn)
            tensors[name], tensors[name.removesuffix("_scale")] = scale, codes.contiguous()

    def say(config: dict[str, Any]) -> None:
        for group in config["quantization_config"]["config_groups"].values():
            group["weights"].update(strategy="block", block_structure=list(size))

    edit(folder, change)
    edit_config(folder, say)


@pytest.mark.parametrize(
    ("size", "wide"), [((128, 128), False), ((128, 128), True), ((96, 80), False)]
)
def test_one_scale_per_tile(fp8: Path, source: Path, size: tuple[int, int], wide: bool) -> None:
    """Tiles that fit the weights and tiles that do not; scales in BF16 and in F32."""
    in_blocks(fp8, source, size, wide)
    assert_round_to_nearest(audit_checkpoint(fp8, source))
    assert_a_flip_is_seen(fp8, source)


def test_a_wrong_scale_of_one_tile_is_seen(fp8: Path, source: Path) -> None:
    in_blocks(fp8, source, (128, 128), wide=False)
    edit(fp8, lambda tensors: tensors[f"{UP}.weight_scale"][1, 1].mul_(1.5))
    report = audit_checkpoint(fp8, source)
    assert {(b.check, b.subject) for b in report.breaches} == {("quantized", UP)}


def test_scales_of_another_grid_do_not_fit_the_config(fp8: Path, source: Path) -> None:
    in_blocks(fp8, source, (128, 128), wide=False)

    def say(config: dict[str, Any]) -> None:
        for group in config["quantization_config"]["config_groups"].values():
            group["weights"].update(block_structure=[64, 64])

    edit_config(fp8, say)
    assert {b.check for b in audit_checkpoint(fp8).breaches} == {"config"}


@pytest.mark.parametrize("wide", [True, False])
def test_one_scale_for_a_whole_weight(fp8: Path, source: Path, wide: bool) -> None:
    """Its quotients in F32, or in BF16 as the library's torch code takes them."""
    args = QuantizationArgs(num_bits=8, type="float", strategy="tensor", symmetric=True)
    weights = load_file(source / "model.safetensors")

    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(".weight_scale")]:
            weight = weights[name.removesuffix("_scale")]
            scale, _ = calculate_qparams(weight.min(), weight.max(), args)
            if wide:
                codes = (weight.float() / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
            else:
                codes = quantize(weight, scale, None, args, dtype=torch.float8_e4m3fn)
            tensors[name], tensors[name.removesuffix("_scale")] = scale, codes

    def say(config: dict[str, Any]) -> None:
        for group in config["quantization_config"]["config_groups"].values():
            group["weights"].update(strategy="tensor")

    edit(fp8, change)
    edit_config(fp8, say)
    assert_round_to_nearest(audit_checkpoint(fp8, source))
    assert_a_flip_is_seen(fp8, source)


def test_round_to_nearest_in_f32_arithmetic(made: Make, source: Path, tmp_path: Path) -> None:
    """What llm-compressor makes of a model that was loaded in F32."""
    folder = shutil.copytree(made("nvfp4a16", "stream").folder, tmp_path / "wide")
    (folder / "clefq.json").unlink()
    weights = load_file(source / "model.safetensors")

    def change(tensors: Tensors) -> None:
        for name in [n for n in tensors if n.endswith("down_proj.weight_packed")]:
            module = name.removesuffix("_packed")
            weight = weights[module].float()
            divisor = kernels.global_scale(kernels.absmax(weight))
            packed, scales = kernels.nvfp4_rows(weight, divisor, weight_args("NVFP4A16"))
            tensors[name], tensors[f"{module}_scale"] = packed, scales
            tensors[f"{module}_global_scale"] = divisor

    edit(folder, change)
    report = audit_checkpoint(folder, source)
    assert_round_to_nearest(report)
    assert report.word == "sound"


@pytest.mark.parametrize("suffix", ["weight_packed", "weight_scale"])
def test_searched_scales_are_recomputed(
    made: Make, source: Path, tmp_path: Path, suffix: str
) -> None:
    """Proven code by code, so that one flipped bit is seen, and made anew by a repair."""
    whole = made("nvfp4a16+search", "stream").folder
    report = audit_checkpoint(whole, source)
    assert (report.word, report.facts["other_rounding"], report.notes) == ("sound", [], [])
    assert all(one.exact and one.arithmetic.searched for one in report.recomputed.values())
    assert audit_checkpoint(whole).word == "consistent"
    folder = shutil.copytree(whole, tmp_path / "flipped")
    (folder / "clefq.json").unlink()
    edit(folder, lambda t: t[f"{UP}.{suffix}"].view(torch.uint8)[5, 3].bitwise_xor_(1))
    (breach,) = audit_checkpoint(folder, source).breaches
    assert (breach.check, breach.subject) == ("quantized", UP)
    assert breach.message.startswith("1 of ")
    mended = repair_checkpoint(folder, source, tmp_path / "mended", Console(quiet=True))
    assert mended.remade == [UP]
    ours, theirs = (load_file(f / "model.safetensors") for f in (tmp_path / "mended", whole))
    assert all(ours[n].view(torch.uint8).equal(t.view(torch.uint8)) for n, t in theirs.items())


def test_another_rounding_at_a_wrong_scale_is_seen(
    made: Make, source: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(made("nvfp4a16", "stream").folder, tmp_path / "other")
    (folder / "clefq.json").unlink()
    name = f"{LAYER}.0.mlp.down_proj.weight"

    def shift(tensors: Tensors) -> None:
        odd = torch.arange(tensors[f"{name}_packed"].numel()) % 7 == 0
        tensors[f"{name}_packed"].view(-1).bitwise_xor_(odd.to(torch.uint8))

    edit(folder, shift)
    report = audit_checkpoint(folder, source)
    assert report.passed and len(report.facts["other_rounding"]) == 1
    edit(folder, lambda tensors: tensors[f"{name}_global_scale"].mul_(0.92))
    (breach,) = audit_checkpoint(folder, source).breaches
    assert "times the source on average" in breach.message


@pytest.mark.parametrize("scheme", ["fp8", "int4", "nvfp4a16", "nvfp4a16+search", "int4-gptq"])
def test_another_device_says_what_the_cpu_says(
    made: Make, source: Path, tmp_path: Path, scheme: str
) -> None:
    """`cpu:0` takes the way of a GPU: other blocks, first rows on the CPU, what differs as well."""
    method = "oneshot" if scheme == "int4-gptq" else "stream"
    folder = shutil.copytree(made(scheme, method).folder, tmp_path / "flipped")
    (folder / "clefq.json").unlink()

    def same() -> AuditReport:
        here, there = (audit_checkpoint(folder, source, device=d) for d in ("cpu", "cpu:0"))
        assert here == there
        return there

    assert same().passed
    suffix = "weight" if scheme == "fp8" else "weight_packed"
    edit(folder, lambda t: t[f"{UP}.{suffix}"].view(torch.uint8)[-5, 3].bitwise_xor_(1))
    assert same().passed == (scheme == "int4-gptq")


def test_a_device_that_rounds_otherwise_proves_nothing(
    made: Make, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It agrees with the codes that it made itself; the first rows on the CPU do not."""
    from clefq.quantize.audit import rounding
    from clefq.quantize.audit.tallies import Comparison

    folder = shutil.copytree(made("fp8", "stream").folder, tmp_path / "own")
    (folder / "clefq.json").unlink()
    edit(folder, lambda t: t[f"{UP}.weight"].view(torch.uint8)[5, :9].bitwise_xor_(1))
    honest = rounding._compare

    def compare(module: str, scheme: Any, sides: Any, members: tuple[str, ...]) -> Comparison:
        if sides.device == "cpu":
            return honest(module, scheme, sides, members)
        return Comparison(module, 1, 0, 0, 0.0)

    monkeypatch.setattr(rounding, "_compare", compare)
    (breach,) = audit_checkpoint(folder, source, device="cpu:0").breaches
    assert (breach.subject, breach.message[:5]) == (UP, "9 of ")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("scheme", ["fp8", "int8", "int4", "nvfp4a16", "nvfp4a16+search"])
def test_a_gpu_proves_what_a_cpu_made(
    made: Make, source: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """Every module is exact on the GPU itself: none is left to the CPU."""
    from clefq.quantize.audit import rounding
    from clefq.quantize.audit.tallies import Comparison

    honest, devices = rounding._compare, []

    def compare(module: str, scheme: Any, sides: Any, members: tuple[str, ...]) -> Comparison:
        devices.append(sides.device)
        return honest(module, scheme, sides, members)

    monkeypatch.setattr(rounding, "_compare", compare)
    report = audit_checkpoint(made(scheme, "stream").folder, source, device="cuda")
    assert report.word == "sound" and set(devices) == {"cuda"}
