from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from clefq.clef.checkpoint import checkpoint_sha256, open_checkpoint
from clefq.clef.head_config import HeadConfig
from clefq.clef.tensor_files import read_header
from clefq.clef.weight_files import INDEX
from clefq.errors import CheckpointError
from tests.clef.layout import (
    HEAD,
    HIDDEN,
    PROJECTION,
    SHARDS,
    VOCABULARY,
    edit,
    write_index,
    write_tensors,
)


def test_a_whole_checkpoint_opens(folder: Path) -> None:
    opened = open_checkpoint(folder)
    assert opened.head_config == HEAD
    assert [file.name for file in opened.weight_files] == list(SHARDS)
    assert set(opened.tensors) == {name for shard in SHARDS.values() for name in shard}
    info = opened.lm_head
    assert (info.file.name, info.dtype, info.shape) == (opened.weight_files[1].name, "BF16", HIDDEN)
    assert info.nbytes == VOCABULARY * 8 * 2
    assert opened.quantization_config is None
    assert opened.manifest is None
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    assert opened.nbytes == sum(sizes)


def test_one_file_without_index_and_a_head_in_its_own_folder_open(folder: Path) -> None:
    (folder / INDEX).unlink()
    for shard in SHARDS:
        (folder / shard).unlink()
    write_tensors(
        folder / "model.safetensors", {k: v for shard in SHARDS.values() for k, v in shard.items()}
    )
    (folder / "clef_head").mkdir()
    for name in ("joint_head.safetensors", "joint_head_config.json"):
        shutil.move(folder / name, folder / "clef_head" / name)
    opened = open_checkpoint(folder)
    assert opened.head_file == folder / "clef_head" / "joint_head.safetensors"
    assert opened.weight_files == (folder / "model.safetensors",)


def test_tied_embeddings_stand_in_for_lm_head(folder: Path) -> None:
    edit(folder / "config.json", lambda c: c["text_config"].update(tie_word_embeddings=True))
    shards = {file: dict(tensors) for file, tensors in SHARDS.items()}
    del shards["model-00002-of-00002.safetensors"]["lm_head.weight"]
    write_index(folder, shards)
    opened = open_checkpoint(folder)
    assert opened.lm_head == opened.tensors["model.language_model.embed_tokens.weight"]


def test_header_agrees_with_the_safetensors_package(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros((0, 4), np.int64)}
    tensors["c"] = np.array(3.0)
    save_file(tensors, path, {"format": "pt"})
    header = read_header(path)
    assert set(header) == set(tensors)
    for name, info in header.items():
        raw = path.read_bytes()[info.begin : info.end]
        assert raw == tensors[name].tobytes()
        assert info.shape == tensors[name].shape


def truncate(path: Path, drop: int) -> None:
    path.write_bytes(path.read_bytes()[:-drop])


def shard(folder: Path, number: int = 1) -> Path:
    return folder / f"model-0000{number}-of-00002.safetensors"


def rename_in_map(value: Any) -> Any:
    value["weight_map"][PROJECTION] = "model-00002-of-00002.safetensors"


def quantize_lm_head(folder: Path) -> None:
    shards = {file: dict(tensors) for file, tensors in SHARDS.items()}
    tensors = shards["model-00002-of-00002.safetensors"]
    del tensors["lm_head.weight"]
    tensors["lm_head.weight_packed"] = ("U8", (VOCABULARY, 4))
    write_index(folder, shards)


def fp8_lm_head(folder: Path) -> None:
    shards = {file: dict(tensors) for file, tensors in SHARDS.items()}
    shards["model-00002-of-00002.safetensors"]["lm_head.weight"] = ("F8_E4M3", HIDDEN)
    write_index(folder, shards)


def doubled_prefix(folder: Path) -> None:
    shards = {
        file: {name.replace("language_model.", "language_model.language_model."): info}
        for file, tensors in SHARDS.items()
        for name, info in tensors.items()
    }
    write_index(folder, shards)


def unmerged(folder: Path) -> None:
    shards = {
        file: {name.replace("up_proj.", "up_proj.base_layer."): info for name, info in each.items()}
        for file, each in SHARDS.items()
    }
    write_index(folder, shards)


def no_lm_head(folder: Path) -> None:
    shards = {file: dict(tensors) for file, tensors in SHARDS.items()}
    del shards["model-00002-of-00002.safetensors"]["lm_head.weight"]
    write_index(folder, shards)


def drop_special(folder: Path) -> None:
    def change(value: Any) -> None:
        value["added_tokens"] = [
            t for t in value["added_tokens"] if t["content"] != "<|image_pad|>"
        ]

    edit(folder / "tokenizer.json", change)


def wide_head(folder: Path) -> None:
    wide = HeadConfig(16, 4, 1, 1, 2, 8)
    head = {name: ("BF16", shape) for name, shape in wide.tensor_shapes().items()}
    write_tensors(folder / "joint_head.safetensors", head)
    (folder / "joint_head_config.json").write_text(json.dumps(asdict(wide)))


def fake_header(path: Path, header: bytes, data: bytes = b"") -> None:
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


Damage = tuple[Callable[[Path], Any], str, str]
DAMAGES: dict[str, Damage] = {
    "no folder": (shutil.rmtree, "model", "no checkpoint folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json", "is missing"),
    "config no json": (lambda f: (f / "config.json").write_text("{"), "config.json", "not valid"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), "config.json", "not a JSON"),
    "other model": (
        lambda f: edit(f / "config.json", lambda c: c.update(model_type="llama")),
        "config.json",
        "'llama'",
    ),
    "quantization list": (
        lambda f: edit(f / "config.json", lambda c: c.update(quantization_config=[1])),
        "config.json",
        "quantization_config is not an object",
    ),
    "no head": (
        lambda f: (f / "joint_head.safetensors").unlink(),
        "joint_head.safetensors",
        "not a Clef checkpoint",
    ),
    "no head config": (
        lambda f: (f / "joint_head_config.json").unlink(),
        "joint_head_config.json",
        "is missing",
    ),
    "wrong head shape": (
        lambda f: edit(f / "joint_head_config.json", lambda c: c.update(feedforward=4)),
        "joint_head.safetensors",
        "the config says",
    ),
    "head of another size": (wide_head, "joint_head.safetensors", "made for hidden size 16"),
    "cut head": (
        lambda f: truncate(f / "joint_head.safetensors", 3),
        "joint_head.safetensors",
        "cut short",
    ),
    "cut shard": (lambda f: truncate(shard(f), 1), "model-00001-of-00002", "cut short"),
    "cut header": (lambda f: truncate(shard(f, 2), 500), "model-00002", "no whole safetensors"),
    "empty shard": (lambda f: shard(f).write_bytes(b""), "model-00001", "no whole safetensors"),
    "not safetensors": (
        lambda f: shard(f).write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
        "model-00001",
        "Git LFS pointer",
    ),
    "longer shard": (
        lambda f: shard(f).write_bytes(shard(f).read_bytes() + b"x"),
        "model-00001",
        "1 bytes after",
    ),
    "header no json": (lambda f: fake_header(shard(f), b"{nope"), "model-00001", "not JSON"),
    "header a list": (lambda f: fake_header(shard(f), b"[]"), "model-00001", "not an object"),
    "entry malformed": (
        lambda f: fake_header(shard(f), b'{"x": {"dtype": "Q7", "shape": [], "data_offsets": []}}'),
        "model-00001",
        "malformed entry for tensor x",
    ),
    "entry too small": (
        lambda f: fake_header(
            shard(f), b'{"x": {"dtype": "U8", "shape": [9], "data_offsets": [0, 3]}}', b"abc"
        ),
        "model-00001",
        "does not fill",
    ),
    "hole": (
        lambda f: fake_header(
            shard(f), b'{"x": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}}', b"abc"
        ),
        "model-00001",
        "leave holes",
    ),
    "no shard": (lambda f: shard(f, 2).unlink(), INDEX, "00002.safetensors is missing"),
    "shard elsewhere": (
        lambda f: edit(f / INDEX, lambda i: i["weight_map"].update(x="../x.safetensors")),
        INDEX,
        "outside the folder",
    ),
    "index no map": (lambda f: (f / INDEX).write_text("{}"), INDEX, "no weight_map"),
    "index wrong file": (
        lambda f: edit(f / INDEX, rename_in_map),
        INDEX,
        f"places {PROJECTION} in model-00002",
    ),
    "index lacks tensor": (
        lambda f: edit(f / INDEX, lambda i: i["weight_map"].pop(PROJECTION) and i),
        INDEX,
        f"does not name {PROJECTION}",
    ),
    "no weights": (
        lambda f: (f / INDEX).unlink(),
        "model",
        f"neither {INDEX} nor model.safetensors",
    ),
    "unmerged adapter": (unmerged, "model", "never merged (model.language_model"),
    "doubled names": (doubled_prefix, "model", "no weights for model.language_model.embed_tokens"),
    "more layers": (
        lambda f: edit(
            f / "config.json",
            lambda c: c["text_config"].update(num_hidden_layers=2, layer_types=None),
        ),
        "model",
        "no weights for model.language_model.layers.0.linear_attn.in_proj_qkv and 22 more modules",
    ),
    "no layer count": (
        lambda f: edit(
            f / "config.json", lambda c: c["text_config"].pop("num_hidden_layers") and c
        ),
        "config.json",
        "num_hidden_layers is None",
    ),
    "odd layer types": (
        lambda f: edit(f / "config.json", lambda c: c["text_config"].update(layer_types=["x"])),
        "config.json",
        "layer_types does not name",
    ),
    "no lm_head": (no_lm_head, "model", "no tensor lm_head.weight"),
    "packed lm_head": (quantize_lm_head, "model", "lm_head is quantized"),
    "fp8 lm_head": (fp8_lm_head, "model", "lm_head is quantized"),
    "other vocabulary": (
        lambda f: edit(f / "config.json", lambda c: c["text_config"].update(vocab_size=9)),
        "model-00002",
        "config.json says [9, 8]",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json", "is missing"),
    "bad tokenizer": (
        lambda f: (f / "tokenizer.json").write_text("{}"),
        "tokenizer.json",
        "is not a tokenizer",
    ),
    "no special token": (
        drop_special,
        "tokenizer.json",
        "lacks the special token(s) <|image_pad|>",
    ),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_damage_is_one_line_with_file_and_fix(folder: Path, case: str) -> None:
    open_checkpoint(folder)
    damage, file, words = DAMAGES[case]
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    assert file in caught.value.message
    assert words in caught.value.message
    assert "\n" not in str(caught.value)
    assert caught.value.fix
    assert caught.value.exit_code == 2


def test_sha256_follows_its_definition_and_sees_every_byte(folder: Path) -> None:
    (folder / "README.md").write_text("not hashed")
    names = ["config.json", "joint_head.safetensors", "joint_head_config.json", *SHARDS]
    names.append("tokenizer.json")
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(
            f"{name}\0{hashlib.sha256((folder / name).read_bytes()).hexdigest()}\n".encode()
        )
    before = checkpoint_sha256(folder)
    assert before == digest.hexdigest()
    (folder / "README.md").write_text("still not hashed")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "config.json").write_text("not hashed either")
    assert checkpoint_sha256(folder) == before
    raw = bytearray(shard(folder).read_bytes())
    raw[-1] ^= 1
    shard(folder).write_bytes(raw)
    assert checkpoint_sha256(folder) != before
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        checkpoint_sha256(folder.parent / "nowhere")


@pytest.mark.parametrize("part", ["text_config", "vision_config"])
def test_a_config_part_that_is_no_object_is_refused(folder: Path, part: str) -> None:
    edit(folder / "config.json", lambda config: config | {part: []})
    with pytest.raises(CheckpointError, match=rf"config\.json: {part} is not an object"):
        open_checkpoint(folder)
