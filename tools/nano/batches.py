"""Training batches: generated, encoded and padded by worker processes, ahead of the GPU.

Records of similar length share a batch of a fixed number of padded tokens. Padding stands on the
right, so causal layers never see it and no mask is needed; the head reads real tokens only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clefq.clef.encoding import Encoded, encode_record
from clefq.clef.head_batch import HeadBatch
from clefq.clef.records import Record
from clefq.clef.tokenizer import PromptTokenizer
from clefq.nano.scenes import Scene, pixels
from clefq.nano.tasks import RecordKey, record_of, scene_of
from tools.nano.corpus import Utterance, intent_options, intent_record

PATCH, MERGE, FRAMES = 16, 2, 2
CHUNK_TOKENS = 1 << 17
IMAGES_PER_BATCH = 64
# Task → share of the training tokens. Intents are the only ones that must be learned by heart.
MIXTURE: dict[str, float] = {
    "banking77": 0.23,
    "clinc150": 0.14,
    "catalogue": 0.09,
    "extraction": 0.1,
    "form": 0.06,
    "needle": 0.06,
    "policy": 0.07,
    "rating": 0.05,
    "request": 0.06,
    "routing": 0.1,
    "scenes": 0.05,
    "triage": 0.07,
}


@dataclass(frozen=True, slots=True)
class Example:
    """An encoded record with what the loss needs.

    Attributes:
        encoded: The prompt.
        gold: Position of the gold option, per question.
        cohort: For the evaluation.
        scene: What its image shows, or None.
    """

    encoded: Encoded
    gold: tuple[int, ...]
    cohort: str
    scene: Scene | None = None


@dataclass(frozen=True, slots=True)
class Media:
    """Images of a batch, one per record.

    Attributes:
        patches: float32 [patches, 3 · FRAMES · PATCH²], as the image processor orders them.
        grids: int64 [images, 3]: frames, rows and columns of patches.
        positions: int64 [3, records, padded length]: time, height and width of every token.
    """

    patches: torch.Tensor
    grids: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded records.

    Attributes:
        tokens: int64 [records, padded length].
        places: Flat positions of the real tokens, int64 [real tokens].
        head: Index tensors for the joint head.
        gold: Position of the gold option in its question, int64 [questions].
        media: Images, or None for a batch of text.
    """

    tokens: torch.Tensor
    places: torch.Tensor
    head: HeadBatch
    gold: torch.Tensor
    media: Media | None


def map_tensors(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure of dataclasses and tuples with `change` applied to its arrays."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: map_tensors(getattr(value, f.name), change) for f in fields(value)}
        return replace(value, **parts)
    if isinstance(value, tuple):
        return tuple(map_tensors(item, change) for item in value)
    return value


def encode_example(
    tokenizer: PromptTokenizer, record: Record, scene: Scene | None = None
) -> Example:
    """Encodes a record; the image of a scene takes one token per cell."""
    counts = [scene.rows * scene.columns] if scene else []
    encoded = encode_record(tokenizer, record, media_token_counts=counts)
    gold = tuple(q.option_ids.index(record.gold[q.id]) for q in encoded.questions)
    return Example(encoded, gold, record.cohort, scene)


def make_batch(examples: Sequence[Example], pad_id: int) -> Batch:
    """Pads records and builds the head's indices; records have images either all or none."""
    lengths = [len(example.encoded.token_ids) for example in examples]
    width = -(-max(lengths) // 16) * 16
    tokens = np.full((len(examples), width), pad_id, dtype=np.int64)
    for row, example in enumerate(examples):
        tokens[row, : lengths[row]] = example.encoded.token_ids
    starts = np.repeat(np.arange(len(lengths)) * width, lengths)
    firsts = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths)
    places = starts + np.arange(sum(lengths)) - firsts
    gold = np.array([g for example in examples for g in example.gold], dtype=np.int64)
    return Batch(
        tokens=torch.from_numpy(tokens),
        places=torch.from_numpy(places),
        head=HeadBatch.build([e.encoded for e in examples], chunk_tokens=CHUNK_TOKENS),
        gold=torch.from_numpy(gold),
        media=_media(examples, width) if examples[0].scene else None,
    )


def _media(examples: Sequence[Example], width: int) -> Media:
    patches, grids, positions = [], [], []
    for example in examples:
        assert example.scene is not None
        image = patchify(pixels(example.scene))
        rows, columns = example.scene.rows * MERGE, example.scene.columns * MERGE
        patches.append(image)
        grids.append((1, rows, columns))
        positions.append(_positions(example.encoded, example.scene, width))
    return Media(
        torch.from_numpy(np.concatenate(patches)),
        torch.tensor(grids, dtype=torch.int64),
        torch.from_numpy(np.stack(positions, axis=1)),
    )


def patchify(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Normalises uint8 [height, width, 3] and cuts it into merged groups of patches.

    Returns:
        float32 [patches, 3 · FRAMES · PATCH²].
    """
    scaled = (image.astype(np.float32) / np.float32(255) - 0.5) / 0.5
    rows, columns = image.shape[0] // (PATCH * MERGE), image.shape[1] // (PATCH * MERGE)
    grid = scaled.reshape(rows, MERGE, PATCH, columns, MERGE, PATCH, 3)
    grid = grid.transpose(0, 3, 1, 4, 6, 2, 5)[:, :, :, :, :, None]
    grid = np.repeat(grid, FRAMES, axis=5)
    return np.ascontiguousarray(grid.reshape(rows * columns * MERGE**2, -1))


def _positions(encoded: Encoded, scene: Scene, width: int) -> np.ndarray[Any, Any]:
    """Rotary positions int64 [3, width]: an image is as long as its longer side."""
    start = encoded.media_span[0] + 1  # behind the start token
    cells = scene.rows * scene.columns
    positions = np.empty((3, width), dtype=np.int64)
    positions[:, :start] = np.arange(start)
    row, column = np.divmod(np.arange(cells), scene.columns)
    positions[0, start : start + cells] = start
    positions[1, start : start + cells] = start + row
    positions[2, start : start + cells] = start + column
    after = start + max(scene.rows, scene.columns)
    positions[:, start + cells :] = after + np.arange(width - start - cells)
    return positions


@dataclass(frozen=True)
class StreamSpec:
    """What one worker streams.

    Attributes:
        weights: The checkpoint folder with the tokenizer.
        utterances: Rows of the public train splits.
        batch_tokens: Padded tokens per batch.
        seed: Of the run; workers differ by their number.
        progress: Returns how far the training is, from 0 to 1.
        mixture: Task → share of the tokens.
    """

    weights: Path
    utterances: tuple[Utterance, ...]
    batch_tokens: int
    seed: int
    progress: Callable[[], float]
    mixture: Mapping[str, float]


def stream(spec: StreamSpec, worker: int) -> Iterator[Batch]:
    """Endless training batches of one worker."""
    tokenizer = PromptTokenizer.from_folder(spec.weights)
    pad_id = tokenizer.encode("<|endoftext|>")[0]
    buckets: dict[tuple[bool, int], list[Example]] = {}
    for example in _examples(spec, tokenizer, worker):
        length = len(example.encoded.token_ids)
        step = 48 if length <= 960 else 256
        key = (example.scene is not None, -(-length // step) * step)
        bucket = buckets.setdefault(key, [])
        bucket.append(example)
        full = (len(bucket) + 1) * key[1] > spec.batch_tokens
        if full or (key[0] and len(bucket) >= IMAGES_PER_BATCH):
            yield make_batch(bucket, pad_id)
            del buckets[key]


def _examples(spec: StreamSpec, tokenizer: PromptTokenizer, worker: int) -> Iterator[Example]:
    """Draws tasks so that each gets its share of the tokens, whatever its records' lengths."""
    chance = random.Random(f"{spec.seed}/{worker}")
    by_source = {
        name: [row for row in spec.utterances if row.source == name]
        for name in ("banking77", "clinc150")
    }
    spent = dict.fromkeys(spec.mixture, 0.0)
    index = 0
    while True:
        task = min(spent, key=lambda name: spent[name] / spec.mixture[name])
        level = _level(chance, spec.progress())
        index += 1
        if task in by_source:
            row = chance.choice(by_source[task])
            options = intent_options(row, chance, level)
            record = intent_record(_worn(row, chance), options, f"{task}-{index}")
            example = encode_example(tokenizer, record)
        else:
            key = RecordKey(task, "train", spec.seed * 1000 + worker + 1, index)
            scene = scene_of(key, level) if task == "scenes" else None
            example = encode_example(tokenizer, record_of(key, level), scene)
        spent[task] += len(example.encoded.token_ids) * (0.5 + chance.random())
        yield example


def _level(chance: random.Random, progress: float) -> float:
    """Sizes start small and reach those of the sets after a quarter of the training."""
    ceiling = min(1.0, 0.1 + progress * 3.6)
    return ceiling if chance.random() < 0.5 else round(chance.random() * ceiling, 2)


def _worn(row: Utterance, chance: random.Random) -> Utterance:
    """The row with some words left out, every other time: 25,000 rows are soon known by heart."""
    words = row.text.split(" ")
    if len(words) < 4 or chance.random() < 0.5:
        return row
    kept = [word for word in words if chance.random() > 0.12]
    return replace(row, text=" ".join(kept or words))


class BatchStream(torch.utils.data.IterableDataset[Any]):
    """The batches of all worker processes, as numpy arrays for the way between processes."""

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        for batch in stream(self.spec, info.id if info else 0):
            yield map_tensors(batch, lambda tensor: tensor.numpy())


def fixed_batches(
    examples: Iterable[Example], batch_tokens: int, pad_id: int
) -> Iterator[tuple[list[Example], Batch]]:
    """Batches of given records, by length, for the evaluation."""
    group: list[Example] = []
    ordered = sorted(examples, key=lambda e: (e.scene is not None, len(e.encoded.token_ids)))
    for example in ordered:
        length = len(example.encoded.token_ids)
        mixed = group and (group[0].scene is None) != (example.scene is None)
        full = (len(group) + 1) * length > batch_tokens
        if group and (mixed or full or (example.scene and len(group) >= IMAGES_PER_BATCH)):
            yield group, make_batch(group, pad_id)
            group = []
        group.append(example)
    if group:
        yield group, make_batch(group, pad_id)
