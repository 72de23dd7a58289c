"""`evidence.json`: the SHA-256 of every file of a bundle, and one hash over all of it.

The root is the SHA-256 over the compact JSON of `evidence.json` without `sha256`. Whoever knows
the root knows every byte; whoever does not can only say that the bundle agrees with itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from clefq import __version__
from clefq.plain_files import compact_json, sha256_bytes, sha256_file
from clefq.quantize.workers import in_threads
from clefq.store.atomic import write_json
from clefq.store.reading import Stored, expected, read_stored, to_plain

TREE = "evidence.json"
SCHEMA = "clefq.evidence/1"


@dataclass(frozen=True, slots=True)
class HashTree(Stored):
    """Contents of `evidence.json`.

    Attributes:
        schema: `clefq.evidence/1`.
        clefq_version: Version that packed the bundle.
        files: Relative path → SHA-256, of every file but `evidence.json`.
        sha256: The root.
    """

    schema: Annotated[str, expected(SCHEMA)]
    clefq_version: str
    files: Mapping[str, str]
    sha256: str


def files_of(folder: Path) -> list[str]:
    """Every file below a folder but its `evidence.json`, as relative paths, sorted.

    A link to a folder counts as a file: what lies behind it is not in the tree.
    """
    paths = (p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())
    names = (path.relative_to(folder).as_posix() for path in paths)
    return sorted(name for name in names if name != TREE)


def root_hash(tree: HashTree) -> str:
    """The root that belongs to the rest of the tree."""
    body: dict[str, Any] = to_plain(tree)
    del body["sha256"]
    return sha256_bytes(compact_json(body).encode("utf-8"))


def write_tree(folder: Path) -> HashTree:
    """Hashes a folder and writes its `evidence.json`."""
    names = files_of(folder)
    digests = in_threads(sha256_file, [folder / name for name in names])
    unsigned = HashTree(SCHEMA, __version__, dict(zip(names, digests, strict=True)), "")
    tree = HashTree(SCHEMA, __version__, unsigned.files, root_hash(unsigned))
    write_json(folder / TREE, to_plain(tree))
    return tree


def read_tree(folder: Path) -> HashTree:
    """Reads `evidence.json`.

    Raises:
        InputError: Missing, or not of this form.
    """
    return read_stored(HashTree, folder / TREE)


def tree_faults(folder: Path, tree: HashTree) -> list[str]:
    """Where a folder is not what its tree says, one line each."""
    found = []
    if root_hash(tree) != tree.sha256:
        found.append(f"{TREE}: the root hash does not match")
    text = (folder / TREE).read_bytes()
    if text != _canonical(tree):
        found.append(f"{TREE} is not laid out as it was written")
    there = files_of(folder)
    found += [f"{name} is missing" for name in sorted(tree.files.keys() - set(there))]
    found += [f"{name} is not in {TREE}" for name in there if name not in tree.files]
    both = [name for name in there if name in tree.files and (folder / name).is_file()]
    found += [f"{name} is no file" for name in there if not (folder / name).is_file()]
    digests = in_threads(sha256_file, [folder / name for name in both])
    found += [
        f"{name} was changed"
        for name, digest in zip(both, digests, strict=True)
        if digest != tree.files[name]
    ]
    return found


def _canonical(tree: HashTree) -> bytes:
    import json

    text = json.dumps(to_plain(tree), indent=2, sort_keys=True, ensure_ascii=False)
    return (text + "\n").encode("utf-8")
