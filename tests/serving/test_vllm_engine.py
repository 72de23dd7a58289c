"""The engine on vLLM itself: same answers as transformers, and nothing kills it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.serve
pytest.importorskip("vllm")

from clefq.clef.encoding import EncodeSpec, encode_record  # noqa: E402
from clefq.clef.records import Record  # noqa: E402
from clefq.engines.base import EngineSpec, RecordResult  # noqa: E402
from clefq.engines.transformers_engine import TransformersEngine  # noqa: E402
from clefq.engines.vllm_engine import VllmEngine  # noqa: E402
from clefq.errors import InputError  # noqa: E402
from clefq.serving.layout import TASK, schema_layout  # noqa: E402
from tests.serving.broken import broken_layout  # noqa: E402
from tests.serving.conftest import make_record  # noqa: E402

STEP = 512
LENGTH = 4096
SPEC = EngineSpec(max_length=LENGTH, batch_tokens=STEP)


@pytest.fixture(scope="module")
def engine(random_nano: Path) -> Iterator[VllmEngine]:
    loaded = VllmEngine(random_nano, SPEC)
    yield loaded
    loaded.close()
    loaded.close()


@pytest.fixture(scope="module")
def reference(random_nano: Path) -> TransformersEngine:
    return TransformersEngine(random_nano, EngineSpec(max_length=LENGTH))


def by_id(groups: Iterator[Sequence[RecordResult]]) -> dict[str, RecordResult]:
    return {result.record_id: result for group in groups for result in group}


def largest_difference(left: dict[str, RecordResult], right: dict[str, RecordResult]) -> float:
    assert left.keys() == right.keys()
    worst = 0.0
    for name, one in left.items():
        assert not one.errors
        assert one.option_ids == right[name].option_ids
        assert one.input_tokens == right[name].input_tokens
        for question, logprobs in one.logprobs.items():
            worst = max(worst, float(np.abs(logprobs - right[name].logprobs[question]).max()))
    return worst


def test_what_ran_is_stated(engine: VllmEngine) -> None:
    info = engine.info
    assert (info.engine, info.kernels, info.arithmetic) == ("vllm", "real", "bf16")
    assert (info.dtype, info.device) == ("bfloat16", "cpu")
    assert info.engine_version[0].isdigit()


def test_mixed_batches_equal_transformers(
    engine: VllmEngine, reference: TransformersEngine, mixed_records: list[Record]
) -> None:
    """Several prompts are longer than a step, several share one, one question has 77 options."""
    ours = by_id(engine.predict(mixed_records))
    lengths = [result.input_tokens for result in ours.values()]
    assert min(lengths) < STEP < max(lengths) / 2
    theirs = by_id(reference.predict(mixed_records))
    # BF16 against BF16; the random model's log-probabilities span about 0.3
    assert largest_difference(ours, theirs) < 0.02


def test_images_equal_transformers(
    engine: VllmEngine,
    reference: TransformersEngine,
    image_set: tuple[list[Record], Path],
    tmp_path: Path,
) -> None:
    records, root = image_set
    ours = by_id(engine.predict(records, root))
    difference = largest_difference(ours, by_id(reference.predict(records, root)))
    assert difference < 0.02
    # and the pixels matter: grey images of the same sizes move the answers further than that
    for path in root.glob("*.png"):
        with Image.open(path) as image:
            Image.new("RGB", image.size, (128, 128, 128)).save(tmp_path / path.name)
    grey = by_id(engine.predict(records, tmp_path))
    assert largest_difference(grey, ours) > 2 * difference


def test_answers_hardly_depend_on_the_batch(
    engine: VllmEngine, mixed_records: list[Record]
) -> None:
    together = by_id(engine.predict(mixed_records))
    turned = by_id(engine.predict(mixed_records[::-1]))
    alone: dict[str, RecordResult] = {}
    for record in mixed_records:
        alone |= by_id(engine.predict([record]))
    assert largest_difference(together, turned) < 0.02
    assert largest_difference(together, alone) < 0.02


def test_too_long_is_an_error_unless_cut(
    random_nano: Path, engine: VllmEngine, mixed_records: list[Record]
) -> None:
    long = make_record(random.Random(1), 99, words=5000)
    results = by_id(engine.predict([mixed_records[0], long]))
    assert not results[mixed_records[0].id].errors
    assert all("the limit is 4096" in error for error in results[long.id].errors.values())
    spec = EncodeSpec(LENGTH, truncate_state=True)
    cut = encode_record(engine._clef.tokenizer, long, spec)
    assert len(cut.token_ids) == LENGTH
    engine._spec = replace(SPEC, truncate_state=True)
    try:
        result = by_id(engine.predict([long]))[long.id]
    finally:
        engine._spec = SPEC
    # a prompt of exactly the limit runs, and says what it lost
    assert not result.errors
    assert (result.input_tokens, result.truncated_tokens) == (LENGTH, cut.truncated_tokens)


def test_records_that_cannot_run_are_results(
    engine: VllmEngine, mixed_records: list[Record], tmp_path: Path
) -> None:
    good = mixed_records[0]
    faults = {
        "video": replace(good, id="video", videos=("a.mp4",)),
        "missing": replace(good, id="missing", images=("none.png",)),
        "many": replace(good, id="many", images=("none.png",) * 5),
    }
    results = by_id(engine.predict([good, *faults.values()], tmp_path))
    assert not results[good.id].errors
    for name in faults:
        assert set(results[name].errors) == {q.id for q in good.questions}


def test_malformed_layouts_do_not_harm_the_engine(
    engine: VllmEngine, mixed_records: list[Record]
) -> None:
    import vllm

    rng = random.Random(2)
    encoded = encode_record(engine._clef.tokenizer, mixed_records[0])
    expected = by_id(engine.predict(mixed_records[:1]))
    layouts: list[Any] = [broken_layout(rng, encoded) for _ in range(200)]
    # what vLLM's own types refuse never reaches the engine
    layouts = [value if isinstance(value, dict) else {"clefq_layout": value} for value in layouts]
    layouts.append(schema_layout(encoded))
    params = [vllm.PoolingParams(use_activation=False, extra_kwargs=v) for v in layouts]
    prompts = [{"prompt_token_ids": list(encoded.token_ids)}] * len(layouts)
    llm = engine._clef.runtime._llm
    outputs = llm.encode(prompts, params, pooling_task=TASK, use_tqdm=False)
    sizes = [output.outputs.data.numel() for output in outputs]
    assert sizes.count(0) > 120
    assert sizes[-1] == sum(len(q.option_spans) for q in encoded.questions)
    assert largest_difference(by_id(engine.predict(mixed_records[:1])), expected) == 0.0


def test_offline_answers(engine: VllmEngine, image_set: tuple[list[Record], Path]) -> None:
    clef = engine._clef
    records, root = image_set
    request = {
        "model": "clef",
        "state": {"note": "blå 雨"},
        "questions": {
            "a": {"type": "noul", "instructions": "Is it wet?"},
            "b": {"type": "choice", "criteria": {"z": "last", "y": None}},
            "c": {"type": "score", "criteria": ["low", "middle", "high"]},
        },
        "images": [str(root / records[0].images[0])],
    }
    answers = clef.systemone(request)["answers"]
    assert list(answers["b"]["probabilities"]) == ["z", "y"]
    assert answers["b"]["confidence"] == max(answers["b"]["probabilities"].values())
    assert 0 <= answers["c"]["score"] <= 2
    exact = clef.systemone(request, digits=None)["answers"]
    assert exact["a"]["noul"] != answers["a"]["noul"]
    assert round(exact["a"]["noul"], 4) == answers["a"]["noul"]
    named = clef.probabilities(records, root)
    assert [list(one) for one in named] == [[q.id for q in r.questions] for r in records]
    for one in named:
        for options in one.values():
            assert sum(options.values()) == pytest.approx(1, abs=1e-12)


def test_a_dtype_that_does_not_run_is_refused(random_nano: Path) -> None:
    with pytest.raises(InputError, match="bfloat16"):
        VllmEngine(random_nano, EngineSpec(dtype="float32"))
