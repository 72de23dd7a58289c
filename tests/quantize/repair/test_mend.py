"""A checkpoint made without the pair rule is caught and mended, judged by its tensors."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from clefq.clef.small_floats import E4M3, encode_e4m3
from clefq.console import Console
from clefq.quantize.audit import audit_checkpoint
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.repair import RepairError, repair_checkpoint
from clefq.quantize.repair.mend import rescale
from clefq.quantize.repair.refusals import mendable
from clefq.quantize.values import to_bf16
from tests.quantize.conftest import Make

QUIET = Console(quiet=True)
PAIR = ("in_proj_qkv", "in_proj_z")
Tensors = dict[str, torch.Tensor]


def module(layer: int, leaf: str) -> str:
    return f"model.language_model.layers.{layer}.linear_attn.{leaf}"


def served(tensors: Tensors, layer: int, leaf: str) -> torch.Tensor:
    """The weight as a serving engine computes it: the largest divisor of the pair for both."""
    divisors = [tensors[f"{module(layer, name)}.weight_global_scale"] for name in PAIR]
    packed = tensors[f"{module(layer, leaf)}.weight_packed"]
    codes = unpack_fp4_from_uint8(packed, *packed.shape[:1], packed.shape[1] * 2).float()
    scales = tensors[f"{module(layer, leaf)}.weight_scale"].float() / torch.maximum(*divisors)
    return codes * scales.repeat_interleave(16, dim=1)


def error(tensors: Tensors, source: Tensors, layer: int, leaf: str) -> float:
    truth = source[f"{module(layer, leaf)}.weight"].float()
    return float((served(tensors, layer, leaf) - truth).norm() / truth.norm())


def test_the_pair_is_caught_and_its_effect_is_told(unshared: Path) -> None:
    report = audit_checkpoint(unshared)
    tensors = load_file(unshared / "model.safetensors")
    caught = report.of("weight scales")
    assert {b.subject for b in caught} == {module(n, "in_proj_qkvz") for n in (0, 1, 2)}
    for layer, breach in enumerate(caught):
        qkv, z = (float(tensors[f"{module(layer, p)}.weight_global_scale"]) for p in PAIR)
        assert qkv < z  # z has the smaller range in this model
        found = re.search(r"in_proj_qkv ×(\d\.\d+)", breach.effect)
        assert found is not None
        assert float(found[1]) == pytest.approx(qkv / z, abs=1e-3)
    assert not report.of("input scales")


def test_repair_without_source(unshared: Path, source: Path, tmp_path: Path) -> None:
    report = repair_checkpoint(unshared, None, tmp_path / "mended", QUIET)
    before = load_file(unshared / "model.safetensors")
    after = load_file(tmp_path / "mended" / "model.safetensors")
    truth = load_file(source / "model.safetensors")
    assert audit_checkpoint(tmp_path / "mended").passed
    for layer in (0, 1, 2):
        assert error(before, truth, layer, "in_proj_qkv") > 0.3
        assert error(after, truth, layer, "in_proj_qkv") < 0.1
        assert error(after, truth, layer, "in_proj_z") < 0.11
    changed = {n for n in before if not same(before[n], after[n])}
    assert changed == {
        f"{module(layer, 'in_proj_z')}.{suffix}"
        for layer in (0, 1, 2)
        for suffix in ("weight_scale", "weight_global_scale")
    }
    kept = [m for m in report.members if m.method == "kept"]
    assert len(kept) == 3
    assert all(m.after == 0 and m.before == pytest.approx(1 - m.shrink, rel=1e-5) for m in kept)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.view(-1).view(torch.uint8).equal(b.view(-1).view(torch.uint8))


def test_repair_with_source_is_the_correct_run(
    unshared: Path, source: Path, made: Make, tmp_path: Path
) -> None:
    report = repair_checkpoint(unshared, source, tmp_path / "mended", QUIET)
    mended = load_file(tmp_path / "mended" / "model.safetensors")
    right = load_file(made("nvfp4").folder / "model.safetensors")
    assert mended.keys() == right.keys()
    for name, value in right.items():
        # calibration ran on other (damaged) weights, so input scales may differ
        if not name.endswith("input_global_scale"):
            assert same(value, mended[name]), name
    assert len(report.restored) == 11
    assert all("norm" in name for name in report.restored)
    truth = load_file(source / "model.safetensors")
    for m in report.members:
        layer, leaf = int(m.module.split(".")[3]), m.module.rpartition(".")[2]
        assert m.after == pytest.approx(error(mended, truth, layer, leaf), rel=1e-3)


def test_a_clean_checkpoint_is_left_alone(made: Make, tmp_path: Path) -> None:
    report = repair_checkpoint(made("nvfp4").folder, None, tmp_path / "mended", QUIET)
    assert report.folder is None
    assert not (tmp_path / "mended").exists()


def change(folder: Path, edit: Callable[[Tensors], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_what_cannot_be_mended_is_refused(unshared: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(unshared, broken)
    change(
        broken, lambda t: t[f"{module(0, 'in_proj_z')}.weight_scale"].view(torch.uint8).fill_(127)
    )
    with pytest.raises(RepairError, match="group scales"):
        repair_checkpoint(broken, None, tmp_path / "mended", QUIET)
    assert not (tmp_path / "mended").exists()


def test_a_rescale_that_costs_too_much_is_refused(unshared: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(unshared, broken)

    def widen(tensors: Tensors) -> None:
        tensors[f"{module(0, 'in_proj_z')}.weight_global_scale"] *= 2.0**14

    change(broken, widen)
    with pytest.raises(RepairError, match="would change its weights"):
        repair_checkpoint(broken, None, tmp_path / "mended", QUIET)


def test_a_damaged_scale_is_not_taken_for_one_that_was_not_shared(
    made: Make, tmp_path: Path
) -> None:
    """Mending by it would make the damage pass the next audit."""
    broken = tmp_path / "broken"
    for leaf in ("q_proj", "k_proj", "v_proj"):
        for factor in (4.0, 0.25):
            shutil.copytree(made("nvfp4").folder, broken)
            (broken / "clefq.json").unlink()
            name = f"model.language_model.layers.3.self_attn.{leaf}.weight_global_scale"
            change(broken, lambda tensors: tensors[name].mul_(factor))  # noqa: B023
            with pytest.raises(RepairError, match="one of the group's is damaged"):
                repair_checkpoint(broken, None, tmp_path / "mended", QUIET)
            shutil.rmtree(broken)


def test_input_scales_that_no_calibration_gives(made: Make, source: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(made("nvfp4").folder, broken)
    (broken / "clefq.json").unlink()
    name = "model.language_model.layers.0.mlp.up_proj.input_global_scale"
    change(broken, lambda tensors: tensors[name].mul_(2))
    assert repair_checkpoint(broken, None, tmp_path / "mended", QUIET).folder is not None
    change(broken, lambda tensors: tensors[name].mul_(2.0**-8))
    for original in (None, source):
        with pytest.raises(RepairError, match="differ by a factor of 128"):
            repair_checkpoint(broken, original, tmp_path / "again", QUIET)
    change(broken, lambda tensors: tensors[name].fill_(float("nan")))
    with pytest.raises(RepairError, match="cannot mend input scales") as caught:
        repair_checkpoint(broken, source, tmp_path / "again", QUIET)
    assert caught.value.fix is not None


def test_norms_of_another_rounding_are_not_touched(
    unshared: Path, source: Path, tmp_path: Path
) -> None:
    """Where weights are no round-to-nearest, norms may differ on purpose."""
    smoothed = tmp_path / "smoothed"
    shutil.copytree(unshared, smoothed)
    codes = f"{module(1, 'out_proj')}.weight_packed"

    def shift(tensors: Tensors) -> None:
        odd = torch.arange(tensors[codes].numel()).view_as(tensors[codes]) % 50 == 0
        tensors[codes] ^= odd.to(torch.uint8)

    change(smoothed, shift)
    repair_checkpoint(smoothed, source, tmp_path / "rounded", QUIET)  # norms rounded twice
    norm = "model.language_model.layers.1.input_layernorm.weight"
    change(smoothed, lambda tensors: tensors[norm].mul_(1.5))
    with pytest.raises(RepairError, match="on purpose"):
        repair_checkpoint(smoothed, source, tmp_path / "mended", QUIET)


NORM = "model.language_model.layers.1.input_layernorm.weight"


@pytest.mark.parametrize("fact", ["uncompared", "other_rounding"])
def test_norms_come_back_only_where_every_weight_is_proven(fact: str) -> None:
    """SmoothQuant moves scales into the norms: without the weights' proof they must stay."""
    found = AuditReport("folder")
    found.breach("untouched", NORM, "differs from the source")
    assert mendable(found, with_source=True)
    found.facts[fact] = ["model.language_model.layers.1.mlp.up_proj"]
    assert not mendable(found, with_source=True)
    found.facts["rounded_twice"] = [NORM]
    assert mendable(found, with_source=True)
    assert not mendable(found, with_source=False)


def test_without_torch_nothing_unproven_is_restored(
    made: Make, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(made("fp8", "stream").folder, tmp_path / "smoothed")
    (folder / "clefq.json").unlink()
    change(folder, lambda tensors: tensors[NORM].add_(0.25))
    monkeypatch.setattr("clefq.quantize.audit.source.find_spec", lambda name: None)
    assert audit_checkpoint(made("fp8", "stream").folder, source).word == "consistent"
    with pytest.raises(RepairError, match="on purpose"):
        repair_checkpoint(folder, source, tmp_path / "mended", QUIET)


@given(st.lists(st.floats(-4, 4, width=16), min_size=1, max_size=64))
def test_a_norm_rounded_twice_is_what_torch_makes_of_it(values: list[float]) -> None:
    weight = torch.tensor(values).to(torch.bfloat16)
    saved = (1 + weight) - 1
    ours = to_bf16(to_bf16(weight.float().numpy() + np.float32(1)) - np.float32(1))
    assert (torch.from_numpy(ours) == saved.float()).all()


def test_with_the_source_damaged_numbers_are_made_anew(
    made: Make, source: Path, tmp_path: Path
) -> None:
    """A global scale whose codes say what it was, a group scale, a code, a channel's scale."""
    right = {s: load_file(made(s, "stream").folder / "model.safetensors") for s in KINDS}
    for scheme, edits in KINDS.items():
        folder = shutil.copytree(made(scheme, "stream").folder, tmp_path / scheme)
        (folder / "clefq.json").unlink()
        for edit in edits:
            change(folder, edit)
        assert not mendable(audit_checkpoint(folder), with_source=False)
        report = repair_checkpoint(folder, source, tmp_path / f"{scheme}-mended", QUIET)
        assert report.audit is not None and report.audit.word == "sound"
        mended = load_file(tmp_path / f"{scheme}-mended" / "model.safetensors")
        assert all(same(value, mended[name]) for name, value in right[scheme].items())
        assert len(report.remade) == len(edits)


UP, DOWN = (f"model.language_model.layers.0.mlp.{leaf}_proj" for leaf in ("up", "down"))
KINDS: dict[str, list[Callable[[Tensors], object]]] = {
    "nvfp4a16": [
        lambda t: t[f"{DOWN}.weight_global_scale"].mul_(4),
        lambda t: t[f"{UP}.weight_global_scale"].fill_(float("nan")),
        lambda t: t[f"{module(0, 'out_proj')}.weight_scale"].view(torch.uint8)[3, 3:5].fill_(127),
        lambda t: t[f"{module(1, 'out_proj')}.weight_packed"][0, :3].bitwise_xor_(1),
    ],
    "fp8": [lambda t: t[f"{DOWN}.weight_scale"][2:4].mul_(3)],
}


@given(st.lists(st.floats(0, 448), min_size=1, max_size=40))
def test_encoding_e4m3_agrees_with_torch(values: list[float]) -> None:
    ours = encode_e4m3(np.array(values))
    theirs = torch.tensor(values, dtype=torch.float64).to(torch.float32)
    # torch rounds F64 through F32 first; the values are F32 numbers here
    exact = theirs.double().numpy()
    assert encode_e4m3(exact).tolist() == theirs.to(torch.float8_e4m3fn).view(torch.uint8).tolist()
    assert (ours <= 126).all()


@settings(max_examples=50)
@given(st.integers(0, 7), st.lists(st.integers(8, 126), min_size=16, max_size=16))
def test_rescaling_by_a_power_of_two_is_exact(power: int, codes: list[int]) -> None:
    scales = E4M3[np.array(codes, dtype=np.uint8)]
    wanted = scales * np.float32(2.0**-power)
    representable = wanted >= 2.0**-6  # a normal number still
    assert (E4M3[rescale(scales, 2.0**-power)] == wanted)[representable].all()
    assert (E4M3[rescale(scales, 2.0**-power)] > 0).all()
