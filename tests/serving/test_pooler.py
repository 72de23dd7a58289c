"""The pooler on its own: chunks, batches, and ten thousand malformed layouts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.serve
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from clefq.clef.encoding import Encoded, PromptTokenizer, encode_record  # noqa: E402
from clefq.clef.head import HeadBatch, HeadConfig, JointHead  # noqa: E402
from clefq.clef.records import Record  # noqa: E402
from clefq.serving.layout import schema_layout  # noqa: E402
from clefq.serving.pooler import JointHeadPooler, move_together  # noqa: E402
from tests.serving.broken import broken_layout  # noqa: E402

VOCABULARY = 2048
HEAD = HeadConfig(hidden_size=32, width=16, routing_layers=1, layers=1, heads=2, feedforward=32)


@pytest.fixture(scope="module")
def pooler() -> JointHeadPooler:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        head = JointHead(HEAD).eval()
        table = torch.randn(VOCABULARY, HEAD.hidden_size)
    return JointHeadPooler(head, lambda ids: table[ids])


@pytest.fixture(scope="module")
def encoded(random_nano: Path, mixed_records: list[Record]) -> list[Encoded]:
    tokenizer = PromptTokenizer.from_folder(random_nano)
    return [encode_record(tokenizer, record) for record in mixed_records]


def hidden_of(encoded: Sequence[Encoded]) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(len(one.token_ids), HEAD.hidden_size, generator=generator) for one in encoded
    ]


class Request:
    """One request as vLLM's metadata shows it, step by step."""

    def __init__(self, hidden: Any, token_ids: Sequence[int], extra_kwargs: Any) -> None:
        self.hidden = hidden
        self.token_ids = torch.tensor(token_ids)
        self.params = SimpleNamespace(extra_kwargs=extra_kwargs)
        self.state = SimpleNamespace(hidden_states_cache=[])
        self.state.clean = self.state.hidden_states_cache.clear
        self.done = 0


def step(pooler: JointHeadPooler, work: Sequence[tuple[Request, int]]) -> list[Any]:
    """Runs one engine step: the given number of tokens of each request."""
    pieces, totals = [], []
    for request, count in work:
        pieces.append(request.hidden[request.done : request.done + count])
        request.done += count
        totals.append(request.done)
    requests = [request for request, _ in work]
    cursor = SimpleNamespace(
        num_scheduled_tokens_cpu=torch.tensor([count for _, count in work]),
        prompt_lens_cpu=torch.tensor([len(request.token_ids) for request in requests]),
        seq_lens_cpu=torch.tensor(totals),
    )
    metadata = SimpleNamespace(
        get_pooling_cursor=lambda: cursor,
        get_prompt_token_ids_cpu=lambda: [request.token_ids for request in requests],
        pooling_params=[request.params for request in requests],
        pooling_states=[request.state for request in requests],
    )
    buffer = torch.cat(pieces)
    with torch.inference_mode():
        outputs = pooler(buffer, metadata)
    # what a later step does to the buffer must not reach what the pooler kept
    buffer.fill_(float("nan"))
    return outputs


def requests_of(encoded: Sequence[Encoded]) -> list[Request]:
    return [
        Request(hidden, one.token_ids, schema_layout(one))
        for hidden, one in zip(hidden_of(encoded), encoded, strict=True)
    ]


def expected_of(pooler: JointHeadPooler, encoded: Sequence[Encoded]) -> list[Any]:
    """The head on one record at a time, without the pooler."""
    results = []
    with torch.inference_mode():
        for hidden, one in zip(hidden_of(encoded), encoded, strict=True):
            batch = HeadBatch.build([one])
            rows = pooler._embed_rows(batch.option_token_ids)
            results.append(pooler.head(hidden, batch, rows))
    return results


def test_all_prompts_of_a_step_at_once(pooler: JointHeadPooler, encoded: list[Encoded]) -> None:
    outputs = step(pooler, [(r, len(r.token_ids)) for r in requests_of(encoded)])
    for output, expected in zip(outputs, expected_of(pooler, encoded), strict=True):
        torch.testing.assert_close(output, expected, rtol=0, atol=2e-5)


def test_indices_move_all_at_once(pooler: JointHeadPooler, encoded: list[Encoded]) -> None:
    batch = HeadBatch.build(encoded, chunk_tokens=500)
    copied: list[torch.dtype] = []

    def move(flat: torch.Tensor) -> torch.Tensor:
        copied.append(flat.dtype)
        return flat.clone()

    moved = move_together(batch, move)
    assert sorted(map(str, copied)) == ["torch.bool", "torch.int64"]
    assert len(batch.chunks) == len(moved.chunks) > 1
    states = torch.randn(batch.tokens, HEAD.hidden_size)
    rows = torch.randn(len(batch.option_token_ids), HEAD.hidden_size)
    with torch.no_grad():
        assert torch.equal(pooler.head(states, moved, rows), pooler.head(states, batch, rows))


def test_prompts_in_chunks_of_any_size(pooler: JointHeadPooler, encoded: list[Encoded]) -> None:
    expected = expected_of(pooler, encoded)
    for size in (64, 257, 1000):
        answers = dict(run_in_chunks(pooler, requests_of(encoded), size))
        assert len(answers) == len(encoded)
        for index, output in answers.items():
            torch.testing.assert_close(output, expected[index], rtol=0, atol=2e-5)


def run_in_chunks(
    pooler: JointHeadPooler, requests: Sequence[Request], size: int
) -> Iterator[tuple[int, Any]]:
    """Up to three requests share a step of `size` tokens, as a scheduler would mix them."""
    waiting = list(enumerate(requests))
    while waiting:
        room, work = size, []
        for index, request in waiting[:3]:
            count = min(room, len(request.token_ids) - request.done)
            if count:
                work.append((index, request, count))
                room -= count
        outputs = step(pooler, [(request, count) for _, request, count in work])
        for (index, request, _), output in zip(work, outputs, strict=True):
            finished = request.done == len(request.token_ids)
            assert (output is not None) == finished
            if finished:
                waiting.remove((index, request))
                yield index, output


def test_ten_thousand_malformed_layouts(pooler: JointHeadPooler, encoded: list[Encoded]) -> None:
    """None of them raises, none disturbs the sound request beside it."""
    rng = random.Random(11)
    short = min(encoded, key=lambda one: len(one.token_ids))
    hidden = hidden_of([short])[0]
    expected = expected_of(pooler, [short])[0]
    refused = 0
    for _ in range(130):
        broken = [Request(hidden, short.token_ids, broken_layout(rng, short)) for _ in range(100)]
        sound = Request(hidden, short.token_ids, schema_layout(short))
        position = rng.randrange(101)
        work = [*broken[:position], sound, *broken[position:]]
        outputs = step(pooler, [(request, len(request.token_ids)) for request in work])
        torch.testing.assert_close(outputs[position], expected, rtol=0, atol=2e-5)
        refused += sum(output.numel() == 0 for output in outputs)
        assert all(output.dtype == torch.float32 for output in outputs)
    assert refused > 10_000


def test_a_profiling_run_without_layouts(pooler: JointHeadPooler) -> None:
    hidden = torch.randn(96, HEAD.hidden_size)
    requests = [Request(hidden, [0] * 96, None) for _ in range(3)]
    fresh = JointHeadPooler(pooler.head, pooler._embed_rows)
    outputs = step(fresh, [(request, 96) for request in requests])
    assert [output.numel() for output in outputs] == [0, 0, 0]
    assert fresh._warm


def test_out_of_memory_falls_back_to_one_by_one(
    pooler: JointHeadPooler, encoded: list[Encoded], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = JointHeadPooler._run

    def scarce(self: JointHeadPooler, finished: Any, outputs: Any) -> None:
        if len(finished) > 1:
            raise torch.OutOfMemoryError("scarce")
        original(self, finished, outputs)

    monkeypatch.setattr(JointHeadPooler, "_run", scarce)
    outputs = step(pooler, [(r, len(r.token_ids)) for r in requests_of(encoded)])
    for output, expected in zip(outputs, expected_of(pooler, encoded), strict=True):
        torch.testing.assert_close(output, expected, rtol=0, atol=2e-5)
