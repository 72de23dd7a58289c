"""The parts of an output folder that are not backbone weights, and its manifest."""

from __future__ import annotations

import contextlib
import platform
import resource
import shutil
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from clefq.clef.family import FAMILY
from clefq.clef.weight_files import HEAD_FILES
from clefq.errors import InputError
from clefq.plain_files import sha256_bytes, sha256_file
from clefq.quantize.workers import in_threads

# what a release folder holds beside weights, index and config.json
_COPIED = (
    "tokenizer*",
    "vocab*",
    "merges*",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.jinja",
    "*processor_config.json",
    "preprocessor_config.json",
    "generation_config.json",
    "joint_head_config.json",
    "joint_schema_model.py",
    "LICENSE*",
    "NOTICE*",
    "clef_head/*",
)
IGNORED_DRAFTS = "re:.*mtp.*"
_IDENTITY = ("config.json", "joint_head_config.json", "tokenizer.json")
# endings of files that something loads or runs
LOADED = (
    ".py", ".so", ".json", ".jinja", ".safetensors", ".bin", ".pt", ".pth", ".pkl", ".gguf",
)  # fmt: skip
LIBRARIES = ("clefq", "torch", "transformers", "llmcompressor", "compressed-tensors")


def side_files(source: Path) -> list[str]:
    """What `copy_side_files` copies, as paths relative to the folder, sorted."""
    found = {path for pattern in _COPIED for path in source.glob(pattern) if path.is_file()}
    found |= {source / name for name in HEAD_FILES if (source / name).is_file()}
    return sorted(path.relative_to(source).as_posix() for path in found)


def copy_side_files(source: Path, target: Path) -> list[str]:
    """Copies head, tokenizer, processor, generation config, licence and release code.

    Returns:
        Paths relative to the folder, sorted.
    """
    names = side_files(source)
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)
    return names


def served_files(folder: Path) -> list[str]:
    """Files whose bytes are the checkpoint's identity, as relative paths, sorted."""
    return [name for name in _visible(folder) if _decides(name)]


def loaded_files(folder: Path) -> list[str]:
    """`served_files`, and whatever else beside them a loader would take up, sorted."""
    return [n for n in _visible(folder) if _decides(n) or ("/" not in n and n.endswith(LOADED))]


def _visible(folder: Path) -> list[str]:
    names = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return sorted(name for name in names if "/." not in f"/{name}")


def _decides(name: str) -> bool:
    return name.endswith(".safetensors") or Path(name).name in _IDENTITY


def hash_files(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a folder, by relative path; hidden ones are no part of it."""
    names = _visible(folder)
    digests = in_threads(sha256_file, [folder / name for name in names])
    return dict(zip(names, digests, strict=True))


def identity(files: Mapping[str, str]) -> str:
    """A checkpoint's hash from its files' hashes, as `clefq.clef.checkpoint_sha256` defines it."""
    lines = [f"{name}\0{digest}\n" for name, digest in sorted(files.items()) if _decides(name)]
    return sha256_bytes("".join(lines).encode())


def versions() -> dict[str, str]:
    """Versions of everything installed that decided the output's bytes."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def now() -> str:
    """The time, RFC 3339 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def peak_memory() -> int:
    """Highest resident memory so far, in bytes, of this process or of its largest child."""
    unit = 1 if sys.platform == "darwin" else 1024
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(own, children) * unit


def config_with(
    source: Mapping[str, Any], quantization: Mapping[str, Any], tensors: Iterable[str] = ()
) -> dict[str, Any]:
    """The source's `config.json` with a `quantization_config`; nothing else changes.

    Args:
        source: The source's config.
        quantization: The plan's `quantization_config`.
        tensors: The source's tensors: draft (MTP) layers among them stay as they are, which the
            ignore list must say, or engines build the drafter as quantized.
    """
    block = dict(quantization)
    if any(name.startswith(FAMILY.drafts) for name in tensors):
        block["ignore"] = [*(block.get("ignore") or []), IGNORED_DRAFTS]
    return {**source, "quantization_config": block}


def refuse_inside(out: Path, *folders: Path) -> None:
    """Refuses an output folder inside a checkpoint that is read: it would change it.

    Raises:
        InputError: `out` is one of the folders, or lies in one.
    """
    for folder in folders:
        if out.resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"{out} is inside {folder}, which would change that checkpoint.",
                fix="choose a folder beside it with --out.",
            )
