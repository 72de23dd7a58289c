"""oneshot through clefq: the quantized tensors are oneshot's, everything else is the source's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from clefq.clef.checkpoint import checkpoint_sha256, open_checkpoint, scheme_of
from clefq.clef.family import fused_groups
from clefq.clef.weight_files import open_tensors
from clefq.console import Console
from clefq.quantize.audit import audit_checkpoint
from clefq.quantize.audit.scales import read_global_scale
from clefq.quantize.calibration import load_calibration
from clefq.quantize.manifest import read_build_manifest
from clefq.quantize.model_inputs import calibration_arguments
from clefq.quantize.oneshot_worker import OneshotJob
from clefq.quantize.recipes import bundled_recipe
from clefq.quantize.run import QuantizeSpec, prepare, quantize
from tests.quantize.conftest import Make, run_here
from tests.quantize.models import build_set

COUNTS = {"fp8": 25, "nvfp4a16": 25, "nvfp4": 25, "nvfp4-mlp": 12, "mixed": 25}
SCHEMES = tuple(COUNTS)


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
    assert len(quantized) == COUNTS[scheme]
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
    manifest = read_build_manifest(result.folder)
    assert manifest == result.manifest
    assert manifest.sha256 == checkpoint_sha256(result.folder)
    assert manifest.source["sha256"] == checkpoint_sha256(source)
    assert manifest.audit["passed"] and manifest.audit["breaches"] == 0
    assert (manifest.calibration is None) is (scheme in ("fp8", "nvfp4a16"))
    assert manifest.peak_memory_bytes > 1e8
    assert manifest.bytes["output"] < manifest.bytes["source"]
    for key, folder in (("source", source), ("output", result.folder)):
        files = list(folder.rglob("*.safetensors"))
        assert "joint_head.safetensors" in {path.name for path in files}
        assert manifest.bytes[key] == sum(path.stat().st_size for path in files)


def test_mixed_is_made_of_its_parts(made: Make) -> None:
    """Three layers' MLPs are NVFP4's, the last layer's MLP and every other projection FP8's."""
    mixed = load_file(made("mixed").folder / "model.safetensors")
    four, eight = (load_file(made(s).folder / "model.safetensors") for s in ("nvfp4", "fp8"))
    seen = {"four": 0, "eight": 0}
    for name, value in mixed.items():
        first_mlp = re.search(r"layers\.[012]\.mlp", name) is not None
        part = four if first_mlp else eight
        if name.endswith("input_global_scale"):
            continue
        seen["four" if first_mlp else "eight"] += 1
        assert value.view(-1).view(torch.uint8).equal(part[name].view(-1).view(torch.uint8)), name
    assert seen["four"] == 3 * 3 * 3
    assert made("mixed").manifest.formats == {"w4a4": 9, "w8a8": 16}


def test_images_take_part_in_calibration(
    made: Make, source: Path, image_set: Path, image_file: Path
) -> None:
    """The pixels of a record's image reach the model, at the places of its pad tokens."""
    from transformers import Qwen2VLImageProcessorPil, Qwen3_5ForConditionalGeneration

    calibration = made("nvfp4-mlp").manifest.calibration
    assert calibration is not None
    assert (calibration["images"], calibration["records"]) == (1, 4)
    prompts = json.loads(load_calibration(image_set, source, 16384).to_job())
    arguments = calibration_arguments(prompts, str(source))
    assert arguments["pipeline"] == "basic"
    first, second, *_ = list(arguments["dataset"])
    assert second.keys() == {"input_ids", "attention_mask"}
    processor = Qwen2VLImageProcessorPil.from_pretrained(str(source))
    with Image.open(image_file) as image:
        expected = processor(images=[image], return_tensors="pt")
    assert first["pixel_values"].equal(expected["pixel_values"])
    tokens = int(expected["image_grid_thw"].prod()) // 4
    assert int(first["mm_token_type_ids"].sum()) == tokens
    model = Qwen3_5ForConditionalGeneration.from_pretrained(source, dtype=torch.bfloat16)
    with torch.inference_mode():
        seen = model(**first).logits[:, -1]
        first["pixel_values"] = -first["pixel_values"]
        assert not seen.equal(model(**first).logits[:, -1])


def test_weights_on_disk_give_the_same_bits(
    base: Path, source: Path, calibration_set: Path, made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit into memory is kept on disk; nothing changes. No scores are in memory."""
    masks = _watch_attention(monkeypatch)
    prompts = base / "offload.json"
    prompts.write_text(load_calibration(calibration_set, source, 16384).to_job())
    recipe = base / "offload.yaml"
    recipe.write_text(bundled_recipe("nvfp4", 4).text)
    job = OneshotJob(
        str(source),
        str(recipe),
        str(base / "offloaded"),
        str(prompts),
        offload=str(base / "offload"),
        memory=1_000_000,
    )
    run_here(job, base / "offload.log", lambda step, steps: None)
    assert any((base / "offload").iterdir())
    assert masks and set(masks) == {None}
    ours = load_file(base / "offloaded" / "model.safetensors")
    for name, value in load_file(made("nvfp4").folder / "model.safetensors").items():
        if "_scale" in name or "packed" in name:
            assert value.view(-1).view(torch.uint8).equal(ours[name].view(-1).view(torch.uint8))


def _watch_attention(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Forbids attention that holds every pair of tokens; the masks of what runs instead."""
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

    masks: list[object] = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def watched(*args: torch.Tensor, attn_mask: object = None, **kwargs: object) -> torch.Tensor:
        masks.append(attn_mask)
        return attention(*args, attn_mask=attn_mask, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(modeling, "eager_attention_forward", lambda *_: pytest.fail("eager"))
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    return masks


def test_gptq_by_the_user_s_recipe(source: Path, calibration_set: Path, tmp_path: Path) -> None:
    """Another rounding than to the nearest: scales still shared, and the audit says what it is."""
    recipe = tmp_path / "gptq.yaml"
    text = bundled_recipe("nvfp4a16", 4).text
    recipe.write_text(text.replace("QuantizationModifier:", "GPTQModifier:"))
    spec = QuantizeSpec(str(source), recipe=recipe, calibration=calibration_set)
    result = quantize(spec, tmp_path / "out", Console(quiet=True))
    assert (result.manifest.method, result.manifest.scheme) == ("oneshot", "custom")
    assert len(result.report.facts["other_rounding"]) == 25
    refs = open_tensors(result.folder)
    for group in fused_groups(n.rpartition(".")[0] for n in refs if n.endswith("weight_packed")):
        scales = {read_global_scale(refs, m, "weight_global_scale") for m in group.members}
        assert len(scales) == 1


def test_calibrating_on_an_eval_set_is_said(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = build_set(tmp_path / "set")
    spec = QuantizeSpec(str(source), "nvfp4", calibration=folder)
    prepare(spec, Console())
    assert "eval set" not in capsys.readouterr().err
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    (folder / "manifest.json").write_text(json.dumps(manifest | {"role": "eval"}), "utf-8")
    prepare(spec, Console())
    assert "words is an eval set: judge the result on another one." in capsys.readouterr().err


@pytest.mark.slow
def test_int4_with_a_calibration_set_is_gptq(made: Make, source: Path) -> None:
    ours, nearest = made("int4-gptq").folder, made("int4", "stream").folder
    assert scheme_of(open_checkpoint(ours)) == "int4"
    report = audit_checkpoint(ours, source)
    assert report.passed
    assert any("25 modules are not plain round-to-nearest" in note for note in report.notes)
    # the same tensors of the same shapes, other codes
    a, b = open_tensors(ours), open_tensors(nearest)
    assert {n: (t.dtype, t.shape) for n, t in a.items()} == {
        n: (t.dtype, t.shape) for n, t in b.items()
    }
    packed = [name for name in a if name.endswith(".weight_packed")]
    assert packed
    assert all(a[name].read() != b[name].read() for name in packed)
