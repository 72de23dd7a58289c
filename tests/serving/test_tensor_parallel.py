"""Two processes that share a model answer as one: option vectors come from a split lm_head."""

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.serve
pytest.importorskip("vllm")

import clefq.nano  # noqa: E402
from clefq.clef.records import iter_records, record_to_json  # noqa: E402
from clefq.engines.base import EngineSpec  # noqa: E402
from clefq.engines.transformers_engine import TransformersEngine  # noqa: E402

NANO = Path(clefq.nano.__file__).parent
ROOT = Path(__file__).parents[2]


def test_two_ranks_answer_as_transformers_does(tmp_path: Path) -> None:
    everything = iter_records(NANO / "sets" / "nano-eval" / "records.jsonl")
    records = list(islice((record for record in everything if not record.images), 16))
    few = tmp_path / "records.jsonl"
    few.write_text("".join(json.dumps(record_to_json(record)) + "\n" for record in records))
    module = "tests.serving.two_ranks"
    command = [sys.executable, "-m", module, str(NANO / "weights"), str(few), "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    engine = TransformersEngine(NANO / "weights", EngineSpec(threads=1))
    wanted = {r.record_id: r for group in engine.predict(records) for r in group}
    engine.close()
    for record, ours in zip(records, found, strict=True):
        for question in record.questions:
            expected = np.exp(wanted[record.id].logprobs[question.id])
            got = np.array([ours[question.id][option] for option in question.option_ids])
            assert np.abs(got - expected).max() < 0.05
