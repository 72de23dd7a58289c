"""oneshot through clefq: the quantized tensors are oneshot's, everything else is the source's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from clefq.clef.checkpoint import checkpoint_sha256, open_checkpoint, scheme_of
from clefq.quantize.audit_scales import read_global_scale
from clefq.quantize.fusion import fused_groups
from clefq.quantize.manifest import read_manifest
from clefq.quantize.tensors import open_tensors
from tests.quantize.conftest import Make

SCHEMES = ("fp8", "nvfp4a16", "nvfp4")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_untouched_tensors_are_bit_equal_to_the_source(
    made: Make, source: Path, scheme: str
) -> None:
    ours = load_file(made(scheme).folder / "model.safetensors")
    theirs = load_file(source / "model.safetensors")
    kept = [name for name in theirs if name in ours and ours[name].dtype == theirs[name].dtype]
    assert any("norm" in name for name in kept)
    for name in kept:
        assert ours[name].view(-1).equal(theirs[name].view(-1)), name
    quantized = set(theirs) - set(kept)
    assert len(quantized) == 25
    assert not any("norm" in name or "visual" in name or "lm_head" in name for name in quantized)


@pytest.mark.parametrize("scheme", ["nvfp4a16", "nvfp4"])
def test_global_scales_are_shared_in_every_fused_group(made: Make, scheme: str) -> None:
    refs = open_tensors(made(scheme).folder)
    modules = [n.removesuffix(".weight_packed") for n in refs if n.endswith(".weight_packed")]
    groups = fused_groups(modules)
    assert {group.fused for group in groups} == {"qkv_proj", "gate_up_proj", "in_proj_qkvz"}
    for group in groups:
        for suffix in ("weight_global_scale", "input_global_scale"):
            values = {read_global_scale(refs, member, suffix) for member in group.members}
            assert len(values) == 1, (group.name, suffix, values)
            assert (None in values) is (suffix == "input_global_scale" and scheme == "nvfp4a16")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_folder_is_a_whole_checkpoint(made: Make, source: Path, scheme: str) -> None:
    result = made(scheme)
    checkpoint = open_checkpoint(result.folder)
    assert scheme_of(checkpoint) == scheme
    for name in ("joint_head.safetensors", "joint_schema_model.py", "tokenizer.json", "LICENSE"):
        assert (result.folder / name).read_bytes() == (source / name).read_bytes()
    for name in ("model.safetensors.index.json", "recipe.yaml", "clefq.json"):
        assert (result.folder / name).is_file()
    config = json.loads((result.folder / "config.json").read_text())
    quantization = config.pop("quantization_config")
    assert config == json.loads((source / "config.json").read_text())
    assert quantization["quant_method"] == "compressed-tensors"
    assert "lm_head" in quantization["ignore"]
    assert not list(result.folder.glob(".*"))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_manifest_records_source_recipe_and_hashes(
    made: Make, source: Path, scheme: str
) -> None:
    result = made(scheme)
    manifest = read_manifest(result.folder)
    assert manifest == result.manifest
    assert manifest.sha256 == checkpoint_sha256(result.folder)
    assert manifest.source["sha256"] == checkpoint_sha256(source)
    assert manifest.audit["passed"] and manifest.audit["breaches"] == 0
    assert (manifest.calibration is None) is (scheme != "nvfp4")
    assert manifest.peak_memory_bytes > 1e8
    assert manifest.bytes["output"] < manifest.bytes["source"]
