"""Streaming against oneshot: the same bits, whatever the shards; and its kernels, alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from compressed_tensors.quantization import preset_name_to_scheme
from safetensors.torch import load_file, save_file

from clefq.clef.family import group_key
from clefq.clef.formats import SEARCH_OBSERVER
from clefq.clef.weight_files import open_tensors
from clefq.console import Console
from clefq.errors import InputError
from clefq.quantize.layout import plan_units
from clefq.quantize.run import QuantizeSpec, quantize
from clefq.quantize.stream import Stream, stream_outputs
from clefq.quantize.tensors import OutTensor, ShardFile
from tests.quantize.conftest import Make
from tests.quantize.models import reshard


@pytest.mark.parametrize("scheme", ["fp8", "int8", "nvfp4a16", "nvfp4a16+search", "int4"])
def test_streaming_gives_the_bits_of_oneshot(made: Make, scheme: str) -> None:
    ours, theirs = made(scheme, "stream").folder, made(scheme, "oneshot").folder
    a, b = load_file(ours / "model.safetensors"), load_file(theirs / "model.safetensors")
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert value.dtype == b[name].dtype
        assert value.view(-1).view(torch.uint8).equal(b[name].view(-1).view(torch.uint8)), name
    assert (ours / "config.json").read_text() == (theirs / "config.json").read_text()
    index = json.loads((ours / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == a.keys()


def bits(folder: Path) -> dict[str, bytes]:
    return {name: bytes(ref.read()) for name, ref in open_tensors(folder).items()}


def test_a_fused_group_split_over_shards(source: Path, made: Make, tmp_path: Path) -> None:
    """Every tensor in a shard of its neighbours' choice: the source's cut does not matter."""
    places = {"q_proj": 0, "k_proj": 1, "v_proj": 2, "gate_proj": 1, "in_proj_z": 2}
    split = reshard(source, tmp_path / "split", lambda name: places.get(name.rsplit(".", 2)[-2], 0))
    spec = QuantizeSpec(str(split), "nvfp4a16", max_shard_bytes=300_000)
    result = quantize(spec, tmp_path / "out", Console(quiet=True))
    assert bits(result.folder) == bits(made("nvfp4a16", "oneshot").folder)
    shards = sorted(result.folder.glob("model-*.safetensors"))
    assert len(shards) > 4
    index = json.loads((result.folder / "model.safetensors.index.json").read_text())
    for shard in shards:
        inside = [name for name, file in index["weight_map"].items() if file == shard.name]
        data = sum(open_tensors(result.folder)[name].nbytes for name in inside)
        assert data <= 300_000 or len({group_key(n.rpartition(".")[0]) for n in inside}) == 1


def test_a_mix_of_data_free_schemes(source: Path, made: Make, tmp_path: Path) -> None:
    """The user's own recipe: FP8 attention, 4-bit MLPs; each module as in the pure scheme."""
    recipe = tmp_path / "mix.yaml"
    scheme = {
        "NVFP4A16": [r"re:.*mlp\.(gate|up|down)_proj$"],
        "FP8_DYNAMIC": [
            r"re:.*self_attn\.(q|k|v|o)_proj$",
            r"re:.*linear_attn\.(in_proj_qkv|in_proj_z|out_proj)$",
        ],
    }
    modifier = {"scheme": scheme, "ignore": ["re:.*lm_head$", "re:.*visual.*"]}
    body = {"quant_stage": {"quant_modifiers": {"QuantizationModifier": modifier}}}
    recipe.write_text(yaml.safe_dump(body))
    spec = QuantizeSpec(str(source), recipe=recipe)
    result = quantize(spec, tmp_path / "out", Console(quiet=True))
    assert result.manifest.method == "stream"
    assert result.manifest.formats == {"w4a16": 12, "w8a8": 13}
    four, eight = bits(made("nvfp4a16").folder), bits(made("fp8").folder)
    for name, value in bits(result.folder).items():
        part = four if re.search(r"layers\.\d+\.mlp", name) else eight
        assert value == part[name], name
    assert (result.folder / "recipe.yaml").read_text() == recipe.read_text()


def test_calibrated_schemes_cannot_be_streamed(source: Path, tmp_path: Path) -> None:
    spec = QuantizeSpec(str(source), "nvfp4", method="stream", calibration=tmp_path)
    with pytest.raises(InputError, match="w4a4 activations need calibration data"):
        quantize(spec, tmp_path / "out", Console(quiet=True))
    with pytest.raises(InputError, match="needs a calibration set"):
        quantize(QuantizeSpec(str(source), "nvfp4"), tmp_path / "out", Console(quiet=True))


def test_memory_does_not_grow_with_the_groups(source: Path, tmp_path: Path) -> None:
    """A worker holds a few blocks, though the matrix is many times larger."""
    import tracemalloc

    rows, columns = 1 << 14, 1 << 10
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * 0.02
    name = "model.language_model.layers.0.mlp.down_proj"
    save_file({f"{name}.weight": weight.bfloat16()}, tmp_path / "model.safetensors")
    refs = open_tensors(tmp_path)
    scheme = preset_name_to_scheme("NVFP4A16", ["Linear"])
    outputs = stream_outputs({name: scheme}, refs, "BF16")
    stream = Stream({name: scheme}, refs, "BF16", "cpu")
    (unit,) = plan_units(refs, outputs)
    tracemalloc.start()
    with ShardFile(tmp_path / "out.safetensors", unit.tensors) as file:
        stream.write_unit(file, unit)
    _, peak = tracemalloc.get_traced_memory()  # Python's buffers; torch's are of the same size
    tracemalloc.stop()
    assert peak < rows * columns * 2 / 8


def test_a_shard_is_whole_or_absent(tmp_path: Path) -> None:
    tensors = [OutTensor("a", "U8", (4,)), OutTensor("b", "F32", (1,))]
    path = tmp_path / "x.safetensors"
    with pytest.raises(ValueError, match="4 bytes missing"), ShardFile(path, tensors) as file:
        file.put("a", 0, b"abcd")
    with pytest.raises(ValueError, match="5 bytes written"), ShardFile(path, tensors) as file:
        file.put("a", 1, b"abcd")
    assert list(tmp_path.iterdir()) == []
    with ShardFile(path, tensors) as file:
        file.put("b", 0, torch.tensor([1.5]).numpy().tobytes())
        file.put("a", 2, b"cd")
        file.put("a", 0, b"ab")
    loaded = load_file(path)
    assert loaded["a"].tolist() == list(b"abcd")
    assert loaded["b"].tolist() == [1.5]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("preset", "observer"),
    [("NVFP4A16", None), ("NVFP4A16", SEARCH_OBSERVER), ("FP8_DYNAMIC", None)],
)
def test_a_gpu_gives_the_bits_of_a_cpu(tmp_path: Path, preset: str, observer: str | None) -> None:
    """Ranges far apart, zero rows, ties: every byte of both outputs."""
    names = [f"model.language_model.layers.0.mlp.{leaf}" for leaf in ("gate_proj", "up_proj")]
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name in names:
        weight = torch.randn(4099, 1024, generator=generator) * 0.02
        weight *= 10 ** torch.empty(4099, 1).uniform_(-4, 2, generator=generator)
        weight[7] = 0
        tensors[f"{name}.weight"] = weight.bfloat16()
    save_file(tensors, tmp_path / "model.safetensors")
    refs = open_tensors(tmp_path)
    scheme = preset_name_to_scheme(preset, ["Linear"])
    scheme.weights.observer = observer
    schemes = dict.fromkeys(names, scheme)
    (unit,) = plan_units(refs, stream_outputs(schemes, refs, "BF16"))
    for device in ("cpu", "cuda"):
        with ShardFile(tmp_path / f"{device}.out", unit.tensors) as file:
            Stream(schemes, refs, "BF16", device).write_unit(file, unit)
    assert (tmp_path / "cpu.out").read_bytes() == (tmp_path / "cuda.out").read_bytes()


def test_compression_rounds_alike_on_every_machine() -> None:
    """The worker saves with the library's torch code, whatever kernels it has for a GPU."""
    from compressed_tensors.utils.impl_backend import ImplBackend

    from clefq.quantize.oneshot_worker import same_codes_everywhere

    @ImplBackend.register("clefq_test", lambda: True, 0)
    def clefq_test_kernel() -> str:
        return "kernel"

    @ImplBackend.entrypoint("clefq_test")
    def clefq_test_torch() -> str:
        return "torch"

    assert clefq_test_torch() == "kernel"
    with same_codes_everywhere():
        assert clefq_test_torch() == "torch"
    assert clefq_test_torch() == "kernel"
