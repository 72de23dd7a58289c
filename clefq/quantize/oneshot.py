"""The calibrated method: llm-compressor's oneshot, whose quantized tensors are taken over.

oneshot's output is not taken as it is: it rewrites norms through BF16 arithmetic and drops what
the model class does not know. Only the tensors of quantized modules come from it; every other
byte comes from the source.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from clefq.child import Child, ChildDied
from clefq.clef.tensor_files import TensorInfo
from clefq.clef.weight_files import open_tensors
from clefq.errors import AuditError, ClefqError
from clefq.quantize.layout import Unit, WriteUnit, copy_tensor
from clefq.quantize.oneshot_worker import OneshotJob
from clefq.quantize.quiet import SWITCHES
from clefq.quantize.tensors import OutTensor, ShardFile

_STEP = re.compile(r"\((\d+)/(\d+)\): (Calibrating|Propagating)")
_TAIL = 8
_WORKER = "clefq.quantize.oneshot_worker"


class OneshotError(ClefqError):
    """llm-compressor failed."""


def run_oneshot(job: OneshotJob, log: Path, progress: Callable[[int, int], None]) -> None:
    """Runs a job in a process of its own.

    Args:
        job: What to do.
        log: File for everything that llm-compressor prints.
        progress: Called with finished and total decoder steps as they are printed.

    Raises:
        OneshotError: The process failed; the message holds its last line, the log the rest.
    """
    tail: deque[str] = deque(maxlen=_TAIL)
    child = Child(sys.executable, _WORKER, "llm-compressor", _loud(), piped=True)
    try:
        with log.open("w", encoding="utf-8") as file:
            child.send(asdict(job))
            child.said(lambda line: _hear(line, file, tail, progress))
        child.receive()
    except ChildDied as death:
        raise _failure(death.code, tail, log) from death
    finally:
        child.close(0)


def _hear(line: str, file: TextIO, tail: deque[str], progress: Callable[[int, int], None]) -> None:
    file.write(line)
    if line.strip():
        tail.append(line.strip())
    found = _STEP.search(line)
    if found is not None:
        progress(int(found[1]), int(found[2]))


def _loud() -> dict[str, str]:
    """The environment, with the logs on that the caller keeps off its own terminal."""
    return {name: value for name, value in os.environ.items() if name not in SWITCHES}


def _failure(code: int, tail: Sequence[str], log: Path) -> OneshotError:
    if code == -9:
        return OneshotError(
            "the quantization process was killed, most likely for want of memory.",
            fix="free memory, or use a data-free scheme with --method stream.",
        )
    last = tail[-1] if tail else f"exit code {code}"
    return OneshotError(f"llm-compressor failed: {last}.", fix=f"see {log}.")


def saved_outputs(saved: Path, modules: Sequence[str]) -> dict[str, list[OutTensor]]:
    """The tensors of the quantized modules in oneshot's output.

    Raises:
        AuditError: oneshot quantized something else than the plan said.
    """
    outputs: dict[str, list[OutTensor]] = {module: [] for module in modules}
    for name, ref in open_tensors(saved).items():
        module = name.rpartition(".")[0]
        if module in outputs:
            outputs[module].append(OutTensor(name, ref.dtype, ref.shape))
    empty = [module for module, tensors in outputs.items() if len(tensors) < 2]
    if empty:
        raise AuditError(f"llm-compressor did not quantize {empty[0]}.", faults=empty[1:])
    return outputs


def take_over(saved: Path, source: Mapping[str, TensorInfo]) -> WriteUnit:
    """Writes quantized tensors from oneshot's output, and all others from the source."""
    theirs = open_tensors(saved)

    def write_unit(file: ShardFile, unit: Unit) -> None:
        refs = theirs if unit.modules else source
        for tensor in unit.tensors:
            copy_tensor(file, refs[tensor.name])

    return write_unit


def same_config(saved: Path, planned: Mapping[str, object]) -> bool:
    """Whether oneshot wrote the `quantization_config` that the plan foresaw."""
    body = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    return bool(body.get("quantization_config") == dict(planned))
