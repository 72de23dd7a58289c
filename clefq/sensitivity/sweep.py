"""The sweep: every block alone in every scheme, each result written when it is known.

    OUT/blocks/LAYER.KIND-SCHEME.json   one measurement, with the hash of all that decides it
    OUT/baseline.parquet                BF16's answers
    OUT/layouts/HASH.json               one measured layout

A measurement that lies there under the right hash is taken over; any other is made again.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clefq.clef.formats import BF16
from clefq.errors import ClefqError, InputError
from clefq.plain_files import compact_json, sha256_bytes
from clefq.sensitivity.blocks import Block, Layout
from clefq.sensitivity.figures import Damage, Judge, MeasuredVariant
from clefq.sensitivity.schema import (
    ANSWERS_FILE,
    BASELINE_FILE,
    BlockResult,
    Effort,
    StoredBlock,
    load,
    save,
)
from clefq.sensitivity.session import Session
from clefq.store.predictions import (
    Predictions,
    check_replaceable,
    read_predictions,
    write_predictions,
)
from clefq.store.reading import Stored

if TYPE_CHECKING:
    from torch import Tensor

    from clefq.engines.base import RecordResult
    from clefq.sensitivity.prefix import Prefix

# tokens on which the error of a block's output is taken: a proxy, so a sample will do
PROXY_TOKENS = 8192


@dataclass(frozen=True)
class StoredBaseline(Stored):
    """What `baseline.json` says of `baseline.parquet`.

    Attributes:
        key: Hash of everything that decides it.
        seconds: Time of the BF16 run.
        layers: The model's layers.
    """

    key: str
    seconds: float
    layers: int


@dataclass(frozen=True)
class StoredLayout(Stored):
    """One measured layout.

    Attributes:
        key: Hash of everything that decides it.
        formats: Block name to format.
        damage: Measured on the answers.
    """

    key: str
    formats: Layout
    damage: Damage


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Attributes:
        baseline: BF16's answers.
        judge: Measures against them.
        stored: (block name, scheme) to measurement.
        effort: What it cost.
    """

    baseline: Predictions
    judge: Judge
    stored: dict[tuple[str, str], StoredBlock]
    effort: Effort


def run_sweep(session: Session) -> Sweep:
    """Measures every block in every scheme, or takes over what is there.

    Raises:
        ClefqError: A bad model or set, or BF16 itself gives no finite answers.
    """
    folder = session.spec.out / "blocks"
    pairs = [(block, scheme) for block in session.blocks for scheme in session.spec.schemes]
    stored: dict[tuple[str, str], StoredBlock] = {}
    for block, scheme in pairs:
        found = _known(_block_file(folder, block, scheme), session, [scheme])
        if found is not None:
            stored[block.name, scheme] = found
    resumed = len(stored)
    baseline = known_baseline(session)
    todo = [pair for pair in pairs if (pair[0].name, pair[1]) not in stored]
    if todo or baseline is None:
        if resumed:
            session.console.note(f"resuming: {resumed} of {len(pairs)} measurements are done")
        for result in _measure(session, todo):
            stored[result.result.block, result.result.scheme] = result
        baseline = known_baseline(session)
        assert baseline is not None
    ordered = {(b.name, s): stored[b.name, s] for b, s in pairs}
    judge = judge_of(session, baseline[0])
    return Sweep(baseline[0], judge, ordered, _effort(session, ordered, baseline[1], resumed))


def judge_of(session: Session, baseline: Predictions) -> Judge:
    """The judge of a baseline, over the records that it holds."""
    held = set(baseline.frame["record_id"])
    return Judge([record for record in session.records if record.id in held], baseline)


def _measure(session: Session, todo: Sequence[tuple[Block, str]]) -> Iterator[StoredBlock]:
    from clefq.sensitivity.prefix import Prefix

    with Prefix(session.engine, session.prompts, session.spec.memory) as prefix:
        judge = _run_baseline(session, prefix)
        with session.console.progress("measure blocks", len(todo)) as advance:
            for _, pairs in groupby(todo, lambda pair: pair[0].name):
                of_block = list(pairs)
                block = of_block[0][0]
                while prefix.layer < block.layer:
                    prefix.advance()
                reference = list(prefix.outputs(block.path, PROXY_TOKENS))
                for pair in of_block:
                    yield _one(session, prefix, _Yardstick(judge, reference), pair)
                    advance(1)


@dataclass(frozen=True)
class _Yardstick:
    """What a variant is held against: BF16's answers, and the block's own BF16 output."""

    judge: Judge
    reference: Sequence[Tensor]


def _run_baseline(session: Session, prefix: Prefix) -> Judge:
    from clefq.engines.predict import predictions_frame

    answers = session.spec.out / ANSWERS_FILE
    check_replaceable(answers, session.eval_folder.manifest.sha256)
    started = time.perf_counter()
    with session.console.progress("BF16", len(session.prompts)) as advance:
        results = prefix.baseline(advance)
    seconds = time.perf_counter() - started
    broken = [r for r in results if r.errors]
    if broken:
        raise ClefqError(
            f"BF16 itself fails on record {broken[0].record_id!r}: "
            f"{next(iter(broken[0].errors.values()))}.",
            fix="leave that record out of the set.",
        )
    by_id = {result.record_id: result for result in results}
    records = [record for record in session.records if record.id in by_id]
    frame = predictions_frame(records, [by_id[record.id] for record in records])
    write_predictions(answers, frame, session.meta())
    save(
        session.spec.out / BASELINE_FILE,
        StoredBaseline(session.scheme_key([]), seconds, prefix.layers),
    )
    return Judge(records, read_predictions(answers))


def _one(
    session: Session, prefix: Prefix, yardstick: _Yardstick, pair: tuple[Block, str]
) -> StoredBlock:
    block, scheme = pair
    started = time.perf_counter()
    with session.installer.installed([pair]) as errors:
        outputs = prefix.outputs(block.path, PROXY_TOKENS)
        output_error = _relative_error(outputs, yardstick.reference)
        results = prefix.run()
    measured = yardstick.judge.measure(results)
    result = BlockResult(
        block=block.name,
        layer=block.layer,
        kind=block.kind,
        scheme=scheme,
        damage=measured.damage,
        weight_error={name.rpartition(".")[2]: value for name, value in errors.items()},
        output_error=output_error,
        nbytes=block.nbytes(scheme),
        seconds=time.perf_counter() - started,
    )
    stored = StoredBlock(session.scheme_key([scheme]), result, _finite(measured))
    save(_block_file(session.spec.out / "blocks", block, scheme), stored)
    return stored


def _relative_error(outputs: Iterator[Tensor], reference: Sequence[Tensor]) -> float:
    off = norm = 0.0
    for ours, theirs in zip(outputs, reference, strict=True):
        off += float((ours.double() - theirs.double()).square().sum())
        norm += float(theirs.double().square().sum())
    return math.sqrt(off / norm) if norm > 0 else 0.0


def _finite(measured: MeasuredVariant) -> tuple[float | None, ...]:
    return tuple(float(v) if math.isfinite(v) else None for v in measured.kl)


def measure_layout(session: Session, judge: Judge, layout: Layout) -> Damage:
    """A whole layout's damage, by a full run.

    Args:
        session: The model and set.
        judge: The baseline's judge.
        layout: Block name to format.
    """
    used = sorted(set(layout.values()) - {BF16})
    results: list[RecordResult] = []
    chosen = [(block, layout.get(block.name, BF16)) for block in session.blocks]
    with (
        session.installer.installed(chosen),
        session.console.progress("measure layout", len(session.prompts)) as advance,
    ):
        for batch in session.engine.batches(session.prompts):
            results += session.engine.answer(batch, session.engine.hidden_states)
            advance(len(batch))
    damage = judge.measure(results).damage
    name = sha256_bytes(compact_json(layout).encode())[:16]
    path = session.spec.out / "layouts" / f"{name}.json"
    save(path, StoredLayout(session.scheme_key(used), layout, damage))
    return damage


def layouts_tried(session: Session) -> list[tuple[str, Layout, Damage]]:
    """Every layout that was measured in this folder on the same inputs: name, formats, damage."""
    found = []
    for path in sorted((session.spec.out / "layouts").glob("*.json")):
        with contextlib.suppress(InputError):
            stored = load(StoredLayout, path)
            used = sorted(set(stored.formats.values()) - {BF16})
            if stored.key == session.scheme_key(used):
                found.append((f"tried-{path.stem[:6]}", dict(stored.formats), stored.damage))
    return found


def predicted_kl(sweep: Sweep, layout: Layout) -> tuple[float | None, ...]:
    """KL per question of a layout: the sum over its blocks, each quantized alone."""
    chosen = [sweep.stored[name, form].kl for name, form in layout.items() if form != BF16]
    if not chosen:
        return (0.0,) * _questions(sweep)
    columns = np.array([[math.nan if v is None else v for v in kl] for kl in chosen])
    return tuple(None if math.isnan(v) else float(v) for v in columns.sum(axis=0))


def _questions(sweep: Sweep) -> int:
    return len(next(iter(sweep.stored.values())).kl)


def _block_file(folder: Path, block: Block, scheme: str) -> Path:
    return folder / f"{block.name}-{scheme}.json"


def _known(path: Path, session: Session, schemes: Sequence[str]) -> StoredBlock | None:
    """A finished measurement with the right hash, or None."""
    if not path.is_file():
        return None
    try:
        found = load(StoredBlock, path)
    except InputError:
        return None
    return found if found.key == session.scheme_key(schemes) else None


def known_baseline(session: Session) -> tuple[Predictions, StoredBaseline] | None:
    """BF16's answers of an earlier run with the same inputs, or None."""
    path = session.spec.out / BASELINE_FILE
    try:
        found = load(StoredBaseline, path)
        if found.key != session.scheme_key([]):
            return None
        return read_predictions(session.spec.out / ANSWERS_FILE), found
    except InputError:
        return None


def _effort(
    session: Session,
    stored: dict[tuple[str, str], StoredBlock],
    baseline: StoredBaseline,
    resumed: int,
) -> Effort:
    layers = baseline.layers
    runs = sum(layers - found.result.layer for found in stored.values())
    return Effort(
        variants=len(stored),
        # the BF16 run, and the kept states' way to the last layer
        layer_passes=runs + layers + layers - 1,
        full_passes=len(stored) * layers,
        seconds=sum(found.result.seconds for found in stored.values()),
        full_run_seconds=baseline.seconds,
        resumed=resumed,
    )
