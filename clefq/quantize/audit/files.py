"""Audit of the files beside the backbone: joint head, its config, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clefq.clef.family import FAMILY
from clefq.clef.head_config import HeadConfig
from clefq.clef.images import PROCESSOR_FILES
from clefq.clef.tensor_files import check_head_file, read_header, same_bytes
from clefq.clef.weight_files import HEAD_FILES
from clefq.errors import ClefqError
from clefq.plain_files import read_json, sha256_file
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.audit.values import IMPOSSIBLE, scan
from clefq.quantize.finish import side_files

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
    there = [folder / name for name in HEAD_FILES if (folder / name).is_file()]
    if len(there) > 1 and not _same_tensors(*there):
        first, other = HEAD_FILES
        report.breach("head", other, f"is another head than {first}", "loaders differ in which")
    found = there[0] if there else None
    if found is not None:
        beside = found.with_name(HEAD_CONFIG)
        settings = beside if beside.is_file() else folder / HEAD_CONFIG
        if settings.is_file():
            _whole(report, found, settings)
        return [found.relative_to(folder), settings.relative_to(folder)]
    if source is not None and any((source / name).is_file() for name in HEAD_FILES):
        report.breach("head", HEAD_FILES[0], "is missing", "it is no Clef any more")
    else:
        report.notes.append("no joint head: a backbone, not a Clef.")
    return []


def _whole(report: AuditReport, file: Path, settings: Path) -> None:
    try:
        tensors = check_head_file(file, HeadConfig.from_json(read_json(settings), settings.name))
    except ClefqError as error:
        fix = f"; {error.fix}" if error.fix else ""
        report.breach("head", file.name, f"is not whole: {error.message}", f"loading fails{fix}")
        return
    for ref in tensors.values():
        bad, zeros = scan(ref)
        if zeros is not None:
            message = f"{ref.name} is zero from byte {zeros.at:,} on, for {zeros.count:,} bytes"
            report.breach("head", file.name, message, "most likely the file was cut short")
        if bad:
            message = f"{ref.name} holds {bad} {IMPOSSIBLE}"
            report.breach("head", file.name, message, "answers are NaN or noise")


# what a config may say otherwise than its source without any effect on an answer
_FREE = {
    "quantization_config", "compression_config", "transformers_version", "_name_or_path",
    "use_cache", "name_or_path",
}  # fmt: skip


def settings(report: AuditReport, folder: Path, config: Mapping[str, Any], source: Path) -> None:
    """Compares `config.json` and the image processor's settings with the source's.

    A library that saves a config anew leaves out, or fills in, what is the default: where the
    texts differ, both are read by transformers, if it is there, and compared then.

    Args:
        report: Takes the breaches.
        folder: The checkpoint.
        config: Its `config.json`.
        source: The BF16 checkpoint.
    """
    report.looked_at("head")
    for line in _config_differences(config, read_json(source / "config.json")):
        report.breach("head", "config.json", line, "answers change")
    for name in PROCESSOR_FILES:
        if not (source / name).is_file():
            continue
        report.looked_at("head")
        if not (folder / name).is_file():
            report.breach("head", name, "is missing", "images are read otherwise or not at all")
            continue
        ours, other = _load(folder / name), _load(source / name)
        for line in _differences(ours, other, both=True):
            report.breach("head", name, line, "images are read otherwise")
    told = any(breach.subject in PROCESSOR_FILES for breach in report.of("head"))
    if not told and not all(_same(name, folder, source) for name in PROCESSOR_FILES):
        # what one of them leaves out, or has in the other file
        for line in _differences(_image_settings(folder), _image_settings(source), both=True):
            report.breach("head", PROCESSOR_FILES[0], line, "images are read otherwise")
    _others(report, folder, source)


def _image_settings(folder: Path) -> dict[str, Any]:
    """The settings that transformers reads images with, defaults filled in, where it is there."""
    has_files = any((folder / name).is_file() for name in PROCESSOR_FILES)
    if find_spec("transformers") is None or find_spec("PIL") is None or not has_files:
        return {}
    from transformers import Qwen2VLImageProcessorPil

    try:
        read = Qwen2VLImageProcessorPil.from_pretrained(str(folder)).to_dict()
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    return dict(read)


def _others(report: AuditReport, folder: Path, source: Path) -> None:
    """Files that clefq does not read and other loaders do: a word where they are not the source's.

    Libraries write some of them anew, and people add release code of their own on purpose.
    """
    names = sorted({*side_files(folder), *side_files(source)})
    read = [n for n in names if Path(n).name not in _COMPARED and not n.startswith(_LEGAL)]
    other = [name for name in read if not _same(name, folder, source)]
    if other:
        report.notes.append(
            f"not the source's, and not read by clefq: {', '.join(other)}; other loaders may."
        )


_LEGAL = ("LICENSE", "NOTICE")
_COMPARED = {*PROCESSOR_FILES, HEAD_CONFIG, TOKENIZER, Path(HEAD_FILES[0]).name}


def _same(name: str, folder: Path, source: Path) -> bool:
    ours, theirs = folder / name, source / name
    if not (ours.is_file() and theirs.is_file()):
        return ours.is_file() == theirs.is_file()
    return sha256_file(ours) == sha256_file(theirs)


def _config_differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    try:
        wrong = _differences(_plain_config(ours), _plain_config(theirs))
        read = (_resolved(ours), _resolved(theirs)) if wrong else (None, None)
    except RecursionError:
        return ["is nested deeper than any model's"]
    if read[0] is not None and read[1] is not None:
        wrong = _differences(read[0], read[1])
    return wrong


def _plain_config(config: Mapping[str, Any], outer: object = None) -> dict[str, Any]:
    named = {"dtype" if key == "torch_dtype" else key: value for key, value in config.items()}
    dtype = named.pop("dtype", None) or outer
    # a part without a type of its own has that of the whole
    plain: dict[str, Any] = {} if dtype == outer else {"dtype": dtype}
    for key, value in named.items():
        if key not in _FREE:
            plain[key] = _plain_config(value, dtype) if isinstance(value, Mapping) else value
    return plain


def _resolved(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config with its defaults, or None where transformers cannot read it."""
    if find_spec("transformers") is None or config.get("model_type") != FAMILY.model_type:
        return None
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    try:
        values = {k: v for k, v in config.items() if k not in _FREE}
        read = getattr(transformers, FAMILY.config_class).from_dict(values).to_dict()
    except (StrictDataclassError, AttributeError, ValueError, TypeError, KeyError):
        return None
    return _plain_config(json.loads(json.dumps(read, default=str)))


def _differences(ours: Any, theirs: Any, at: str = "", both: bool = False) -> list[str]:
    """One line per value that differs; with `both`, only among keys that both have."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        keys = ours.keys() & theirs.keys() if both else ours.keys() | theirs.keys()
        return [
            line
            for key in sorted(keys)
            for line in _differences(
                ours.get(key, _ABSENT), theirs.get(key, _ABSENT), f"{at}.{key}".lstrip("."), both
            )
        ]
    return [] if ours == theirs else [f"{at} is {_short(ours)}, the source has {_short(theirs)}"]


_ABSENT = "(nothing)"


def _short(value: Any) -> str:
    text = value if value is _ABSENT else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _counterpart(source: Path, path: Path) -> Path | None:
    options = (source / path, source / path.name, source / "clef_head" / path.name)
    return next((option for option in options if option.is_file()), None)


def _same_tensors(ours: Path, theirs: Path) -> bool:
    try:
        a, b = read_header(ours), read_header(theirs)
    except ClefqError:
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
    except (ValueError, RecursionError):  # no JSON, or nested as no real file is
        return None


_SAME: dict[str, Callable[[Path, Path], bool]] = {
    Path(HEAD_FILES[0]).name: _same_tensors,
    HEAD_CONFIG: _same_json,
    TOKENIZER: _same_tokenizer,
}
