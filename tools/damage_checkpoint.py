"""Makes damaged copies of a quantized checkpoint, to see that a gate or the audit notices.

    python tools/damage_checkpoint.py CHECKPOINT OUT [--kind NAME]
    python tools/damage_checkpoint.py --matrix CHECKPOINT… --source BF16

Without `--kind`, the packed weights of every MLP projection are replaced by random bytes: the copy
loads and answers, wrongly, as after a bug in a packing routine (FP4 weights only: there every byte
is two valid codes). `--matrix` damages each checkpoint in every way that fits it, audits each copy
with and without the source and with and without its `clefq.json`, and prints the table of
docs/check-checkpoint.md (a cell has a third and a fourth word, with the hashes, only where they do
not tell); it fails where some damage is seen by nothing and listed nowhere.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

TEXT = "model.language_model."
_ITEM = {"F32": np.float32, "F16": np.float16}


@dataclass
class Stored:
    """One tensor: safetensors dtype, shape, bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray

    def floats(self) -> np.ndarray:
        """BF16, F16 or F32 values as F32, flat."""
        if self.dtype == "BF16":
            return (self.data.view("<u2").astype(np.uint32) << 16).view(np.float32)
        return self.data.view(_ITEM[self.dtype]).astype(np.float32)

    def put(self, values: np.ndarray) -> None:
        """Stores F32 values in the tensor's dtype."""
        if self.dtype == "BF16":
            self.data = _bf16(values).view(np.uint32).__rshift__(16).astype("<u2").view(np.uint8)
        else:
            self.data = values.astype(_ITEM[self.dtype]).view(np.uint8)


def _bf16(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


@dataclass
class Folder:
    """A checkpoint's copy in memory: one shard in the end, whatever it was before."""

    path: Path
    tensors: dict[str, Stored] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> Folder:
        """Reads a folder's backbone and config."""
        found = cls(path, config=json.loads((path / "config.json").read_text("utf-8")))
        for file in sorted(path.glob("model*.safetensors")):
            raw = np.fromfile(file, dtype=np.uint8)
            start = 8 + int(raw[:8].view("<u8")[0])
            header = json.loads(raw[8:start].tobytes())
            for name, entry in header.items():
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    data = raw[start + begin : start + end].copy()
                    found.tensors[name] = Stored(entry["dtype"], tuple(entry["shape"]), data)
        return found

    def save(self) -> None:
        """Writes shard, index and config."""
        for file in self.path.glob("model*.safetensors"):
            file.unlink()
        header, at = {}, 0
        for name, tensor in self.tensors.items():
            span = [at, at + tensor.data.nbytes]
            header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": span}
            at = span[1]
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (self.path / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor in self.tensors.values():
                file.write(tensor.data.tobytes())
        index = {"metadata": {}, "weight_map": dict.fromkeys(self.tensors, "model.safetensors")}
        (self.path / "model.safetensors.index.json").write_text(json.dumps(index))
        (self.path / "config.json").write_text(json.dumps(self.config))

    @property
    def block(self) -> dict[str, Any]:
        """The `quantization_config`."""
        block: dict[str, Any] = self.config["quantization_config"]
        return block

    def ending(self, *suffixes: str) -> Iterator[Stored]:
        """The tensors whose names end so."""
        return (t for name, t in self.tensors.items() if name.endswith(suffixes))

    def first(self, *endings: str) -> Stored | None:
        """The first such tensor, of a middle layer where there is one."""
        found = [name for name in self.tensors if name.endswith(endings)]
        return self.tensors[found[len(found) // 2]] if found else None


@dataclass(frozen=True)
class Damage:
    """One kind of damage.

    Attributes:
        edit: Damages an opened folder; False where the checkpoint has nothing of the kind.
        where: Public reports of the kind, or where it comes from.
        unseen: Without a source: words of the audit's own line that says it cannot be seen; empty
            where it is seen.
        with_source: The same with a source.
    """

    edit: Callable[[Folder], bool]
    where: str = ""
    unseen: str = ""
    with_source: str = ""


def _each(*suffixes: str, by: Callable[[np.ndarray], np.ndarray]) -> Callable[[Folder], bool]:
    def edit(folder: Folder) -> bool:
        found = [t for t in folder.ending(*suffixes) if t.dtype in ("BF16", "F16", "F32")]
        for tensor in found:
            tensor.put(by(tensor.floats()))
        return bool(found)

    return edit


def _one(*endings: str, by: Callable[[np.ndarray], np.ndarray]) -> Callable[[Folder], bool]:
    def edit(folder: Folder) -> bool:
        tensor = folder.first(*endings)
        if tensor is None or tensor.dtype not in ("BF16", "F16", "F32"):
            return False
        tensor.put(by(tensor.floats()))
        return True

    return edit


def _weight_times(factor: float) -> Callable[[Folder], bool]:
    """A weight that stands alone in its product, scaled: NVFP4's global scale divides."""

    def edit(folder: Folder) -> bool:
        divides = _one("mlp.down_proj.weight_global_scale", by=lambda v: v / factor)
        return divides(folder) or _one("down_proj.weight_scale", by=lambda v: v * factor)(folder)

    return edit


def _bytes(ending: str, by: Callable[[Stored], np.ndarray]) -> Callable[[Folder], bool]:
    def edit(folder: Folder) -> bool:
        found = list(folder.ending(ending))
        for tensor in found:
            tensor.data = np.ascontiguousarray(by(tensor)).reshape(-1).view(np.uint8)
        return bool(found)

    return edit


def _config(change: Callable[[dict[str, Any]], object]) -> Callable[[Folder], bool]:
    def edit(folder: Folder) -> bool:
        change(folder.config)
        return True

    return edit


def _block(change: Callable[[dict[str, Any]], object]) -> Callable[[Folder], bool]:
    return _config(lambda config: change(config["quantization_config"]))


def _random_codes(folder: Folder) -> bool:
    rng = random.Random(0)
    found = [t for n, t in folder.tensors.items() if n.endswith("_packed") and ".mlp." in n]
    for tensor in found:
        tensor.data = np.frombuffer(rng.randbytes(tensor.data.nbytes), dtype=np.uint8).copy()
    return bool(found)


def _group_scales(folder: Folder) -> list[Stored]:
    return [t for t in folder.ending(".weight_scale") if t.dtype == "F8_E4M3"]


def _swizzled(folder: Folder) -> bool:
    found = _group_scales(folder)
    for tensor in found:
        rows, groups = tensor.shape
        if rows % 128 == 0 and groups % 4 == 0:
            tiles = tensor.data.reshape(rows // 128, 4, 32, groups // 4, 4)
            tensor.data = np.ascontiguousarray(tiles.transpose(0, 3, 2, 1, 4)).reshape(-1)
    return bool(found)


def _flip_code(folder: Folder) -> bool:
    tensor = folder.first(".mlp.down_proj.weight_packed", ".mlp.down_proj.weight")
    assert tensor is not None
    tensor.data[7] ^= 2
    return True


def _flat_channels(folder: Folder) -> bool:
    found = [t for t in folder.ending(".weight_scale") if t.shape[-1:] == (1,) and len(t.shape) > 1]
    for tensor in found:
        tensor.shape = tensor.shape[:1]
    return bool(found)


def _lost_rows(folder: Folder) -> bool:
    tensor = folder.first(".weight_packed")
    if tensor is None:
        return False
    tensor.data.reshape(tensor.shape[0], -1)[: tensor.shape[0] // 4] = 0
    return True


def _cut_short(folder: Folder) -> bool:
    tensor = folder.first(".mlp.down_proj.weight_packed", ".mlp.down_proj.weight")
    assert tensor is not None
    tensor.data[len(tensor.data) // 2 :] = 0
    return True


def _narrow_norm(folder: Folder) -> bool:
    tensor = folder.first(".post_attention_layernorm.weight")
    assert tensor is not None
    values, tensor.dtype = tensor.floats(), "F16"
    tensor.put(values)
    return True


def _cache_scale(folder: Folder) -> bool:
    name = f"{TEXT}layers.3.self_attn.k_proj.k_scale"
    folder.tensors[name] = Stored("F32", (1,), np.float32([0.05]).view(np.uint8))
    return True


def _wrapped(folder: Folder) -> bool:
    def renamed(name: str) -> str:
        module, _, leaf = name.rpartition(".")
        return f"{module}.base_layer.{leaf}" if module.endswith("_proj") else name

    folder.tensors = {renamed(name): tensor for name, tensor in folder.tensors.items()}
    return True


def _draft(folder: Folder) -> bool:
    name = "mtp.layers.0.mlp.up_proj.weight"
    folder.tensors[name] = Stored("BF16", (64, 64), np.ones(64 * 64 * 2, dtype=np.uint8))
    folder.block["ignore"] = [e for e in folder.block["ignore"] if "mtp" not in e]
    for group in folder.block["config_groups"].values():
        group["targets"] = [*group["targets"], "Linear"][-1:]
    return len(folder.block["config_groups"]) == 1


def _head_codes(folder: Folder) -> bool:
    tensor = folder.tensors["lm_head.weight"]
    tensor.dtype, tensor.data = "F8_E4M3", tensor.data[::2].copy()
    return True


def _without(*names: str) -> Callable[[Folder], bool]:
    def edit(folder: Folder) -> bool:
        found = [folder.path / name for name in names if (folder.path / name).is_file()]
        for path in found:
            path.unlink()
        return bool(found)

    return edit


_SCALES = (".weight_scale",)
_MODEL = "this model"
_SINGLE = "single wrong numbers"
_UNQUANTIZED = "stay unquantized"
_ORDER = "the order of"

DAMAGES: dict[str, Damage] = {
    "random codes": Damage(_random_codes, "a packing bug", unseen=_MODEL),
    "weight global scales inverted": Damage(
        _each(".weight_global_scale", by=lambda v: 1 / v), "TensorRT-LLM#16447, modular#6600"
    ),
    "input global scales inverted": Damage(
        _each(".input_global_scale", by=lambda v: 1 / v), "TensorRT-LLM#16447, modular#6600"
    ),
    "FP8 weight scales inverted": Damage(_each(*_SCALES, by=lambda v: 1 / v), "the same in FP8"),
    "FP8 input scales inverted": Damage(
        _each(".input_scale", by=lambda v: 1 / v), "the same in FP8", "reciprocals", "reciprocals"
    ),
    "FP8 weight scales of 1e6": Damage(_each(*_SCALES, by=lambda v: v * 0 + 1e6), "uninitialized"),
    "one weight scale 30 times too large": Damage(
        _weight_times(30),
        "a scale of another tensor",
    ),
    "one weight scale 3 times too large": Damage(
        _weight_times(3),
        "a scale of another tensor",
        unseen=_SINGLE,
    ),
    "a shared weight scale that differs": Damage(
        _one("up_proj.weight_global_scale", by=lambda v: v * 2), "llm-compressor (in_proj_z)"
    ),
    "one input scale of a product 30 times off": Damage(
        _one("up_proj.input_global_scale", "up_proj.input_scale", by=lambda v: v / 30), ""
    ),
    "every input scale the same": Damage(
        lambda f: (
            _each(".input_global_scale", by=lambda v: v * 0 + 2688)(f)
            or _each(".input_scale", by=lambda v: v * 0 + 1 / 448)(f)
        ),
        "never calibrated",
    ),
    "input scales 3 times too small": Damage(
        lambda f: (
            _each(".input_global_scale", by=lambda v: v * 3)(f)
            or _each(".input_scale", by=lambda v: v / 3)(f)
        ),
        "calibrated on too little",
        unseen="fit real inputs",
        with_source="fit real inputs",
    ),
    "group scales swizzled": Damage(_swizzled, "a kernel's own layout", unseen=_ORDER),
    "codes of a byte exchanged": Damage(
        _bytes(".weight_packed", lambda t: (t.data << 4) | (t.data >> 4)), "nibble order", _ORDER
    ),
    "one code flipped": Damage(_flip_code, "a bad disk", unseen=_SINGLE, with_source=_SINGLE),
    "rows of zero codes": Damage(_lost_rows, "ollama#15866, #15902"),
    "rest of a weight zero": Damage(_cut_short, "a download that stopped"),
    "channel scales without a column": Damage(_flat_channels, "vLLM and transformers raise"),
    "norms rounded twice": Damage(
        _each("layernorm.weight", by=lambda v: _bf16(_bf16(v + 1) - 1)),
        "llm-compressor's save",
        unseen=_UNQUANTIZED,
    ),
    "one norm stored as 1 + w": Damage(_one("input_layernorm.weight", by=lambda v: v + 1), ""),
    "every norm stored as 1 + w": Damage(
        _each("layernorm.weight", by=lambda v: v + 1), "", unseen=_UNQUANTIZED
    ),
    "a norm in FP16": Damage(_narrow_norm, ""),
    "an embedding 16 times too large": Damage(
        _one("embed_tokens.weight", by=lambda v: np.concatenate([v[:1] * 16, v[1:]])),
        "one exponent bit",
        unseen=_SINGLE,
    ),
    "lm_head quantized": Damage(_head_codes, "sglang#35228"),
    "KV cache scales": Damage(_cache_scale, "sglang#35228"),
    "names with base_layer": Damage(_wrapped, "an adapter that was not merged"),
    "a draft Linear outside ignore": Damage(_draft, "vllm#41994, #38832, #53387"),
    "ignore with .linear suffixes": Damage(
        _block(lambda b: b.update(ignore=[e if "re:" in e else f"{e}.linear" for e in _names(b)])),
        "vllm#51910",
    ),
    "ignore with trailing dots": Damage(
        _block(lambda b: b.update(ignore=[e if "re:" in e else f"{e}." for e in _names(b)])),
        "vllm#54547",
    ),
    "quant_method modelopt": Damage(
        _block(lambda b: b.update(quant_method="modelopt")), "ModelOpt"
    ),
    "architectures missing": Damage(_config(lambda c: c.pop("architectures"))),
    "architectures of the text model": Damage(
        _config(lambda c: c.update(architectures=["Qwen3_5ForCausalLM"]))
    ),
    "architectures as vLLM names it": Damage(
        _config(lambda c: c.update(architectures=["ClefForConditionalGeneration"]))
    ),
    "dtype float16": Damage(
        _config(lambda c: c.update(dtype="float16")), "vllm#33972, #33560, #33461"
    ),
    "format mixed-precision": Damage(_block(lambda b: b.update(format="mixed-precision"))),
    "no version": Damage(_block(lambda b: b.pop("version", None))),
    "no quantization_status": Damage(_block(lambda b: b.pop("quantization_status"))),
    "no joint head": Damage(_without("joint_head.safetensors", "clef_head/joint_head.safetensors")),
    "no processor config": Damage(
        _without("preprocessor_config.json", "processor_config.json"), "llm-compressor#1305"
    ),
}


def _names(block: dict[str, Any]) -> list[str]:
    return [entry for entry in block["ignore"] if isinstance(entry, str)]


def damage(source: Path, out: Path, kind: str, keep_manifest: bool = True) -> bool:
    """Writes a damaged copy; False where the checkpoint has nothing of the kind.

    Args:
        source: A quantized checkpoint.
        out: The folder to make.
        kind: A key of `DAMAGES`.
        keep_manifest: Leave `clefq.json` there, whose hashes tell.
    """
    shutil.copytree(source, out)
    if not keep_manifest:
        (out / "clefq.json").unlink(missing_ok=True)
    folder = Folder.open(out)
    if not DAMAGES[kind].edit(folder):
        return False
    folder.save()
    return True


def seen(kind: str, folder: Path, source: Path | None, sound_notes: set[str]) -> str:
    """What the audit makes of a damaged copy: `breach`, `note`, `listed`, `refused`, or `UNSEEN`.

    Args:
        kind: A key of `DAMAGES`.
        folder: The copy.
        source: The BF16 checkpoint, or None.
        sound_notes: Notes of the audit before the damage.
    """
    from clefq.errors import CheckpointError
    from clefq.quantize.audit import audit_checkpoint

    try:
        report = audit_checkpoint(folder, source)
    except CheckpointError:
        return "refused"
    if report.breaches:
        return "breach"
    if set(report.notes) - sound_notes:
        return "note"
    line = DAMAGES[kind].unseen if source is None else DAMAGES[kind].with_source
    listed = bool(line) and any(line in said for said in report.unproven)
    return "listed" if listed else "UNSEEN"


def matrix(checkpoints: list[Path], source: Path, kinds: list[str]) -> int:
    """Prints the table; the number of cells where nothing is said."""
    from clefq.quantize.audit import audit_checkpoint

    names = [path.name for path in checkpoints]
    print("| damage | reported as | " + " | ".join(names) + " |")
    print("|---" * (2 + len(names)) + "|")
    unseen = 0
    notes = {
        path: {
            _NO_MANIFEST,
            *audit_checkpoint(path).notes,
            *audit_checkpoint(path, source).notes,
        }
        for path in checkpoints
    }
    for kind in kinds:
        cells = []
        for path in checkpoints:
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder) / "copy"
                if not damage(path, copy, kind, keep_manifest=False):
                    cells.append("–")
                    continue
                words = [seen(kind, copy, given, notes[path]) for given in (None, source)]
                manifest = path / "clefq.json"
                if manifest.is_file():
                    shutil.copyfile(manifest, copy / "clefq.json")
                    words += [seen(kind, copy, given, notes[path]) for given in (None, source)]
            unseen += words.count("UNSEEN")
            cells.append(_cell(words))
        print(f"| {kind} | {DAMAGES[kind].where} | " + " | ".join(cells) + " |", flush=True)
    return unseen


def _cell(words: list[str]) -> str:
    """Without and with the source; with `clefq.json` too where that is not a breach."""
    alone, recorded = words[:2], words[2:]
    shown = words if set(recorded) - {"breach", "refused"} else alone
    return shown[0] if len(set(shown)) == 1 else " / ".join(shown)


_NO_MANIFEST = "no clefq.json: file hashes are not known."


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--kind", choices=sorted(DAMAGES), default="random codes")
    parser.add_argument("--matrix", action="store_true", help="audit every kind of damage")
    parser.add_argument("--source", type=Path, help="with --matrix: the BF16 checkpoint")
    parser.add_argument("--only", action="append", choices=sorted(DAMAGES), help="with --matrix")
    given = parser.parse_args()
    if given.matrix:
        if given.source is None:
            raise SystemExit("--matrix needs --source BF16")
        raise SystemExit(min(1, matrix(given.paths, given.source, given.only or list(DAMAGES))))
    if len(given.paths) != 2:
        raise SystemExit("use: python tools/damage_checkpoint.py CHECKPOINT OUT [--kind NAME]")
    source, out = given.paths
    if not damage(source, out, given.kind):
        shutil.rmtree(out)
        what = "FP4 weights of an MLP" if given.kind == "random codes" else f"what {given.kind} is"
        raise SystemExit(f"{source} holds no {what}")
    print(f"{out}: {given.kind}")


if __name__ == "__main__":
    sys.exit(main())
