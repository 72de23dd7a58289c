"""The audit: every kind of damage is caught, and nothing sound is called damaged."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from clefq.clef.weight_files import open_tensors
from clefq.errors import CheckpointError
from clefq.quantize.audit import audit_checkpoint
from clefq.quantize.audit.report import CHECKS, AuditReport
from tests.quantize.conftest import Make
from tests.quantize.editing import LAYER, Tensors, edit, edit_config


def checks(report: AuditReport) -> set[str]:
    return {breach.check for breach in report.breaches}


@pytest.mark.parametrize("scheme", ["fp8", "nvfp4a16", "nvfp4", "nvfp4-mlp", "mixed"])
def test_what_clefq_makes_is_clean(made: Make, source: Path, scheme: str) -> None:
    report = audit_checkpoint(made(scheme).folder, source)
    assert report.passed, report.breaches
    expected = set(CHECKS)
    if scheme in ("fp8", "nvfp4a16"):
        expected -= {"input scales"}
    if scheme == "fp8":
        expected -= {"weight scales"}
    assert set(report.counts) == expected
    assert report.counts["untouched"] + report.counts["quantized"] == len(open_tensors(source))
    assert report.notes == []


def test_a_bit_flipped_anywhere_is_caught_with_the_source(
    made: Make, source: Path, tmp_path: Path
) -> None:
    """One bit of every kind of tensor, without the help of recorded hashes."""
    rng = random.Random(1)
    kinds: dict[tuple[str, str, str], str] = {}
    for scheme in ("nvfp4", "fp8"):
        for name in open_tensors(made(scheme).folder):
            parts = name.split(".")
            kinds[scheme, parts[-2] if len(parts) > 1 else "", parts[-1]] = name
    for (scheme, leaf, suffix), name in kinds.items():
        if suffix == "input_global_scale" and leaf in ("o_proj", "out_proj", "down_proj"):
            continue  # calibrated and alone in its product: only the recorded hash knows it
        folder = tmp_path / "flipped"
        shutil.copytree(made(scheme).folder, folder)
        (folder / "clefq.json").unlink()
        ref = open_tensors(folder)[name]
        with ref.file.open("r+b") as file:
            at = ref.begin + rng.randrange(ref.nbytes)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << rng.randrange(8)]))
        report = audit_checkpoint(folder, source)
        where = {b.subject for b in report.breaches}
        assert any(name.startswith(s) or s.startswith(name.rsplit(".", 2)[0]) for s in where), name
        shutil.rmtree(folder)


def test_recorded_hashes_catch_a_flipped_bit_without_the_source(made: Make, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made("nvfp4").folder, folder)
    ref = open_tensors(folder)[f"{LAYER}.3.self_attn.o_proj.input_global_scale"]
    with ref.file.open("r+b") as file:
        file.seek(ref.begin)
        byte = file.read(1)[0]
        file.seek(ref.begin)
        file.write(bytes([byte ^ 1]))
    assert checks(audit_checkpoint(folder)) == {"manifest"}


@pytest.mark.parametrize("value", [None, [], "x"])
def test_a_manifest_of_the_wrong_types(made: Make, tmp_path: Path, value: object) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made("fp8").folder, folder)
    body = json.loads((folder / "clefq.json").read_text())
    (folder / "clefq.json").write_text(json.dumps(body | {"files": value}))
    with pytest.raises(CheckpointError, match="files must be a mapping"):
        audit_checkpoint(folder)


def test_a_file_that_clefq_did_not_write_is_seen(made: Make, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made("fp8").folder, folder)
    (folder / "README.md").write_text("a card")
    assert audit_checkpoint(folder).passed
    (folder / "clef_head").mkdir()
    shutil.copy(folder / "joint_head.safetensors", folder / "clef_head")
    # transformers would run the one and add the other
    (folder / "modeling_clef.py").touch()
    (folder / "adapter_config.json").touch()
    breaches = audit_checkpoint(folder).breaches
    assert {breach.check for breach in breaches} == {"manifest"}
    assert [breach.subject for breach in breaches] == [
        "adapter_config.json",
        "clef_head/joint_head.safetensors",
        "modeling_clef.py",
    ]


def test_unequal_input_scales(copy: Path) -> None:
    name = f"{LAYER}.0.mlp.up_proj.input_global_scale"
    edit(copy, lambda tensors: tensors[name].mul_(2))
    (breach,) = audit_checkpoint(copy).breaches
    assert (breach.check, breach.subject) == ("input scales", f"{LAYER}.0.mlp.gate_up_proj")
    assert "gate_proj ×0.500" in breach.effect


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0, 1e30, 1e-30])
@pytest.mark.parametrize("suffix", ["weight_global_scale", "input_global_scale"])
def test_impossible_global_scales(copy: Path, value: float, suffix: str) -> None:
    name = f"{LAYER}.0.mlp.down_proj.{suffix}"
    edit(copy, lambda tensors: tensors[name].fill_(value))
    (breach,) = audit_checkpoint(copy).breaches
    assert breach.subject == name


@pytest.mark.parametrize(("code", "words"), [(0x7F, "NaN"), (0x80 | 60, "negative"), (0, "zero")])
def test_impossible_group_scales(copy: Path, code: int, words: str) -> None:
    name = f"{LAYER}.1.mlp.down_proj.weight_scale"
    edit(copy, lambda tensors: tensors[name].view(torch.uint8)[3, 2].fill_(code))
    (breach,) = audit_checkpoint(copy).of("group scales")
    assert breach.subject == name
    assert words in breach.message
    assert breach.message.startswith("1 ")


def test_impossible_fp8_scales(made: Make, tmp_path: Path) -> None:
    """Those of rows, and those of inputs where the config says that they are static."""
    folder = tmp_path / "static"
    shutil.copytree(made("fp8").folder, folder)
    (folder / "clefq.json").unlink()
    static = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    edit_config(
        folder,
        lambda c: c["quantization_config"]["config_groups"]["group_0"].update(
            input_activations=static
        ),
    )

    def add(tensors: Tensors) -> None:
        for i, name in enumerate([n for n in tensors if n.endswith(".weight_scale")]):
            scale = torch.full((1,), 0.02 + 1e-4 * i)
            tensors[name.replace("weight_scale", "input_scale")] = scale

    edit(folder, add)
    assert audit_checkpoint(folder).passed
    for suffix, value in [
        ("input_scale", float("nan")),
        ("input_scale", -0.02),
        ("input_scale", 0.0),
        ("weight_scale", 2.0**60),
        ("weight_scale", 2.0**-60),
    ]:
        name = f"{LAYER}.1.mlp.down_proj.{suffix}"
        before = load_file(folder / "model.safetensors")[name]
        edit(folder, lambda tensors: tensors[name].view(-1)[0].fill_(value))  # noqa: B023
        (breach,) = audit_checkpoint(folder).breaches
        assert breach.subject == name
        edit(folder, lambda tensors: tensors[name].copy_(before))  # noqa: B023


def test_a_flipped_exponent_is_seen_without_the_source(copy: Path) -> None:
    name = f"{LAYER}.2.input_layernorm.weight"
    edit(copy, lambda tensors: tensors[name].view(torch.int16)[7].bitwise_xor_(1 << 14))
    (breach,) = audit_checkpoint(copy).breaches
    assert (breach.check, breach.subject) == ("values", name)


def test_nan_in_an_unquantized_tensor(copy: Path) -> None:
    name = f"{LAYER}.2.input_layernorm.weight"
    edit(copy, lambda tensors: tensors[name][5].fill_(float("nan")))
    (breach,) = audit_checkpoint(copy).breaches
    assert (breach.check, breach.subject) == ("values", name)


def test_missing_and_surplus_tensors(copy: Path) -> None:
    def change(tensors: Tensors) -> None:
        del tensors[f"{LAYER}.0.input_layernorm.weight"]
        del tensors[f"{LAYER}.1.mlp.up_proj.weight_scale"]
        tensors[f"{LAYER}.1.mlp.up_proj.weight"] = torch.ones(512, 256, dtype=torch.bfloat16)
        tensors["model.language_model.language_model.norm.weight"] = torch.zeros(2)

    edit(copy, change)
    subjects = {(b.check, b.subject) for b in audit_checkpoint(copy).breaches}
    assert subjects == {
        ("coverage", f"{LAYER}.0.input_layernorm.weight"),
        ("config", f"{LAYER}.1.mlp.up_proj.weight_scale"),
        ("config", f"{LAYER}.1.mlp.up_proj.weight"),
        ("files", "model.language_model.language_model.norm.weight"),
        ("coverage", "model.language_model.language_model.norm.weight"),
    }


def test_a_config_without_its_quantization(copy: Path) -> None:
    edit_config(copy, lambda config: config.pop("quantization_config"))
    assert "config" in checks(audit_checkpoint(copy))


def test_lm_head_quantized_by_the_config(copy: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        config["quantization_config"]["ignore"].remove("lm_head")

    edit_config(copy, change)
    report = audit_checkpoint(copy)
    assert [b.subject for b in report.of("protected")] == ["lm_head"]


def test_a_group_split_over_two_formats(copy: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        config["quantization_config"]["ignore"].append(f"{LAYER}.3.self_attn.v_proj")

    edit_config(copy, change)
    report = audit_checkpoint(copy)
    (breach,) = report.of("formats")
    assert breach.subject == f"{LAYER}.3.self_attn.qkv_proj"
    assert "v_proj bf16" in breach.message


def test_the_head_of_another_release(copy: Path, source: Path) -> None:
    head = load_file(copy / "joint_head.safetensors")
    save_file(head, copy / "joint_head.safetensors", metadata={"written": "anew"})
    report = audit_checkpoint(copy, source)
    assert report.passed
    assert any("written anew" in note for note in report.notes)
    next(iter(head.values())).view(-1)[0] += 1
    save_file(head, copy / "joint_head.safetensors")
    report = audit_checkpoint(copy, source)
    assert [b.subject for b in report.breaches] == ["joint_head.safetensors"]


def test_a_backbone_without_head_and_draft_tensors(copy: Path) -> None:
    (copy / "joint_head.safetensors").unlink()
    edit(copy, lambda tensors: tensors.update({"mtp.fc.weight": torch.zeros(2, 2)}))
    report = audit_checkpoint(copy)
    assert report.passed
    assert any("not a Clef" in note for note in report.notes)
    assert any("MTP" in note for note in report.notes)


def test_another_model_s_weights(copy: Path, source: Path) -> None:
    name = f"{LAYER}.0.mlp.down_proj.weight_packed"
    edit(copy, lambda tensors: tensors[name].copy_(tensors[name].flip(0).clone()))
    report = audit_checkpoint(copy, source)
    (breach,) = report.of("quantized")
    assert "away from the source" in breach.message


def test_damage_too_large_for_a_few_bits_and_too_small_for_the_norm(
    made: Make, source: Path, tmp_path: Path
) -> None:
    """Rows lost, or codes hit at random: no rounding, though the relative error stays small."""
    cases = [
        ("nvfp4", "weight_packed", "rows", 0.01),
        ("nvfp4", "weight_packed", "codes", 0.005),
        ("fp8", "weight", "rows", 0.002),
    ]
    for scheme, suffix, how, share in cases:
        folder = tmp_path / f"{scheme}-{how}"
        shutil.copytree(made(scheme).folder, folder)
        (folder / "clefq.json").unlink()

        def change(
            tensors: Tensors, how: str = how, share: float = share, suffix: str = suffix
        ) -> None:
            codes = tensors[f"{LAYER}.0.mlp.up_proj.{suffix}"].view(torch.uint8)
            if how == "rows":
                codes[: max(1, int(share * len(codes)))].fill_(0)
            else:
                at = torch.randperm(codes.numel())[: int(share * codes.numel())]
                codes.view(-1)[at] ^= 0x88

        edit(folder, change)
        (breach,) = audit_checkpoint(folder, source).breaches
        assert breach.subject == f"{LAYER}.0.mlp.up_proj"
        assert "than any rounding puts them" in breach.message, (scheme, how)


def test_one_fp8_scale_for_a_whole_weight_is_compared_too(
    made: Make, source: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "tensor"
    shutil.copytree(made("fp8").folder, folder)
    (folder / "clefq.json").unlink()
    weights = load_file(source / "model.safetensors")

    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(".weight_scale")]:
            weight = weights[name.removesuffix("_scale")].float()
            scale = (weight.abs().max() / 448).to(torch.bfloat16)
            codes = (weight / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
            tensors[name], tensors[name.removesuffix("_scale")] = scale.view(1), codes

    edit(folder, change)
    edit_config(
        folder,
        lambda c: [
            g["weights"].update(strategy="tensor")
            for g in c["quantization_config"]["config_groups"].values()
        ],
    )
    assert audit_checkpoint(folder, source).passed
    name = f"{LAYER}.0.mlp.up_proj.weight"
    edit(folder, lambda tensors: tensors[name].view(torch.uint8)[3].fill_(0))
    assert [b.subject for b in audit_checkpoint(folder, source).breaches] == [name[:-7]]


def test_a_quantized_checkpoint_is_no_source_of_itself(made: Make) -> None:
    for scheme in ("fp8", "nvfp4"):
        report = audit_checkpoint(made(scheme).folder, made(scheme).folder)
        (breach,) = report.of("quantized")
        assert "is quantized itself" in breach.message


@pytest.mark.parametrize(
    ("key", "value"), [("rms_norm_eps", 1e-5), ("attn_output_gate", False), ("hidden_act", "gelu")]
)
def test_a_config_that_is_not_the_source_s(
    copy: Path, source: Path, key: str, value: object
) -> None:
    def change(config: dict[str, Any]) -> None:
        config["text_config"][key] = value

    edit_config(copy, change)
    report = audit_checkpoint(copy, source)
    assert {(b.check, b.subject) for b in report.breaches} == {("head", "config.json")}


def test_a_config_written_anew_with_its_defaults_is_the_source_s(copy: Path, source: Path) -> None:
    from transformers import Qwen3_5Config

    body = json.loads((copy / "config.json").read_text())
    plain = {k: v for k, v in body.items() if k != "quantization_config"}
    anew = json.loads(json.dumps(Qwen3_5Config.from_dict(plain).to_dict(), default=str))
    anew["quantization_config"] = body["quantization_config"]
    (copy / "config.json").write_text(json.dumps(anew))
    assert audit_checkpoint(copy, source).breaches == []


def test_an_image_processor_that_is_not_the_source_s(copy: Path, source: Path) -> None:
    body = json.loads((copy / "processor_config.json").read_text())
    body["image_processor"]["size"]["longest_edge"] = 4096
    (copy / "processor_config.json").write_text(json.dumps(body))
    (breach,) = audit_checkpoint(copy, source).breaches
    assert breach.subject == "processor_config.json"
    (copy / "processor_config.json").unlink()
    (breach,) = audit_checkpoint(copy, source).breaches
    assert breach.message == "is missing"


@pytest.mark.parametrize("key", ["image_mean", "size", "patch_size"])
def test_a_setting_of_the_image_processor_that_is_left_out(
    copy: Path, source: Path, key: str
) -> None:
    """The library's default takes its place, which need not be the source's value."""
    body = json.loads((copy / "processor_config.json").read_text())
    full = {**body["image_processor"], "image_mean": [0.5, 0.5, 0.5]}
    original = copy.parent / "original"
    shutil.copytree(source, original)
    (original / "processor_config.json").write_text(json.dumps({"image_processor": full}))
    del full[key]
    (copy / "processor_config.json").write_text(json.dumps({"image_processor": full}))
    subjects = {b.subject for b in audit_checkpoint(copy, original).breaches}
    assert subjects == {"processor_config.json"}


def test_files_that_others_read_are_worth_a_word(copy: Path, source: Path) -> None:
    (copy / "joint_schema_model.py").write_text("print('another')")
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    report = audit_checkpoint(copy, source)
    assert report.passed
    assert any("chat_template.jinja, joint_schema_model.py;" in note for note in report.notes)


def test_an_old_checkpoint_beside_the_shards(copy: Path, source: Path) -> None:
    """transformers looks for model.safetensors before it looks for an index."""
    (copy / "model.safetensors").rename(copy / "model-00001-of-00001.safetensors")
    path = copy / "model.safetensors.index.json"
    path.write_text(
        path.read_text().replace('"model.safetensors"', '"model-00001-of-00001.safetensors"')
    )
    assert audit_checkpoint(copy).passed
    shutil.copy(source / "model.safetensors", copy)
    (breach,) = audit_checkpoint(copy).breaches
    assert "transformers loads it instead" in breach.message
    with pytest.raises(CheckpointError, match="loads it instead"):
        open_tensors(copy)


def test_two_heads(copy: Path) -> None:
    (copy / "clef_head").mkdir()
    shutil.copy(copy / "joint_head.safetensors", copy / "clef_head")
    assert audit_checkpoint(copy).passed
    head = load_file(copy / "joint_head.safetensors")
    next(iter(head.values())).view(-1)[0] += 1
    save_file(head, copy / "clef_head" / "joint_head.safetensors")
    (breach,) = audit_checkpoint(copy).breaches
    assert breach.message == "is another head than joint_head.safetensors"


def test_a_head_of_another_width_than_its_config(copy: Path) -> None:
    path = copy / "joint_head_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"width": 2 * config["width"]}))
    (breach,) = audit_checkpoint(copy).of("head")
    width = config["width"]
    assert f"the config says width {2 * width}, the weights have {width}." in breach.message
    assert "joint_head_config.json of the same release" in breach.effect


def test_a_damaged_head_is_seen_without_the_source(copy: Path) -> None:
    head = load_file(copy / "joint_head.safetensors")
    next(iter(head.values())).view(-1)[0] = float("nan")
    save_file(head, copy / "joint_head.safetensors")
    (breach,) = audit_checkpoint(copy).breaches
    assert "holds 1 values that are NaN" in breach.message
    with (copy / "joint_head.safetensors").open("r+b") as file:
        file.truncate(5_000)
    (breach,) = audit_checkpoint(copy).breaches
    assert "cut short" in breach.message


def test_quantized_norms_and_stray_scales_are_seen_without_the_source(copy: Path) -> None:
    norm = f"{LAYER}.0.input_layernorm.weight"
    stray = "model.language_model.embed_tokens.weight_scale"

    def change(tensors: Tensors) -> None:
        tensors[norm] = tensors[norm].to(torch.float8_e4m3fn)
        tensors[stray] = torch.ones(1)

    edit(copy, change)
    assert {b.subject for b in audit_checkpoint(copy).breaches} == {norm, stray}


def test_the_source_itself_is_not_quantized(source: Path) -> None:
    report = audit_checkpoint(source)
    assert report.scheme == "not quantized"
    assert report.passed


def test_what_is_no_checkpoint_at_all(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not that of a Qwen3"):
        edit_config(copy, lambda config: config["text_config"].update(model_type="llama"))
        audit_checkpoint(copy)
    with (copy / "model.safetensors").open("r+b") as file:
        file.truncate(10_000)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        audit_checkpoint(copy)


def test_no_folder_at_all() -> None:
    with pytest.raises(CheckpointError, match="no checkpoint folder") as caught:
        audit_checkpoint(Path("org/clef-flash-NVFP4"))
    assert "hf download" in str(caught.value.fix)


def test_expected_tensors_are_those_of_the_model(source: Path) -> None:
    """The formula of names and shapes against what transformers saved."""
    from clefq.clef.family import expected_tensors

    config = json.loads((source / "config.json").read_text())
    expected = expected_tensors(config, "model.language_model")
    assert expected == {name: ref.shape for name, ref in open_tensors(source).items()}


@pytest.mark.parametrize("scheme", ["fp8", "nvfp4", "nvfp4-mlp", "mixed"])
def test_schemes_are_those_that_compressed_tensors_reads(made: Make, scheme: str) -> None:
    """Our reading of a quantization_config against the library's on the model itself."""
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
    from transformers import AutoConfig, Qwen3_5ForConditionalGeneration

    from clefq.clef.config_match import module_formats
    from clefq.clef.family import expected_tensors, linear_modules
    from clefq.quantize.quiet import quiet_libraries

    folder = made(scheme).folder
    config = json.loads((folder / "config.json").read_text())
    shapes = expected_tensors(config, "model.language_model")
    assert shapes is not None
    ours = module_formats(config["quantization_config"], linear_modules(shapes))
    with torch.device("meta"):
        loaded = AutoConfig.from_pretrained(folder)
        model = Qwen3_5ForConditionalGeneration._from_config(loaded)
    with quiet_libraries():
        apply_quantization_config(
            model, QuantizationConfig.model_validate(config["quantization_config"])
        )
    theirs = {
        name: module.quantization_scheme.weights.num_bits
        for name, module in model.named_modules()
        if getattr(module, "quantization_scheme", None) is not None
    }
    assert {name: found.bits for name, found in ours.items()} == theirs


@pytest.mark.parametrize("leaf", ["weight", "weight_scale"])
def test_a_quantized_tensor_of_another_type_is_a_breach(
    made: Make, source: Path, tmp_path: Path, leaf: str
) -> None:
    shutil.copytree(made("fp8").folder, tmp_path / "fp8")
    name = f"{LAYER}.0.mlp.down_proj.{leaf}"
    edit(tmp_path / "fp8", lambda t: t.update({name: t[name].to(torch.float64)}))
    breaches = audit_checkpoint(tmp_path / "fp8", source).of("quantized")
    assert [(b.subject, "is F64" in b.message) for b in breaches] == [(name, True)]
