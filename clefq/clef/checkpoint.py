"""A Clef checkpoint folder, opened and checked without loading a weight (torch-free)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefq.clef import modelopt
from clefq.clef.config_match import quantization_of
from clefq.clef.family import (
    FAMILY,
    TEXT,
    expected_tensors,
    linear_modules,
    missing_modules,
    text_prefix,
)
from clefq.clef.formats import scheme_from_config
from clefq.clef.head_config import HEAD_CONFIG_FILE, HEAD_FILE, HeadConfig, head_folder
from clefq.clef.modelopt import ModelOpt
from clefq.clef.tensor_files import (
    FLOAT_DTYPES,
    TensorInfo,
    check_head_file,
    read_header,
    same_bytes,
)
from clefq.clef.tokenizer import PromptTokenizer
from clefq.clef.weight_files import (
    INDEX,
    SINGLE,
    FolderTensors,
    refuse_other_weights,
    scan_folder,
)
from clefq.errors import CheckpointError, InputError
from clefq.plain_files import read_json, sha256_bytes, sha256_file

MANIFEST_FILE = "clefq.json"

LM_HEAD = "lm_head.weight"
EMBEDDING = f"{TEXT}.embed_tokens.weight"

_HASHED_FILES = ("config.json", HEAD_CONFIG_FILE, "tokenizer.json")
_RELEASE_FIX = "point at a folder laid out as the Clef release (config.json, model.safetensors…)."


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint: everything in it has been checked to be there and to fit together.

    Attributes:
        folder: The checkpoint folder.
        config: `config.json`.
        head_file: The joint head, in the folder or in `clef_head/`.
        head_config: Its dimensions.
        weight_files: The backbone's shards, sorted by name.
        tensors: Backbone tensor name to where it lies.
        quantization_config: From `config.json`; None for an unquantized checkpoint.
        manifest: `clefq.json`, or None when clefq did not make the checkpoint.
        modelopt: What ModelOpt says of it, where that made it; tensors and `quantization_config`
            are in compressed-tensors' terms then, if they can be.
    """

    folder: Path
    config: Mapping[str, Any]
    head_file: Path
    head_config: HeadConfig
    weight_files: tuple[Path, ...]
    tensors: Mapping[str, TensorInfo]
    quantization_config: Mapping[str, Any] | None
    manifest: Mapping[str, Any] | None
    modelopt: ModelOpt | None = None

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The language model's part of `config.json`."""
        text: Mapping[str, Any] = self.config.get("text_config", self.config)
        return text

    @property
    def lm_head(self) -> TensorInfo:
        """The output embeddings; the input embeddings where the two are tied."""
        return self.tensors.get(LM_HEAD) or self.tensors[EMBEDDING]

    @property
    def nbytes(self) -> int:
        """Bytes on disk of all weights, the head included."""
        return weight_bytes(self.folder)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Opens a checkpoint folder and checks its layout.

    Reads JSON files, safetensors headers and the tokenizer; loads no weight.

    Raises:
        CheckpointError: Not a Clef folder; head, config, shard or tokenizer missing, malformed or
            cut short; head of the wrong shape; output embeddings missing, misshapen or quantized.
    """
    if not folder.is_dir():
        raise CheckpointError(f"no checkpoint folder {folder}.", fix=_RELEASE_FIX)
    config = _read_config(folder / "config.json")
    head_file = head_folder(folder) / HEAD_FILE
    head_config = HeadConfig.from_folder(folder)
    check_head_file(head_file, head_config)
    refuse_other_weights(folder)
    found = _read_weights(folder)
    tensors, quantization = found.refs, _quantization_config(config, folder)
    theirs = modelopt.find(folder, config)
    if theirs is not None and not theirs.unread:
        linears = linear_modules(expected_tensors(config, text_prefix(tensors)) or {})
        translated = modelopt.translate(theirs, tensors, linears)
        tensors, quantization = translated.tensors, translated.config
    manifest = None
    if (folder / MANIFEST_FILE).is_file():
        manifest = _read_object(folder / MANIFEST_FILE)
    checkpoint = Checkpoint(
        folder=folder,
        config=config,
        head_file=head_file,
        head_config=head_config,
        weight_files=found.files,
        tensors=tensors,
        quantization_config=quantization,
        manifest=manifest,
        modelopt=theirs,
    )
    _check_modules(checkpoint)
    _check_sizes(checkpoint)
    PromptTokenizer.from_folder(folder)
    return checkpoint


def weight_bytes(folder: Path) -> int:
    """Bytes on disk of every `*.safetensors` of a folder, the head included; 0 without any.

    Subfolders such as `clef_head/` count, hidden ones do not.
    """
    return sum(path.stat().st_size for _, path in _visible(folder, _is_weights))


def checkpoint_sha256(folder: Path) -> str:
    r"""Identity of a checkpoint: a hash over the hashes of all that decides its answers.

    SHA-256 over `relative path\0sha256hex\n`, in path order, of every `*.safetensors`,
    `config.json`, `joint_head_config.json` and `tokenizer.json`, subfolders such as `clef_head/`
    included, hidden ones not.

    Raises:
        CheckpointError: The folder holds none of these files.
    """
    names = sorted(_visible(folder, _is_hashed))
    if not names:
        raise CheckpointError(f"{folder} holds no checkpoint.", fix=_RELEASE_FIX)
    lines = [f"{name}\0{sha256_file(path)}\n" for name, path in names]
    return sha256_bytes("".join(lines).encode())


def checkpoint_touched(folder: Path) -> float | None:
    """When a checkpoint was last written, copied, moved or linked to where it is.

    By the time of change, not of modification: an older build that is copied or moved into its
    place brings its modification times along.

    Args:
        folder: The checkpoint folder.

    Returns:
        Seconds since 1970; None where the folder holds nothing that `checkpoint_sha256` covers.
    """
    files = [path for _, path in _visible(folder, _is_hashed)]
    if not files:
        return None
    return max(stat.st_ctime for path in (folder, *files) for stat in (path.stat(), path.lstat()))


def _is_hashed(path: Path) -> bool:
    return _is_weights(path) or path.name in _HASHED_FILES


def _is_weights(path: Path) -> bool:
    return path.suffix == ".safetensors"


def _visible(folder: Path, wanted: Callable[[Path], bool]) -> Iterator[tuple[str, Path]]:
    """The wanted files of a checkpoint with their relative names."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        # what hidden folders hold (a download's cache) is no part of the checkpoint
        if wanted(path) and path.is_file() and not f"/{name}".count("/."):
            yield name, path


def scheme_of(checkpoint: Checkpoint) -> str:
    """Quantization scheme, a key of `clefq.clef.formats.SCHEMES`.

    Read off the quantization config and the tensors that are in fact quantized: `clefq.json` may
    lie beside weights that it does not belong to.
    """
    return scheme_from_config(checkpoint.quantization_config, checkpoint.tensors)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except InputError as error:
        raise CheckpointError(error.message, fix=_RELEASE_FIX) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not a JSON object.", fix=_RELEASE_FIX)
    return value


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: not a Clef checkpoint.", fix=_RELEASE_FIX)
    config = _read_object(path)
    architectures = config.get("architectures")
    if config.get("model_type") != FAMILY.model_type or architectures != [FAMILY.model_class]:
        raise CheckpointError(
            f"{path}: model_type {config.get('model_type')!r} with architectures "
            f"{architectures!r} is not Clef ({FAMILY.model_type!r}, {FAMILY.model_class}).",
            fix=_RELEASE_FIX,
        )
    for part in ("text_config", "vision_config"):
        if not isinstance(config.get(part, {}), dict):
            raise CheckpointError(f"{path}: {part} is not an object.", fix=_RELEASE_FIX)
    return config


def _quantization_config(config: Mapping[str, Any], folder: Path) -> Mapping[str, Any] | None:
    value = quantization_of(config)
    if value is not None and not isinstance(value, dict):
        raise CheckpointError(
            f"{folder / 'config.json'}: quantization_config is not an object.", fix=_RELEASE_FIX
        )
    return value


def _read_weights(folder: Path) -> FolderTensors:
    """The shards, where the index names exactly what they hold."""
    index, single = folder / INDEX, folder / SINGLE
    if not index.is_file():
        if not single.is_file():
            raise CheckpointError(f"{folder} has neither {INDEX} nor {SINGLE}.", fix=_RELEASE_FIX)
        return FolderTensors((single,), read_header(single), (), ())
    found = scan_folder(folder)
    faults = [f"{name} is in two shards" for name in found.doubled] + list(found.faults)
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise CheckpointError(
            f"{index} does not fit its shards: {faults[0]}{more}.",
            fix="download or copy the shards and the index again.",
        )
    return found


def _check_modules(checkpoint: Checkpoint) -> None:
    """Every module is there under its name: loaders fill what is missing with random numbers."""
    folder = checkpoint.folder
    adapters = [n for n in checkpoint.tensors if ".lora_" in n or ".base_layer." in n]
    if adapters:
        raise CheckpointError(
            f"{folder} holds an adapter that was never merged ({adapters[0]}).",
            fix="merge it first (peft: model.merge_and_unload()), then save the whole model.",
        )
    try:
        missing = missing_modules(checkpoint.text_config, checkpoint.tensors)
    except ValueError as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}.", fix=_RELEASE_FIX) from error
    if missing:
        more = f" and {len(missing) - 1} more modules" if len(missing) > 1 else ""
        raise CheckpointError(
            f"{folder}: no weights for {missing[0]}{more}.",
            fix="download all shards again; or save with the release's tensor names.",
        )


def _is_tied(config: Mapping[str, Any]) -> bool:
    """Whether either part of a config ties output to input embeddings: some engine obeys it."""
    inner = config.get("text_config")
    parts = (config, inner if isinstance(inner, Mapping) else {})
    return any(bool(part.get("tie_word_embeddings")) for part in parts)


def embeddings_agree(tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether output and input embeddings hold the same bytes, or one of them is not there.

    Reads them as far as they agree.
    """
    head = tensors.get(LM_HEAD)
    embedding = tensors.get(EMBEDDING) or tensors.get("model.embed_tokens.weight")
    return head is None or embedding is None or same_bytes(head, embedding)


def _check_sizes(checkpoint: Checkpoint) -> None:
    """The parts fit each other: embeddings present, unquantized, and as wide as the head says."""
    folder, text = checkpoint.folder, checkpoint.text_config
    tied = _is_tied(checkpoint.config)
    name = LM_HEAD
    if name not in checkpoint.tensors and tied:
        name = EMBEDDING
    info = checkpoint.tensors.get(name)
    packed = [t for t in checkpoint.tensors if t.startswith("lm_head.") and t != LM_HEAD]
    if packed or (info is not None and info.dtype not in FLOAT_DTYPES):
        raise CheckpointError(
            f"{folder}: lm_head is quantized; the head reads its rows as they are.",
            fix="quantize again with lm_head ignored, or take lm_head.weight from the BF16 source.",
        )
    if info is None:
        raise CheckpointError(
            f"{folder}: no tensor {name}; the joint head needs it.",
            fix="take lm_head.weight from the BF16 source.",
        )
    if tied and not embeddings_agree(checkpoint.tensors):
        raise CheckpointError(
            f"{folder / 'config.json'} ties lm_head to the embeddings, but lm_head.weight differs "
            "from them: engines disagree about the rows that the joint head reads.",
            fix="take config.json from the BF16 source, or set tie_word_embeddings to false there.",
        )
    hidden = checkpoint.head_config.hidden_size
    if text.get("hidden_size") != hidden:
        raise CheckpointError(
            f"{checkpoint.head_file}: made for hidden size {hidden}, the backbone has "
            f"{text.get('hidden_size')}.",
            fix="take head and backbone from the same release.",
        )
    if info.shape != (text.get("vocab_size"), hidden):
        raise CheckpointError(
            f"{info.file}: {name} has shape {list(info.shape)}, config.json says "
            f"[{text.get('vocab_size')}, {hidden}].",
            fix="take config.json and weights from the same release.",
        )
