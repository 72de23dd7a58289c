"""Accuracy and margins of the miniature by cohort, and the records it is judged on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from clefq.clef.records import Record
from clefq.clef.tokenizer import PromptTokenizer
from clefq.data.sources import banking77, clinc150
from clefq.nano.tasks import TASKS, RecordKey, record_of, scene_of
from tools.nano.batches import Example, encode_example, fixed_batches, map_tensors
from tools.nano.corpus import intent_record, read_utterances

if TYPE_CHECKING:
    from tools.nano.train import Miniature, Plan

JUDGE_SEED = 2  # of the eval split; most of the shipped set has another seed


def test_examples(tokenizer: PromptTokenizer, data: Path, *, quick: bool) -> list[Example]:
    """Records of the eval split, 77-way BANKING77 and CLINC150 by domain.

    Args:
        tokenizer: The miniature's.
        data: Folder of the public data sets.
        quick: A few records per task and of each public set.
    """
    examples = []
    for task in TASKS:
        for index in range(8 if quick else 200):
            key = RecordKey(task, "eval", JUDGE_SEED, index)
            scene = scene_of(key) if task == "scenes" else None
            examples.append(encode_example(tokenizer, record_of(key), scene))
    for record in _intents(data, 40 if quick else None):
        examples.append(encode_example(tokenizer, record))
    return examples


def _intents(data: Path, most: int | None) -> Iterator[Record]:
    rows = read_utterances(data, "test")
    for source in ("banking77", "clinc150"):
        for number, row in enumerate([r for r in rows if r.source == source][:most]):
            name = f"{source}-test-{number}"
            if source == "banking77":
                options = banking77.offered(row.label, name, "full")
            else:
                options = clinc150.offered(row.label, name, "domain")
            yield intent_record(row, options, name)


@torch.inference_mode()
def judge(
    model: Miniature, examples: Sequence[Example], plan: Plan, pad_id: int
) -> dict[str, dict[str, float]]:
    """Per cohort: questions, accuracy, mean log loss and share of margins below 0.2 and 0.5."""
    rows: dict[str, list[tuple[bool, float, float]]] = defaultdict(list)
    for group, batch in fixed_batches(examples, plan.batch_tokens, pad_id):
        moved = map_tensors(batch, lambda tensor: tensor.to(plan.device))
        if moved.media is not None:
            moved = map_tensors(
                moved, lambda t: t.to(torch.bfloat16) if t.is_floating_point() else t
            )
        logits = model.logits(model.hidden(moved), moved).float().softmax(-1).cpu().numpy()
        cohorts = [example.cohort for example in group for _ in example.gold]
        golds = [gold for example in group for gold in example.gold]
        for cohort, gold, p in zip(cohorts, golds, logits, strict=True):
            first, second = np.sort(p)[::-1][:2]
            row = (int(p.argmax()) == gold, -float(np.log(max(p[gold], 1e-9))), first - second)
            rows[cohort].append(row)
    ours = [row for task in TASKS for row in rows.get(task, [])]
    return {name: _summary(values) for name, values in [*rows.items(), ("generated", ours)]}


def _summary(rows: list[tuple[bool, float, float]]) -> dict[str, Any]:
    right, loss, margin = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    return {
        "questions": len(rows),
        "accuracy": round(float(right.mean()), 4),
        "log_loss": round(float(loss.mean()), 4),
        "margin_below_0.2": round(float((margin < 0.2).mean()), 4),
        "margin_below_0.5": round(float((margin < 0.5).mean()), 4),
    }
