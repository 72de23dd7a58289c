"""Configs that are whole and yet make an engine compute something else."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from clefq.clef.checkpoint import open_checkpoint
from clefq.clef.config_match import matches, misnamed
from clefq.clef.family import served_name
from clefq.engines.quantized import find_layers
from clefq.errors import CheckpointError
from clefq.quantize.audit import audit_checkpoint
from tests.quantize.conftest import Make
from tests.quantize.editing import LAYER, edit, edit_config

EMBEDDING = "model.language_model.embed_tokens.weight"


@pytest.mark.parametrize("part", ["text_config", None])
def test_tied_embeddings_beside_an_lm_head_of_its_own(copy: Path, part: str | None) -> None:
    """Either part may say it: transformers obeys the outer one, vLLM the inner one."""

    def tie(config: dict[str, Any]) -> None:
        (config if part is None else config[part])["tie_word_embeddings"] = True

    edit_config(copy, tie)
    (breach,) = audit_checkpoint(copy).breaches
    assert (breach.check, breach.subject) == ("config", "lm_head.weight")
    assert "joint head reads" in breach.effect
    with pytest.raises(CheckpointError, match="ties lm_head to the embeddings"):
        open_checkpoint(copy)


def test_tied_embeddings_that_are_stored_twice(copy: Path) -> None:
    def tie(config: dict[str, Any]) -> None:
        config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True

    edit_config(copy, tie)
    embedding = load_file(copy / "model.safetensors")[EMBEDDING]
    edit(copy, lambda tensors: tensors.update({"lm_head.weight": embedding.clone()}))
    report = audit_checkpoint(copy)
    assert report.passed
    assert any("repeats the embeddings" in note for note in report.notes)
    open_checkpoint(copy)
    edit(copy, lambda tensors: tensors.pop("lm_head.weight"))
    assert audit_checkpoint(copy).passed
    open_checkpoint(copy)


ANCHORED = (
    r"re:^model\.language_model\.layers\.\d+\.(mlp|self_attn|linear_attn)\..*_proj(_qkv|_z)?$"
)


def test_targets_that_only_match_the_checkpoint_s_names(copy: Path) -> None:
    """vLLM would take every module for BF16 and not find its weights."""

    def anchor(config: dict[str, Any]) -> None:
        for group in config["quantization_config"]["config_groups"].values():
            group["targets"] = [ANCHORED]

    edit_config(copy, anchor)
    (breach,) = audit_checkpoint(copy).breaches
    assert (breach.check, breach.subject) == ("config", "config.json")
    assert f"{LAYER}.0.linear_attn.in_proj_qkv is w4a4 here" in breach.message
    assert "language_model.model.layers.0.linear_attn.in_proj_qkv is bf16 there" in breach.message
    assert "(25 modules)" in breach.message


def test_an_ignored_vision_tower_that_vllm_does_not_ignore(made: Make, copy: Path) -> None:
    def anchor(config: dict[str, Any]) -> None:
        block = config["quantization_config"]
        kept = [name for name in block["ignore"] if "visual" not in name]
        block["ignore"] = [*kept, r"re:^model\.visual\..*"]
        for group in block["config_groups"].values():
            group["targets"] = ["Linear"]

    edit_config(copy, anchor)
    (breach,) = [b for b in audit_checkpoint(copy).breaches if "patterns" in b.message]
    assert "is bf16 here, but visual." in breach.message


def test_plain_names_and_open_patterns_are_renamed_or_match(made: Make) -> None:
    linears = [f"{LAYER}.0.mlp.up_proj", "model.visual.blocks.0.attn.qkv", "lm_head"]
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    for target in (linears[0], r"re:.*mlp\.up_proj$", r"re:.*language_model.*up_proj"):
        block = {
            "format": "float-quantized",
            "config_groups": {"group_0": {"targets": [target], "weights": weights}},
        }
        assert misnamed(block, linears) == []
    block["config_groups"]["group_0"]["targets"] = ["re:model.*up_proj"]
    assert misnamed(block, linears) == [(linears[0], "bf16")]
    assert served_name("model.layers.0.mlp.up_proj") == "model.layers.0.mlp.up_proj"


def test_served_names_are_vllm_s() -> None:
    """The table against vLLM's own source, where the serving environment is in the checkout."""
    root = Path(__file__).resolve().parents[2] / ".venv-serve"
    files = list(root.glob("lib/python3*/site-packages/vllm/model_executor/models/qwen3_vl.py"))
    if not files:
        pytest.skip("needs .venv-serve: run `make setup-serve`")
    text = files[0].read_text()
    mapper = text[text.index("class Qwen3VLForConditionalGeneration") :]
    pairs = dict(re.findall(r'"(model\.[a-z_]+\.)": "([a-z_.]+)"', mapper[:6000]))
    assert pairs["model.language_model."] == served_name("model.language_model.")
    assert pairs["model.visual."] == served_name("model.visual.")


def test_a_config_nested_without_end(copy: Path, source: Path) -> None:
    """No traceback: what cannot be read differs from the source."""
    deep = "[" * 200_000
    (copy / "processor_config.json").write_text(deep)
    (breach, *_) = audit_checkpoint(copy, source).breaches
    assert breach.subject == "processor_config.json"
    (copy / "joint_head_config.json").write_text(deep)
    subjects = {b.subject for b in audit_checkpoint(copy, source).breaches}
    assert "joint_head_config.json" in subjects
    (copy / "config.json").write_text(json.dumps(json.loads((source / "config.json").read_text())))
    assert matches("a", "a")


@pytest.mark.parametrize(
    "change",
    [
        lambda q: q["config_groups"]["group_0"]["weights"].update(type="int"),
        lambda q: q["config_groups"]["group_0"]["weights"].pop("type"),
        lambda q: q["config_groups"]["group_0"]["input_activations"].update(num_bits=8),
        lambda q: q["config_groups"]["group_0"].update(output_activations={"num_bits": 8}),
        lambda q: q.update(kv_cache_scheme={"num_bits": 8, "type": "float"}),
        lambda q: q.update(transform_config={"config_groups": {"R1": {}}}),
        # of two groups with the same target engines take the last
        lambda q: q["config_groups"].update(
            group_1={**q["config_groups"]["group_0"], "input_activations": None}
        ),
        lambda q: q["config_groups"]["group_0"]["weights"].update(dynamic=True),
        lambda q: q["config_groups"]["group_0"]["input_activations"].update(dynamic=False),
        # transformers then leaves the codes as they are and fills the weights with noise
        lambda q: q.update(quantization_status="frozen"),
        lambda q: q.pop("quantization_status"),
    ],
)
def test_a_config_that_a_serving_engine_reads_otherwise(
    copy: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    edit_config(copy, lambda config: change(config["quantization_config"]))
    (breach,) = audit_checkpoint(copy).breaches
    assert (breach.check, breach.subject) == ("config", "config.json")


def test_fp8_under_the_name_of_another_format(made: Make, tmp_path: Path) -> None:
    shutil.copytree(made("fp8").folder, tmp_path / "copy")
    (tmp_path / "copy" / "clefq.json").unlink()

    def rename(config: dict[str, Any]) -> None:
        block = config["quantization_config"]
        block["format"] = block["config_groups"]["group_0"]["format"] = "pack-quantized"

    edit_config(tmp_path / "copy", rename)
    (breach,) = audit_checkpoint(tmp_path / "copy").breaches
    assert "says pack-quantized" in breach.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda q: q.update(config_groups="x"), "no config_groups"),
        (lambda q: q.update(config_groups=["x"]), "no config_groups"),
        (lambda q: q.update(ignore="lm_head"), "ignore is no list"),
        (lambda q: q["config_groups"]["group_0"].update(targets="Linear"), "targets is no list"),
        (lambda q: q["config_groups"]["group_0"].update(targets=[None]), "targets is no list"),
        (lambda q: q["config_groups"]["group_0"].update(targets=["re:("]), "is no pattern"),
        (lambda q: q["config_groups"]["group_0"].update(weights="x"), "quantizes no weights"),
        (lambda q: q["config_groups"]["group_0"].update(input_activations=1), "no object"),
        (lambda q: q["config_groups"]["group_0"]["weights"].update(num_bits=None), "num_bits"),
        (lambda q: q["config_groups"]["group_0"]["weights"].update(group_size="16"), "group_size"),
        (
            lambda q: q["config_groups"]["group_0"]["input_activations"].update(dynamic=[]),
            "dynamic",
        ),
    ],
)
def test_a_config_of_the_wrong_types(
    copy: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    """A breach, and a line from whatever else opens it; no traceback."""
    edit_config(copy, lambda config: change(config["quantization_config"]))
    assert words in audit_checkpoint(copy).breaches[0].message
    with pytest.raises(CheckpointError, match=words):
        find_layers(open_checkpoint(copy))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(text_config=None),
        lambda c: c.update(quantization_config=[]),
        lambda c: c["text_config"].update(layer_types=[[]] * 4),
        lambda c: c["text_config"].update(layer_types=None, full_attention_interval=0),
        lambda c: c["vision_config"].update(spatial_merge_size=1e308),
    ],
)
def test_a_config_of_no_model_at_all(
    copy: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    edit_config(copy, change)
    with pytest.raises(CheckpointError):
        audit_checkpoint(copy)
    (copy / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="not a JSON object"):
        audit_checkpoint(copy)


def test_a_quantization_that_only_serving_engines_would_find(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(source, folder)
    quantization = {"quant_method": "compressed-tensors", "config_groups": {}}
    edit_config(folder, lambda c: c["text_config"].update(quantization_config=quantization))
    assert any(b.check == "config" for b in audit_checkpoint(folder).breaches)
