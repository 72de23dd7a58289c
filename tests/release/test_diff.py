from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from clefq.release.diff import FolderDiff, _RowNorms, diff_paths
from clefq.release.diff_text import bar
from clefq.release.weights import BLOCK_ELEMENTS, open_weights
from tests.release.conftest import Clefq


def write(folder: Path, tensors: dict[str, torch.Tensor], config: dict | None = None) -> Path:
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def of(found: FolderDiff, name: str) -> dict:
    return next(t.to_json() for t in found.tensors if t.name == name)


def test_every_status(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = "model.language_model.layers.0.mlp.up_proj.weight"
    base = {
        "same": torch.randn(3, 5),
        layer: torch.randn(40, 30, dtype=torch.bfloat16),
        "cast": torch.randn(4, 4, dtype=torch.bfloat16),
        "shaped": torch.randn(2, 6),
        "gone": torch.randn(2),
        "counts": torch.tensor([1, 2]),
        "zeros": torch.zeros(3),
    }
    model = {
        **{k: v for k, v in base.items() if k != "gone"},
        layer: base[layer] + torch.randn(40, 30).to(torch.bfloat16),
        "cast": base["cast"].float() * 1.5,
        "shaped": torch.randn(3, 4),
        "new": torch.randn(1),
        "counts": torch.tensor([1, 3]),
        "zeros": torch.ones(3),
    }
    found = diff_paths(write(tmp_path / "a", model), write(tmp_path / "b", base))
    statuses = {t.name: t.status for t in found.tensors}
    assert statuses == {
        "same": "identical",
        layer: "changed",
        "cast": "dtype",
        "shaped": "shape",
        "gone": "missing",
        "new": "added",
        "counts": "changed",
        "zeros": "changed",
    }
    ours, theirs = model[layer].double(), base[layer].double()
    expected = float((ours - theirs).norm() / theirs.norm())
    assert of(found, layer)["relative"] == pytest.approx(expected, rel=1e-9)
    assert of(found, layer)["after_dequantization"] is False
    assert of(found, "cast")["relative"] == pytest.approx(0.5)
    assert of(found, "counts")["relative"] is None
    assert "not decoded" in of(found, "counts")["note"]
    assert of(found, "zeros")["note"] == "the base is all zeros"
    assert of(found, "same")["relative"] == 0
    assert found.counts["changed"] == 3


def test_blocks_do_not_change_the_figure(tmp_path: Path) -> None:
    """More than one block, and a row that is no divisor of the block."""
    torch.manual_seed(1)
    base = {"w": torch.randn(700, 1501), "v": torch.randn(2 * BLOCK_ELEMENTS + 7)}
    model = {k: v + 0.1 * torch.randn_like(v) for k, v in base.items()}
    found = diff_paths(write(tmp_path / "a", model), write(tmp_path / "b", base))
    for name, value in base.items():
        expected = float((model[name].double() - value.double()).norm() / value.double().norm())
        assert of(found, name)["relative"] == pytest.approx(expected, rel=1e-9)
    rows = [block.size for block in open_weights(tmp_path / "a").weights["w"].blocks()]
    assert max(rows) <= BLOCK_ELEMENTS
    assert sum(rows) == 700 * 1501


def test_nan_is_said(tmp_path: Path) -> None:
    base, model = torch.ones(4), torch.tensor([1.0, float("nan"), 1.0, 1.0])
    found = diff_paths(write(tmp_path / "a", {"w": model}), write(tmp_path / "b", {"w": base}))
    entry = of(found, "w")
    assert entry["relative"] is None
    assert entry["note"] == "holds NaN or infinite values"
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize("scheme", ["fp8", "nvfp4a16"])
def test_dequantized_as_the_library_does(finished: Path, scheme: str) -> None:
    """Every quantized weight against compressed-tensors' own decompression."""
    from compressed_tensors.compressors.nvfp4 import helpers

    models = finished / "models"
    found = diff_paths(models / scheme, models / "bf16")
    assert found.counts | {"identical": 164, "changed": 50} == found.counts
    stored = load_file(models / scheme / "model.safetensors")
    source = {}
    for shard in (models / "bf16").glob("model-*.safetensors"):
        source |= load_file(shard)
    compared = [t for t in found.tensors if t.status == "changed"]
    for tensor in compared:
        module = tensor.name.removesuffix(".weight")
        scale = stored[f"{module}.weight_scale"].float()
        if scheme == "fp8":
            values = stored[f"{module}.weight"].float() * scale
        else:
            packed = stored[f"{module}.weight_packed"]
            rows, half = packed.shape
            codes = helpers.unpack_fp4_from_uint8(packed, rows, 2 * half, torch.float32)
            scale = scale / stored[f"{module}.weight_global_scale"].float()
            values = codes * scale.repeat_interleave(16, dim=1)
        theirs = source[tensor.name].double()
        expected = float((values.double() - theirs).norm() / theirs.norm())
        assert tensor.relative == pytest.approx(expected, rel=1e-6)
        assert tensor.to_json()["after_dequantization"] is True


def test_one_module_in_blocks_of_scales(tmp_path: Path) -> None:
    torch.manual_seed(2)
    name = "model.language_model.layers.0.mlp.up_proj"
    weight = torch.randn(5, 7)
    codes = torch.randn(5, 7).to(torch.float8_e4m3fn)
    scales = torch.rand(3, 2) + 0.5
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [2, 4]},
    }
    config = {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {"group_0": group},
        }
    }
    tensors = {f"{name}.weight": codes, f"{name}.weight_scale": scales}
    model = write(tmp_path / "a", tensors, config)
    found = diff_paths(model, write(tmp_path / "b", {f"{name}.weight": weight}))
    wide = scales.repeat_interleave(2, 0)[:5].repeat_interleave(4, 1)[:, :7]
    expected = float((codes.float() * wide - weight).norm() / weight.norm())
    assert of(found, f"{name}.weight")["relative"] == pytest.approx(expected, rel=1e-5)
    assert found.model.formats == {"w8a16": 1}


def test_a_damaged_layer_stands_out(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(finished / "models" / "nvfp4a16", folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = "model.language_model.layers.5.mlp.down_proj.weight_global_scale"
    tensors[name] = tensors[name] * 2
    save_file(tensors, path, metadata={"format": "pt"})
    found = diff_paths(folder, finished / "models" / "bf16")
    worst = max((p for p in found.parts if p.relative), key=lambda p: p.relative or 0)
    assert (worst.place, worst.part) == ("5", "MLP")
    # half of every weight is gone: √(0.5² + (0.095/2)²) of that tensor
    assert of(found, name.replace("_global_scale", ""))["relative"] == pytest.approx(
        0.502, abs=0.01
    )
    others = diff_paths(folder, finished / "models" / "nvfp4a16")
    assert others.counts["changed"] == 1


def test_a_clef_and_its_text_backbone(finished: Path, tmp_path: Path) -> None:
    source = {}
    for shard in (finished / "models" / "bf16").glob("model-*.safetensors"):
        source |= load_file(shard)
    text = {
        name.replace("model.language_model.", "model."): value
        for name, value in source.items()
        if not name.startswith("model.visual.")
    }
    config = json.loads((finished / "models" / "bf16" / "config.json").read_text())
    base = write(tmp_path / "base", text, config["text_config"])
    found = diff_paths(finished / "models" / "bf16", base)
    added = {p.place for p in found.parts if p.counts.get("added")}
    assert added == {"vision tower", "joint head"}
    assert found.counts["changed"] == found.counts["missing"] == 0
    assert any(line.startswith("vision_config") for line in found.config)


def test_the_command_at_80_columns(
    finished: Path,
    clefq: Clefq,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    models = finished / "models"
    assert clefq("diff", models / "nvfp4a16", models / "bf16") == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    folders = 2
    assert all(len(line.rstrip()) <= 80 for line in lines[folders:])
    assert "214 tensors: 164 identical, 50 changed" in text
    assert "after dequantization" in text
    row = next(line for line in lines if line.lstrip().startswith("3 attention"))
    assert "4/6" in row and "█" in row and "…" not in row
    assert clefq("diff", models / "fp8", models / "fp8", "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert body["counts"] == {**dict.fromkeys(body["counts"], 0), "identical": 214}
    assert clefq("diff", models / "nowhere", models / "fp8") == 2


def test_bars_show_what_is_not_zero() -> None:
    assert bar(0, 1) == ""
    assert bar(1e-9, 1) == "▏"
    assert bar(1, 1, 4) == "████"
    assert bar(0.5, 1, 4) == "██"
    assert np.isclose(len(bar(0.26, 1, 16)), 5)


def test_rows_that_vanish_are_counted_across_blocks() -> None:
    """Blocks are cut anywhere; a row counts once less than half of its norm is left."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(7, 32))
    model = base.copy()
    model[2] *= 0.49
    model[5] = 0
    model[6] *= 0.51
    rows = _RowNorms(7, 32)
    for start in range(0, base.size, 50):
        rows.add(model.reshape(-1)[start : start + 50], base.reshape(-1)[start : start + 50])
    assert rows.lost == 2


@pytest.mark.parametrize("preset", ["W8A8", "W4A16"])
def test_integers_are_read_as_they_were_written(tmp_path: Path, preset: str) -> None:
    """INT8 and INT4 weights, block by block, against the numbers that were packed."""
    from clefq.clef.formats import RECIPE_FORMATS
    from clefq.quantize import kernels
    from clefq.quantize.audit.tallies import weight_args

    (row,) = (row for row in RECIPE_FORMATS.values() if row.preset == preset)
    weight = torch.randn(6, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    rounding = kernels.ROUNDINGS[row.name]
    codes, scales = rounding.quantize(weight, weight_args(preset), None)
    tensors = {row.storage.codes[0]: codes, "weight_scale": scales}
    if row.name == "int4":
        tensors["weight_shape"] = torch.tensor([6, 256])
    save_file({f"m.{name}": t for name, t in tensors.items()}, tmp_path / "model.safetensors")
    group = {"weights": {"num_bits": row.weights.bits, "type": "int", "symmetric": True}}
    group["weights"] |= {"strategy": row.weights.strategy, "group_size": row.weights.group}
    section = {"quant_method": "compressed-tensors", "format": row.storage.names[0]}
    section["config_groups"] = {"group_0": {**group, "targets": ["Linear"]}}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": section}))
    found = open_weights(tmp_path).weights["m.weight"]
    assert found.readable
    assert found.shape == (6, 256)
    assert found.dtype == f"w{row.weights.bits}a16-int{row.weights.bits}"
    values = np.concatenate(list(found.blocks())).reshape(6, 256)
    assert torch.from_numpy(values).equal(rounding.values(codes, scales, None))
