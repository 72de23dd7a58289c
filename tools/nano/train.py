"""Trains the miniature from scratch: `python -m tools.nano.train --data DIR --out DIR`.

Backbone and joint head learn together: cross-entropy over every question's options, and a small
next-token loss that ties `lm_head` (whose rows the head reads as lexical vectors) to the text.
Master weights are FP32, matrix products BF16; sizes of the records grow over the first quarter
of the time, and the learning rate warms up, stays, and falls linearly to zero. The clock, not a
number of steps, ends the run. The result is judged in BF16, as it is shipped.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from clefq.clef.head import HeadConfig, JointHead
from clefq.clef.tokenizer import PromptTokenizer
from clefq.nano import WEIGHTS
from clefq.store.atomic import write_json
from tools.nano.batches import MIXTURE, Batch, BatchStream, Example, StreamSpec, map_tensors
from tools.nano.build import HEAD, nano_config, token_ids_of, write_release
from tools.nano.corpus import read_utterances
from tools.nano.judge import judge, test_examples
from tools.nano.lean import start_value, use_lean_layers

STATE_PARTS = 2
SAVE_EVERY = 2000
# Padding stands on the right of causal layers. Given no mask at all, the library would look for
# packed sequences in the positions, and the host would wait for the GPU at every step.
_NO_MASKS = {"full_attention": None, "linear_attention": None}


@dataclass(frozen=True)
class Plan:
    """How to train.

    Attributes:
        seconds: From the start of the process to the end of the training; judging comes after.
        device: `cuda` or `cpu`.
        batch_tokens: Padded tokens per step.
        workers: Processes that make batches.
        peak: Highest learning rate.
        warmup: Steps until it is reached.
        decay: Share of the time over which it falls to zero at the end.
        lm_weight: Weight of the next-token loss at the start; a tenth of it at the end.
        seed: Of weights and data.
        begin: Where the growth of the records begins, from 0 to 1: a continued training may have
            been through the small ones.
        tasks: Which of the mixture to train on.
    """

    seconds: float
    device: str
    batch_tokens: int = 32768
    workers: int = 14
    peak: float = 2e-3
    warmup: int = 300
    decay: float = 0.35
    lm_weight: float = 0.3
    seed: int = 1
    begin: float = 0.0
    tasks: tuple[str, ...] = tuple(MIXTURE)


class Miniature(torch.nn.Module):
    """Backbone and head in one module."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        from transformers import Qwen3_5ForConditionalGeneration

        self.backbone = Qwen3_5ForConditionalGeneration(config)
        self.backbone.config.use_cache = False
        self.head = JointHead(HeadConfig(**HEAD))

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Final hidden states of the real tokens, [real tokens, hidden]."""
        model = self.backbone.model
        if batch.media is None:
            output = model.language_model(
                input_ids=batch.tokens, attention_mask=dict(_NO_MASKS), use_cache=False
            )
        else:
            output = model(
                input_ids=batch.tokens,
                attention_mask=dict(_NO_MASKS),
                position_ids=batch.media.positions,
                pixel_values=batch.media.patches,
                image_grid_thw=batch.media.grids,
                use_cache=False,
            )
        return output.last_hidden_state.flatten(0, 1).index_select(0, batch.places)

    def logits(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Option logits as a matrix [questions, most options], padded with −inf."""
        rows = functional.embedding(batch.head.option_token_ids, self.backbone.lm_head.weight)
        flat = self.head(hidden.to(self.head.prior_logit_scale.dtype), batch.head, rows)
        shape = (len(batch.gold), batch.head.max_options)
        padded = flat.new_full((shape[0] * shape[1],), -torch.inf)
        return padded.index_copy(0, batch.head.option_slot, flat).view(shape)


def new_model(plan: Plan, tokenizer_file: Path) -> Miniature:
    """A model to train, on its device, with starting values that let the head learn at once."""
    torch.manual_seed(plan.seed)
    model = Miniature(nano_config(token_ids_of(tokenizer_file)))
    with torch.no_grad():
        model.head.prior_logit_scale.fill_(2.0)
        model.head.joint_logit_scale.fill_(2.0)
        model.head.residual_gate.fill_(1.0)
        model.head.type_embedding.weight.mul_(0.1)
        for name, parameter in model.backbone.named_parameters():
            start_value(name, parameter)
    return model.to(plan.device)


def losses(
    model: Miniature, batch: Batch, device: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Decision loss, next-token loss and accuracy of a batch."""
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        hidden = model.hidden(batch)
        words = model.backbone.lm_head(hidden)
    logits = model.logits(hidden, batch)
    decision = functional.cross_entropy(logits, batch.gold)
    ids = batch.tokens.flatten()[batch.places]
    # A record's last token has no successor; that its pair crosses records does not matter.
    text = functional.cross_entropy(words[:-1].float(), ids[1:])
    right = (logits.argmax(-1) == batch.gold).float().mean()
    return decision, text, right.detach()


def optimizer_of(model: Miniature, plan: Plan) -> torch.optim.AdamW:
    """AdamW; only matrices decay."""
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        plain = parameter.ndim < 2 or "embed" in name or "conv1d" in name
        (others if plain else matrices).append(parameter)
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        groups, lr=plan.peak, betas=(0.9, 0.95), eps=1e-9, fused=plan.device == "cuda"
    )


def rate(plan: Plan, step: int, progress: float) -> float:
    """Learning rate of a step."""
    up = min(1.0, (step + 1) / plan.warmup)
    down = min(1.0, max(0.0, 1.0 - progress) / plan.decay)
    return plan.peak * up * down


def _sent(array: Any, device: str) -> torch.Tensor:
    """An array on its way to the device; pinned, so that the host does not wait for it."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device == "cuda" else tensor


def train(run: Run, batches: Iterator[Any]) -> list[Any]:
    """Trains until the time is over; returns the log, one entry per 100 steps."""
    model, plan, progress = run.model, run.plan, run.progress
    optimizer = optimizer_of(model, plan)
    log: list[dict[str, float]] = []
    sums = torch.zeros(3, device=plan.device)
    start, step, tokens = None, 0, 0
    every = 100 if plan.device == "cuda" else 10
    while progress.value < 1.0:
        batch = map_tensors(next(batches), lambda array: _sent(array, plan.device))
        lr = rate(plan, step, progress.value)
        for group in optimizer.param_groups:
            group["lr"] = lr
        decision, text, right = losses(model, batch, plan.device)
        weight = plan.lm_weight * (1.0 - 0.9 * progress.value)
        (decision + weight * text).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if plan.device == "cuda":
            # The fused kernel leaves out a step whose gradient is not finite.
            vars(optimizer)["found_inf"] = (~torch.isfinite(norm)).float()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        sums += torch.stack([decision.detach(), text.detach(), right])
        step, tokens = step + 1, tokens + len(batch.places)
        if start is None and (step == 30 or run.seconds > plan.seconds / 3):
            start = run.seconds  # kernels are built by now
        if start is not None:
            progress.value = (run.seconds - start) / (plan.seconds - start)
        if step % every == 0:
            means = (sums / every).tolist()
            sums.zero_()
            names = ("step", "seconds", "tokens", "rate", "decision", "text", "accuracy")
            entry = dict(zip(names, (step, round(run.seconds, 1), tokens, lr, *means), strict=True))
            log.append(entry)
            if len(log) % 5 == 1 or plan.device == "cpu":
                print(json.dumps({k: float(f"{v:.5g}") for k, v in entry.items()}), flush=True)
        if step % SAVE_EVERY == 0:
            save_state(model, run.out)
    return log


def load_state(model: Miniature, folder: Path) -> None:
    """Continues from the FP32 weights that an earlier run left in `folder`."""
    from safetensors.torch import load_file

    state: dict[str, torch.Tensor] = {}
    for part in range(STATE_PARTS):
        state |= load_file(folder / f"master-{part}.safetensors")
    model.load_state_dict(state, strict=True)


def save_state(model: Miniature, out: Path) -> None:
    """Writes the FP32 weights, in parts that each stay below 16 MB."""
    from safetensors.torch import save_file

    state = model.state_dict()
    names = sorted(state)
    for part in range(STATE_PARTS):
        values = {name: state[name].cpu().contiguous() for name in names[part::STATE_PARTS]}
        save_file(values, out / f"master-{part}.safetensors")


def save(model: Miniature, out: Path, tokenizer_file: Path) -> None:
    """Writes the BF16 checkpoint (a tar file) and the FP32 weights."""
    save_state(model, out)
    shipped = copy.deepcopy(model).cpu()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "nano"
        write_release(folder, shipped.backbone, shipped.head.state_dict(), tokenizer_file)
        with tarfile.open(out / "nano.tar", "w") as archive:
            archive.add(folder, arcname="nano")


@dataclass
class Run:
    """One training run.

    Attributes:
        model: What is trained.
        plan: How.
        out: Where the results go.
        progress: Shared with the workers: from 0 to 1.
        began: When the process began, on the monotonic clock.
    """

    model: Miniature
    plan: Plan
    out: Path
    progress: Any
    began: float

    @property
    def seconds(self) -> float:
        """Since the process began."""
        return time.monotonic() - self.began


def start_batches(plan: Plan, data: Path, progress: Callable[[], float]) -> Iterator[Any]:
    """Starts the workers; must come before the first CUDA call, because they are forked."""
    spec = StreamSpec(
        WEIGHTS,
        tuple(read_utterances(data)),
        plan.batch_tokens,
        plan.seed,
        progress,
        {task: MIXTURE[task] for task in plan.tasks},
    )
    loader = torch.utils.data.DataLoader(
        BatchStream(spec),
        batch_size=None,
        num_workers=plan.workers,
        prefetch_factor=4 if plan.workers else None,
        multiprocessing_context="fork" if plan.workers else None,
        collate_fn=lambda batch: batch,
    )
    return iter(loader)


def perform(plan: Plan, data: Path, out: Path, resume: Path | None) -> dict[str, Any]:
    """Trains, saves and judges; returns the log."""
    began = time.monotonic()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are processes already
    torch.set_float32_matmul_precision("high")
    progress = multiprocessing.get_context("fork").Value("d", 0.0)
    batches = start_batches(plan, data, lambda: max(plan.begin, float(progress.value)))
    use_lean_layers()
    model = new_model(plan, WEIGHTS / "tokenizer.json")
    if resume is not None:
        load_state(model, resume)
    run = Run(model.train(), plan, out, progress, began)
    log: dict[str, Any] = {"plan": vars(plan), "steps": train(run, batches)}
    del batches
    log["trained"] = run.seconds
    save(model, out, WEIGHTS / "tokenizer.json")
    write_json(out / "train-log.json", log)
    log["judged"] = report(model, plan, data)
    log["seconds"] = run.seconds
    write_json(out / "train-log.json", log)
    return log


def report(model: Miniature, plan: Plan, data: Path) -> dict[str, Any]:
    """Accuracy and margins by cohort, in BF16, on the eval split and the public test splits."""
    tokenizer = PromptTokenizer.from_folder(WEIGHTS)
    quick = plan.device == "cpu"
    examples: Sequence[Example] = test_examples(tokenizer, data, quick=quick)
    shipped = copy.deepcopy(model).to(torch.bfloat16).eval()
    result = judge(shipped, examples, plan, tokenizer.encode("<|endoftext|>")[0])
    for cohort, values in result.items():
        print(cohort, json.dumps(values), flush=True)
    return result


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the public data sets")
    parser.add_argument("--out", type=Path, required=True, help="where the results go")
    parser.add_argument("--seconds", type=float, default=525.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-tokens", type=int, default=Plan.batch_tokens)
    parser.add_argument("--workers", type=int, default=Plan.workers)
    parser.add_argument("--peak", type=float, default=Plan.peak)
    parser.add_argument("--warmup", type=int, default=Plan.warmup)
    parser.add_argument("--seed", type=int, default=Plan.seed)
    parser.add_argument("--begin", type=float, default=Plan.begin)
    parser.add_argument("--tasks", nargs="+", choices=list(MIXTURE), default=list(MIXTURE))
    parser.add_argument("--resume", type=Path, help="--out of an earlier run")
    given = parser.parse_args()
    plan = Plan(
        seconds=given.seconds,
        device=given.device,
        batch_tokens=given.batch_tokens,
        workers=given.workers,
        peak=given.peak,
        warmup=given.warmup,
        seed=given.seed,
        begin=given.begin,
        tasks=tuple(given.tasks),
    )
    given.out.mkdir(parents=True, exist_ok=True)
    log = perform(plan, given.data, given.out, given.resume)
    print(f"{log['seconds']:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
