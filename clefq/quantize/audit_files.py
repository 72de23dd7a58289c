"""Audit of the files beside the backbone: joint head, its config, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clefq.clef.tensor_files import read_header, same_bytes
from clefq.errors import CheckpointError
from clefq.quantize.report import AuditReport
from clefq.quantize.tensors import HEAD_FILES
from clefq.store.atomic import sha256_file

HEAD_CONFIG = "joint_head_config.json"
TOKENIZER = "tokenizer.json"


def head(report: AuditReport, folder: Path, source: Path | None) -> None:
    """Checks that joint head and tokenizer are there and, given a source, that they are its own.

    Files that were written anew with the same content (by a library that sorts or indents
    differently) are the source's: what they hold is compared, not their bytes.
    """
    report.looked_at("head")
    names = [*_head_files(report, folder, source), Path(TOKENIZER)]
    hashes = {}
    for path in names:
        if not (folder / path).is_file():
            effect = "prompts cannot be encoded" if path.name == TOKENIZER else "loading fails"
            report.breach("head", path.as_posix(), "is missing", effect)
            continue
        report.looked_at("head")
        hashes[path.as_posix()] = sha256_file(folder / path)
        theirs = None if source is None else _counterpart(source, path)
        if theirs is None or sha256_file(theirs) == hashes[path.as_posix()]:
            continue
        if _SAME[path.name](folder / path, theirs):
            report.notes.append(f"{path} was written anew, with the source's content.")
        else:
            report.breach("head", path.as_posix(), "is not the source's", "answers change")
    report.facts["sha256"] = hashes


def _head_files(report: AuditReport, folder: Path, source: Path | None) -> list[Path]:
    found = next((folder / name for name in HEAD_FILES if (folder / name).is_file()), None)
    if found is not None:
        beside = found.with_name(HEAD_CONFIG)
        settings = beside if beside.is_file() else folder / HEAD_CONFIG
        return [found.relative_to(folder), settings.relative_to(folder)]
    if source is not None and any((source / name).is_file() for name in HEAD_FILES):
        report.breach("head", HEAD_FILES[0], "is missing", "it is no Clef any more")
    else:
        report.notes.append("no joint head: a backbone, not a Clef.")
    return []


def _counterpart(source: Path, path: Path) -> Path | None:
    options = (source / path, source / path.name, source / "clef_head" / path.name)
    return next((option for option in options if option.is_file()), None)


def _same_tensors(ours: Path, theirs: Path) -> bool:
    try:
        a, b = read_header(ours), read_header(theirs)
    except CheckpointError:
        return False
    return a.keys() == b.keys() and all(same_bytes(a[name], b[name]) for name in a)


def _same_json(ours: Path, theirs: Path) -> bool:
    return bool(_load(ours) == _load(theirs))


def _same_tokenizer(ours: Path, theirs: Path) -> bool:
    a, b = _load(ours), _load(theirs)
    if not isinstance(a, dict) or not isinstance(b, dict):
        return False
    # padding and truncation are settings of whoever saved it; encoding switches both off
    keys = {*a, *b} - {"padding", "truncation", "version"}
    return all(_plain(a.get(key)) == _plain(b.get(key)) for key in keys)


def _plain(value: Any) -> Any:
    """Merges are pairs or strings of two words, depending on the writer's version."""
    if isinstance(value, dict) and isinstance(value.get("merges"), list):
        pairs = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in value["merges"]]
        return {**value, "merges": pairs}
    return value


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None


_SAME: dict[str, Callable[[Path, Path], bool]] = {
    Path(HEAD_FILES[0]).name: _same_tensors,
    HEAD_CONFIG: _same_json,
    TOKENIZER: _same_tokenizer,
}
