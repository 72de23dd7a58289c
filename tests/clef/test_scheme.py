from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clefq.clef.checkpoint import open_checkpoint, scheme_of
from tests.clef.layout import SHARDS, edit, write_index


def weights(number: int, kind: str = "float", group: int | None = None) -> dict[str, Any]:
    return {"num_bits": number, "type": kind, "group_size": group}


FP8 = {"weights": weights(8), "input_activations": weights(8)}
NVFP4 = {"weights": weights(4, group=16), "input_activations": weights(4, group=16)}
NVFP4A16 = {"weights": weights(4, group=16), "input_activations": None}
MXFP4A16 = {"weights": weights(4, group=32), "input_activations": None}
INT4 = {"weights": weights(4, "int", 128), "input_activations": None}
INT4_ROWS = {"weights": weights(4, "int"), "input_activations": None}
INT8 = {"weights": weights(8, "int"), "input_activations": weights(8, "int")}
MLP = "model.language_model.layers.0.mlp.up_proj"
ATTENTION = "model.language_model.layers.3.self_attn.q_proj"


@pytest.mark.parametrize(
    ("groups", "modules", "scheme"),
    [
        ([FP8], [MLP, ATTENTION], "fp8"),
        ([NVFP4], [MLP, ATTENTION], "nvfp4"),
        ([NVFP4], [MLP], "nvfp4-mlp"),
        ([NVFP4A16], [MLP], "nvfp4a16"),
        ([NVFP4, FP8], [MLP, ATTENTION], "mixed"),
        ([NVFP4, NVFP4A16], [MLP, ATTENTION], "mixed"),
        ([NVFP4A16, FP8], [MLP, ATTENTION], "mixed-a16"),
        ([NVFP4, INT8], [MLP, ATTENTION], "mixed"),
        ([MXFP4A16], [MLP], "unknown"),
        ([INT8], [MLP], "int8"),
        ([INT4], [MLP], "int4"),
        ([INT4, INT8], [MLP, ATTENTION], "mixed-int4"),
        ([INT8, FP8], [MLP, ATTENTION], "unknown"),
        ([INT4_ROWS], [MLP], "unknown"),
        ([FP8], [], "unknown"),
        ([], [MLP], "unknown"),
        (None, [MLP], "unknown"),
        (None, [], "bf16"),
    ],
)
def test_scheme_is_read_off_config_and_tensors(
    folder: Path, groups: list[Any] | None, modules: list[str], scheme: str
) -> None:
    shards = {file: dict(tensors) for file, tensors in SHARDS.items()}
    for module in modules:
        suffix = "weight_scale" if groups == [FP8] else "weight_packed"
        shards["model-00001-of-00002.safetensors"][f"{module}.{suffix}"] = ("U8", (16, 4))
    write_index(folder, shards)
    if groups is not None:
        quantization = {
            "quant_method": "compressed-tensors",
            "config_groups": {f"group_{i}": group for i, group in enumerate(groups)},
        }
        edit(folder / "config.json", lambda c: c.update(quantization_config=quantization))
    assert scheme_of(open_checkpoint(folder)) == scheme
    # a manifest that lies beside other weights does not name their scheme
    (folder / "clefq.json").write_text('{"scheme": "nvfp4"}')
    assert scheme_of(open_checkpoint(folder)) == scheme
