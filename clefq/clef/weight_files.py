"""The backbone's shards of a folder: the index and every header, read once.

Nothing here needs torch, and no tensor is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clefq.clef.tensor_files import TensorInfo, read_header
from clefq.errors import CheckpointError
from clefq.plain_files import read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
HEAD_FILES = ("joint_head.safetensors", "clef_head/joint_head.safetensors")


def weight_files(folder: Path) -> list[Path]:
    """The backbone's shards, from the index where there is one, else by name; never the head.

    Raises:
        CheckpointError: No weights, or a shard that the index names is missing.
    """
    return _weight_files(folder, _find_map(folder))


_POINTER = b"version https://git-lfs"
_OTHER_WEIGHTS = {
    "*.gguf": "GGUF, which is llama.cpp's format",
    "*.bin": "PyTorch pickles (.bin)",
    "*.pt": "PyTorch pickles (.pt)",
}


def refuse_other_weights(folder: Path) -> None:
    """Refuses a folder whose weights are there in another form.

    Raises:
        CheckpointError: Git LFS pointers, an adapter alone, or no safetensors but other weights.
    """
    found = sorted(folder.glob("*.safetensors"))
    tensors = [path for path in found if path.name not in HEAD_FILES]
    pointers = [path for path in tensors if _starts(path)]
    if pointers:
        raise CheckpointError(
            f"{pointers[0]} is a Git LFS pointer, not the weights ({len(pointers)} files).",
            fix="run `git lfs pull` in that folder, or `hf download ORG/NAME --local-dir DIR`.",
        )
    if [path.name for path in tensors] == ["adapter_model.safetensors"]:
        raise CheckpointError(
            f"{folder} holds an adapter alone, without the model that it belongs to.",
            fix="load it on its model, merge it (peft: merge_and_unload), and save the whole.",
        )
    if tensors:
        return
    for pattern, what in _OTHER_WEIGHTS.items():
        if any(folder.glob(pattern)):
            raise CheckpointError(
                f"{folder} holds {what}, and no *.safetensors.",
                fix="clefq reads safetensors alone; make it anew with `clefq quantize`, or ask the "
                "publisher for them.",
            )


def _starts(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER


def _weight_files(folder: Path, table: Mapping[str, str] | None) -> list[Path]:
    if table is not None:
        files = [folder / name for name in sorted(set(table.values()))]
    else:
        files = sorted(p for p in folder.glob("*.safetensors") if p.name not in HEAD_FILES)
    if not files:
        raise CheckpointError(f"{folder} holds no *.safetensors weights.", fix="check the path.")
    for file in files:
        if not file.is_file():
            raise CheckpointError(
                f"{file} is missing, though {INDEX} names it.", fix="download that shard again."
            )
    return files


def _find_map(folder: Path) -> dict[str, str] | None:
    return _weight_map(folder / INDEX) if (folder / INDEX).is_file() else None


def _weight_map(index: Path) -> dict[str, str]:
    body = read_json(index)
    table = body.get("weight_map") if isinstance(body, dict) else None
    if not isinstance(table, dict) or not table:
        raise CheckpointError(f"{index} has no weight_map.", fix="download that file again.")
    if any("/" in str(name) or str(name).startswith(".") for name in table.values()):
        raise CheckpointError(
            f"{index} names files outside the folder.", fix="download that file again."
        )
    return {str(key): str(value) for key, value in table.items()}


@dataclass(frozen=True, slots=True)
class FolderTensors:
    """Every backbone tensor of a folder.

    Attributes:
        files: The shards, sorted by name.
        refs: Name to place, in file order.
        doubled: Names that more than one shard holds.
        faults: Where index and shards disagree, one line each.
    """

    files: tuple[Path, ...]
    refs: dict[str, TensorInfo]
    doubled: tuple[str, ...]
    faults: tuple[str, ...]


def scan_folder(folder: Path) -> FolderTensors:
    """Reads the headers of every backbone shard.

    Raises:
        CheckpointError: A shard is missing or malformed.
    """
    refs: dict[str, TensorInfo] = {}
    doubled: list[str] = []
    table = _find_map(folder)
    files = _weight_files(folder, table)
    for file in files:
        for name, ref in read_header(file).items():
            if name in refs:
                doubled.append(name)
            refs.setdefault(name, ref)
    faults = []
    if table is not None:
        if (folder / SINGLE).is_file() and SINGLE not in table.values():
            faults.append(f"{SINGLE} is there and not in {INDEX}: transformers loads it instead")
        faults += [
            f"{INDEX} names {n}, which no shard holds" for n in sorted(set(table) - set(refs))
        ]
        faults += [f"{INDEX} does not name {n}" for n in sorted(set(refs) - set(table))]
        faults += [
            f"{INDEX} places {n} in {table[n]}, it is in {refs[n].file.name}"
            for n in sorted(set(refs) & set(table))
            if refs[n].file.name != table[n] and n not in doubled
        ]
    return FolderTensors(tuple(files), refs, tuple(doubled), tuple(faults))


def open_tensors(folder: Path) -> dict[str, TensorInfo]:
    """Every backbone tensor of a sound folder.

    Raises:
        CheckpointError: A shard is missing or malformed, index and shards disagree, or a tensor
            is there twice.
    """
    found = scan_folder(folder)
    faults = [f"{name} is in two shards" for name in found.doubled] + list(found.faults)
    if faults:
        raise CheckpointError(
            f"{folder}: {faults[0]}.", fix="download the model again.", faults=faults[1:]
        )
    return found.refs
