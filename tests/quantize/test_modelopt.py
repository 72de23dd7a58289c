"""ModelOpt checkpoints: audited as they are, converted bit for bit, or refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from clefq.clef import modelopt
from clefq.clef.checkpoint import open_checkpoint, scheme_of
from clefq.cli.main import app
from clefq.console import Console
from clefq.errors import AuditError, CheckpointError, InputError
from clefq.quantize import convert as converting
from clefq.quantize.audit import audit_checkpoint
from clefq.quantize.convert import Conversion, convert_checkpoint
from clefq.quantize.manifest import read_build_manifest
from clefq.quantize.repair import repair_checkpoint
from tests.quantize.modelopt import build_modelopt, dequantized, quantizable

MLP8 = ("mixed", lambda module: "FP8" if ".mlp." in module else "NVFP4")
KINDS: dict[str, Callable[[str], str] | str] = {
    "NVFP4": "NVFP4",
    "W4A16_NVFP4": "W4A16_NVFP4",
    "FP8": "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN": "FP8_PER_CHANNEL_PER_TOKEN",
    MLP8[0]: MLP8[1],
}
SCHEMES = {
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4a16",
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "mixed": "mixed",
}
Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def theirs(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A ModelOpt folder of each kind, made once."""
    base, made = tmp_path_factory.mktemp("modelopt"), {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = build_modelopt(source, base / kind, KINDS[kind])
        return made[kind]

    return make


def convert(folder: Path, out: Path, **options: object) -> Conversion:
    return convert_checkpoint(folder, out, Console(quiet=True), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_the_audit_proves_it_against_its_source(theirs: Folder, source: Path, kind: str) -> None:
    report = audit_checkpoint(theirs(kind), source)
    assert report.causes() == []
    assert report.word == "sound"
    assert not report.facts["other_rounding"]
    assert audit_checkpoint(theirs(kind)).word == "consistent"
    assert any(note.startswith("ModelOpt 0.39.0") for note in report.notes)


@pytest.mark.parametrize("kind", KINDS)
def test_the_copy_holds_the_same_weights(
    theirs: Folder, source: Path, tmp_path: Path, kind: str
) -> None:
    """Through compressed-tensors' own decompression, against ModelOpt's formula."""
    result = convert(theirs(kind), tmp_path / "copy", source=source)
    assert result.audit == "sound"
    before = load_file(theirs(kind) / "model.safetensors")
    after = load_file(tmp_path / "copy" / "model.safetensors")
    modules = [n.removesuffix(".weight") for n in before if quantizable(n.removesuffix(".weight"))]
    assert len(modules) == 25
    for module in modules:
        assert torch.equal(decompressed(after, module), dequantized(before, module)), module
    rest = {name for name in before if not quantizable(name.rpartition(".")[0])}
    assert rest == {name for name in after if not quantizable(name.rpartition(".")[0])}
    assert all(before[name].equal(after[name]) for name in rest)
    manifest = read_build_manifest(tmp_path / "copy")
    assert (manifest.scheme, manifest.method) == (SCHEMES[kind], "convert")
    assert manifest.recipe["origin"].startswith("ModelOpt 0.39.0, ")
    assert not (tmp_path / "copy" / modelopt.CONFIG_FILE).exists()


def decompressed(tensors: dict[str, torch.Tensor], module: str) -> torch.Tensor:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import preset_name_to_scheme

    state = {
        name.removeprefix(f"{module}."): value
        for name, value in tensors.items()
        if name.startswith(f"{module}.")
    }
    if "weight_packed" in state:
        name, preset = "nvfp4-pack-quantized", "NVFP4"
    else:
        name, preset = "float-quantized", "FP8_DYNAMIC"
    scheme = preset_name_to_scheme(preset, ["Linear"])
    found = BaseCompressor.get_value_from_registry(name).decompress(state, scheme)
    weight: torch.Tensor = found["weight"]
    return weight.bfloat16()


def test_scales_come_through_bit_for_bit(theirs: Folder, tmp_path: Path) -> None:
    convert(theirs("NVFP4"), tmp_path / "copy")
    before = load_file(theirs("NVFP4") / "model.safetensors")
    after = load_file(tmp_path / "copy" / "model.safetensors")
    for name, factor in before.items():
        module, _, leaf = name.rpartition(".")
        if leaf in ("weight_scale_2", "input_scale"):
            new = {"weight_scale_2": "weight_global_scale", "input_scale": "input_global_scale"}
            divisor = after[f"{module}.{new[leaf]}"]
            assert (1 / divisor - factor).abs() <= 2**-23 * factor
        if leaf == "weight" and f"{module}.weight_scale_2" in before:
            assert after[f"{module}.weight_packed"].equal(factor)


def test_the_reciprocal_of_a_reciprocal() -> None:
    """A divisor is found whenever one exists; brute force over one binade says when it does."""
    step = 1 << 12
    factors = np.arange(0x3F800000, 0x40000000, step, dtype=np.uint32).view(np.float32)
    found = [modelopt.divisor_of(factor) for factor in factors]
    for factor, (divisor, exact) in zip(factors, found, strict=True):
        around = np.float32(1) / factor
        near = (around.view(np.uint32) + np.arange(-8, 9)).astype(np.uint32).view(np.float32)
        assert exact == bool(np.any(np.float32(1) / near == factor))
        assert (np.float32(1) / divisor == factor) == exact
    assert 0.8 < np.mean([exact for _, exact in found]) < 0.95


def test_a_factor_without_a_reciprocal_is_proven_weight_by_weight(
    theirs: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = theirs("W4A16_NVFP4")
    factors = load_file(folder / "model.safetensors")
    result = convert(folder, tmp_path / "copy")
    assert set(result.rounded) == {
        name.removesuffix(".weight_scale_2")
        for name, factor in factors.items()
        if name.endswith("weight_scale_2") and not modelopt.divisor_of(factor.numpy())[1]
    }
    assert result.rounded and result.exact == 25 - len(result.rounded)
    monkeypatch.setattr(converting, "_same_weights", lambda *_: False)
    with pytest.raises(CheckpointError, match="the reciprocal of no F32 number"):
        convert(folder, tmp_path / "other")


@pytest.mark.parametrize("where", ["config.json", "hf_quant_config.json"])
def test_either_file_says_it(source: Path, tmp_path: Path, where: str) -> None:
    folder = build_modelopt(source, tmp_path / "theirs", "FP8", where=where)
    assert audit_checkpoint(folder, source).word == "sound"
    found = open_checkpoint(folder).modelopt
    assert found is not None and found.where == where


def test_files_that_disagree(theirs: Folder, tmp_path: Path) -> None:
    folder = shutil.copytree(theirs("FP8"), tmp_path / "theirs")
    other = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": []}}
    (folder / modelopt.CONFIG_FILE).write_text(json.dumps(other))
    with pytest.raises(CheckpointError, match=r"says FP8, hf_quant_config.json says NVFP4"):
        audit_checkpoint(folder)


def test_members_that_do_not_share(source: Path, tmp_path: Path) -> None:
    """Refused; with --keep-faults written, and then mended."""
    folder = build_modelopt(source, tmp_path / "theirs", "NVFP4", shared=False)
    report = audit_checkpoint(folder)
    groups = {b.subject.rpartition(".")[2] for b in report.of("weight scales")}
    assert groups == {"in_proj_qkvz", "qkv_proj", "gate_up_proj"}
    (effect,) = {b.effect.partition(":")[0] for b in report.of("weight scales")}
    assert effect == "vLLM takes the largest factor for all"
    with pytest.raises(AuditError, match="members differ"):
        convert(folder, tmp_path / "copy")
    assert list(tmp_path.glob("*copy*")) == []
    result = convert(folder, tmp_path / "copy", keep_faults=True)
    assert result.audit == "broken"
    repair_checkpoint(tmp_path / "copy", source, tmp_path / "mended", Console(quiet=True))
    assert audit_checkpoint(tmp_path / "mended", source).word == "sound"


def test_one_flipped_code_is_found(theirs: Folder, source: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(theirs("NVFP4"), tmp_path / "theirs")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.language_model.layers.1.mlp.up_proj.weight"][3, 5] ^= 0x11
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (cause,) = audit_checkpoint(folder, source).causes()
    assert cause.check == "quantized"


@pytest.mark.parametrize("suffix", ["weight_scale_2", "input_scale"])
def test_divisors_where_factors_belong(theirs: Folder, tmp_path: Path, suffix: str) -> None:
    folder = shutil.copytree(theirs("NVFP4"), tmp_path / "theirs")
    tensors = load_file(folder / "model.safetensors")
    tensors = {n: 1 / t if n.endswith(suffix) else t for n, t in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert not audit_checkpoint(folder).passed


def test_a_module_that_the_config_does_not_leave_out(theirs: Folder, tmp_path: Path) -> None:
    folder = shutil.copytree(theirs("NVFP4"), tmp_path / "theirs")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["ignore"].remove("lm_head")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / modelopt.CONFIG_FILE).unlink()
    subjects = {breach.subject for breach in audit_checkpoint(folder).breaches}
    assert "lm_head" in subjects and "lm_head.weight_packed" in subjects


def test_scales_of_a_cache_are_left_out(theirs: Folder, tmp_path: Path) -> None:
    folder = shutil.copytree(theirs("FP8"), tmp_path / "theirs")
    tensors = load_file(folder / "model.safetensors")
    names = [f"model.language_model.layers.3.self_attn.{p}_proj.{p}_scale" for p in "kv"]
    tensors |= {name: torch.tensor(0.01) for name in names}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("config.json", modelopt.CONFIG_FILE):
        body = json.loads((folder / name).read_text())
        inner = body["quantization_config"] if name == "config.json" else body["quantization"]
        inner["kv_cache_quant_algo"] = "FP8"
        (folder / name).write_text(json.dumps(body))
    assert any("KV cache is quantized too (FP8)" in n for n in audit_checkpoint(folder).notes)
    assert set(convert(folder, tmp_path / "copy").left_out) == set(names)
    assert not set(names) & load_file(tmp_path / "copy" / "model.safetensors").keys()


def test_the_same_command_again_does_nothing(theirs: Folder, tmp_path: Path) -> None:
    arguments = ["convert", str(theirs("FP8")), "--out", str(tmp_path / "copy"), "--json"]
    first, second = (CliRunner().invoke(app, arguments) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0), first.output
    one, two = json.loads(first.stdout), json.loads(second.stdout)
    assert (one["finished"], two["finished"]) == (False, True)
    assert {**one, "finished": True} == two


def test_a_killed_run_goes_on(
    theirs: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converting, "audit_checkpoint", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        convert(theirs("FP8"), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    shard = tmp_path / ".copy.partial" / "model.safetensors"
    when = shard.stat().st_mtime_ns
    monkeypatch.undo()
    convert(theirs("FP8"), tmp_path / "copy")
    assert (tmp_path / "copy" / "model.safetensors").stat().st_mtime_ns == when


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ("NVFP4_AWQ", "pre_quant_scale"),
        ("FP8_PB_WO", "scale per tile"),
        ("MXFP8", "power of two per 32"),
        ("W4A8_AWQ", "pre_quant_scale"),
        ("SOMETHING_NEW", "SOMETHING_NEW"),
    ],
)
def test_other_algorithms_are_refused_by_name(
    theirs: Folder, tmp_path: Path, algorithm: str, words: str
) -> None:
    folder = shutil.copytree(theirs("FP8"), tmp_path / "theirs")
    (folder / modelopt.CONFIG_FILE).unlink()
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["quant_algo"] = algorithm
    (folder / "config.json").write_text(json.dumps(config))
    for work in (audit_checkpoint, lambda place: convert(place, tmp_path / "copy")):
        with pytest.raises(CheckpointError, match=words) as caught:
            work(folder)
        assert "ModelOpt 0.39.0" in caught.value.message
    assert scheme_of(open_checkpoint(folder)) == "unknown"


def test_what_is_no_modelopt_checkpoint(source: Path, theirs: Folder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not quantized"):
        convert(source, tmp_path / "copy")
    convert(theirs("FP8"), tmp_path / "copy")
    with pytest.raises(InputError, match="compressed-tensors checkpoint already"):
        convert(tmp_path / "copy", tmp_path / "again")


def test_weights_alone_by_their_groups() -> None:
    """vLLM runs an NVFP4 whose groups leave inputs alone as weight-only."""
    groups = {"config_groups": {"group_0": {"input_activations": None, "weights": {}}}}
    found = modelopt._parse(Path("x"), "config.json", {"quant_algo": "nvfp4", **groups})
    assert found.algorithm == "W4A16_NVFP4"
    plain = modelopt._parse(Path("x"), "config.json", {"quant_algo": "nvfp4"})
    assert plain.algorithm == "NVFP4"


@pytest.mark.parametrize(
    ("excluded", "module", "left_out"),
    [
        ("model.visual*", "model.visual.blocks.0.attn.qkv", True),
        ("visual*", "model.visual.blocks.0.attn.qkv", True),
        ("*mlp*", "model.language_model.layers.0.mlp.up_proj", True),
        ("lm_head", "lm_head", True),
        ("mlp.up_proj", "model.language_model.layers.0.mlp.up_proj", True),
        ("mlp.up", "model.language_model.layers.0.mlp.down_proj", False),
        ("model.language_model.layers.1.*", "model.language_model.layers.11.mlp.up_proj", False),
    ],
)
def test_what_is_left_out(excluded: str, module: str, left_out: bool) -> None:
    found = modelopt.ModelOpt("config.json", "NVFP4", (excluded,))
    assert found.excludes(module) is left_out
    assert (replace(found, excluded=()).format_of(module) is None) is False


def test_the_transformers_engine_reads_it_as_it_is(
    theirs: Folder, calibration_set: Path, tmp_path: Path
) -> None:
    from clefq.engines.base import EngineSpec
    from clefq.engines.transformers_engine import TransformersEngine
    from clefq.store.sets import open_set

    convert(theirs("NVFP4"), tmp_path / "copy")
    records = list(open_set(calibration_set).records())
    answers = []
    for folder in (theirs("NVFP4"), tmp_path / "copy"):
        engine = TransformersEngine(folder, EngineSpec())
        assert (engine.info.arithmetic, engine.info.kernels) == ("w4a4", "simulated")
        answers.append([one.logprobs for group in engine.predict(records) for one in group])
        engine.close()
    before, after = answers
    assert len(before) == len(records)
    for one, two in zip(before, after, strict=True):
        assert {q: v.tolist() for q, v in one.items()} == {q: v.tolist() for q, v in two.items()}
