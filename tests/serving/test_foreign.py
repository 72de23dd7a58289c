"""Checkpoints of other tools under vLLM: the answers that their numbers mean, truly labelled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.serve
pytest.importorskip("vllm")

from clefq.console import Console  # noqa: E402
from clefq.engines.base import EngineInfo, EngineSpec  # noqa: E402
from clefq.nano import SETS, WEIGHTS  # noqa: E402
from clefq.store.sets import open_set  # noqa: E402
from tests.quantize.columns import build_columns, in_bf16  # noqa: E402
from tests.quantize.modelopt import build_modelopt  # noqa: E402

Answers = dict[tuple[str, str], np.ndarray]


def predict(folder: Path, stride: int = 12) -> tuple[EngineInfo, Answers]:
    from clefq.engines.vllm_engine import VllmEngine

    records = list(open_set(SETS / "nano-eval").records())[::stride]
    engine = VllmEngine(folder, EngineSpec(batch_tokens=1024))
    try:
        results = [one for group in engine.predict(records, None) for one in group]
        return engine.info, {
            (one.record_id, q): logprobs for one in results for q, logprobs in one.logprobs.items()
        }
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("kind", "arithmetic", "kernels"),
    [
        ("NVFP4", "w4a4", "simulated"),
        ("W4A16_NVFP4", "w4a16", "simulated"),
        ("FP8_PER_CHANNEL_PER_TOKEN", "w8a8", "real"),
    ],
)
def test_modelopts_copy_answers_as_the_original(
    tmp_path: Path, kind: str, arithmetic: str, kernels: str
) -> None:
    """Bit for bit: the factors are reciprocals of F32 numbers here, which five of six are."""
    from clefq.quantize.convert import convert_checkpoint

    theirs = build_modelopt(WEIGHTS, tmp_path / "theirs", kind, invertible=True)
    convert_checkpoint(theirs, tmp_path / "copy", Console(quiet=True))
    (one, before), (two, after) = predict(theirs), predict(tmp_path / "copy")
    assert {(info.arithmetic, info.kernels) for info in (one, two)} == {(arithmetic, kernels)}
    assert before.keys() == after.keys() and len(before) > 20
    assert all(np.array_equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("kind", ["gptq", "awq", "auto-round"])
def test_packed_in_columns(tmp_path: Path, kind: str) -> None:
    """As the BF16 weights that the codes stand for: on a CPU without AVX-512 bit for bit."""
    meant = build_columns(WEIGHTS, tmp_path / kind, kind)
    packed, ours = predict(tmp_path / kind, 40)
    assert packed.arithmetic == "w4a16-int4"
    plain, theirs = predict(in_bf16(WEIGHTS, tmp_path / "plain", meant), 40)
    assert (plain.arithmetic, plain.kernels) == ("bf16", "real")
    assert ours.keys() == theirs.keys() and len(ours) > 20
    largest = max(float(np.abs(ours[key] - theirs[key]).max()) for key in ours)
    assert largest <= (0.02 if packed.kernels == "real" else 0)
