from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from clefq.clef.encoding import Encoded, EncodeSpec, PromptTokenizer, encode_record
from clefq.clef.head import HeadBatch, HeadConfig, JointHead, split_logits
from clefq.clef.head_config import HEAD_CONFIG_FILE, HEAD_FILE
from clefq.clef.ragged import Padded
from clefq.clef.records import parse_record
from clefq.clef.tensor_files import check_head_file
from clefq.errors import CheckpointError
from clefq.store.atomic import write_json
from tests.clef.generate import record

SMALL = HeadConfig(hidden_size=24, width=16, routing_layers=1, layers=1, heads=2, feedforward=32)
DEEP = HeadConfig(hidden_size=48, width=32, routing_layers=2, layers=3, heads=8, feedforward=64)
# Each forces another path: alone or padded, one or many token chunks, queries in chunks.
PLANS: list[dict[str, Any]] = [
    {},
    {"pad": False},
    {"chunk_tokens": 1500, "score_limit": 20_000},
    {"pad": False, "chunk_tokens": 1, "score_limit": 150_000},
]


def reference_head(release: ModuleType, config: HeadConfig, dtype: torch.dtype) -> Any:
    """The release's head with every parameter disturbed: gates open, norms and biases not plain."""
    torch.manual_seed(3)
    head = release.JointSchemaHead(**asdict(config)).to(dtype).eval()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        head.joint_logit_scale.fill_(1.5)
        head.prior_logit_scale.fill_(9.0)  # above the clamp
    return head


def our_head(reference: Any, config: HeadConfig) -> JointHead:
    head = JointHead(config).to(next(reference.parameters()).dtype)
    head.load_state_dict(reference.state_dict(), strict=True)
    return head.eval()


class Batch:
    """The same random hidden states, padded for the release and concatenated for us."""

    def __init__(
        self,
        release: ModuleType,
        tokenizer: PromptTokenizer,
        release_tokenizer: Any,
        seeds: list[int],
    ) -> None:
        spec = EncodeSpec(max_length=20_000, truncate_state=True)
        raw = [record(seed) for seed in seeds]
        self.encoded = [encode_record(tokenizer, parse_record(r, "test"), spec) for r in raw]
        theirs = [release.encode_record(release_tokenizer, r, max_length=20_000) for r in raw]
        self.collated = release.collate_records(theirs, 0, torch.device("cpu"))
        self.lengths = [len(one.token_ids) for one in self.encoded]

    def tensors(self, config: HeadConfig, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states [tokens, hidden] and output embeddings [vocabulary, hidden]."""
        generator = torch.Generator().manual_seed(5)
        size = config.hidden_size
        scale = 1 + 3 * torch.rand(sum(self.lengths), 1, generator=generator, dtype=torch.float64)
        hidden = torch.randn(sum(self.lengths), size, generator=generator, dtype=torch.float64)
        embedding = torch.randn(2000, size, generator=generator, dtype=torch.float64)
        return (hidden * scale).to(dtype), embedding.to(dtype)

    def reference(self, head: Any, hidden: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        parts = list(hidden.split(self.lengths))
        padded = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=7.0)
        collated = self.collated
        logits = head(
            padded,
            collated["input_ids"],
            collated["attention_mask"],
            collated["records"],
            embedding,
        )
        return torch.cat([question for one in logits for question in one])


# 64 questions (0), 255 options (1), a long state (2), empty states (3, 28)
SEEDS = [0, 1, 2, 3, 28, *range(60, 80)]


@pytest.fixture
def batch(release: ModuleType, tokenizer: PromptTokenizer, release_tokenizer: Any) -> Batch:
    return Batch(release, tokenizer, release_tokenizer, SEEDS)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("config", [SMALL, DEEP], ids=["small", "deep"])
@torch.no_grad()
def test_logits_equal_the_release(
    release: ModuleType, batch: Batch, config: HeadConfig, dtype: torch.dtype, tolerance: float
) -> None:
    reference = reference_head(release, config, dtype)
    head = our_head(reference, config)
    hidden, embedding = batch.tensors(config, dtype)
    expected = batch.reference(reference, hidden, embedding)
    scale = 1.0 if dtype == torch.float64 else max(1.0, expected.abs().max().item())
    assert expected.std() > 1
    for plan in PLANS:
        ragged = HeadBatch.build(batch.encoded, **plan)
        ours = head(hidden, ragged, embedding[ragged.option_token_ids])
        assert ours.dtype == dtype
        assert (ours - expected).abs().max().item() <= tolerance * scale, plan


@torch.no_grad()
def test_bfloat16_stays_within_its_rounding(
    release: ModuleType, tokenizer: PromptTokenizer, release_tokenizer: Any
) -> None:
    batch = Batch(release, tokenizer, release_tokenizer, [0, 3, *range(61, 75)])
    exact = reference_head(release, DEEP, torch.float64)
    hidden, embedding = batch.tensors(DEEP, torch.bfloat16)
    expected = batch.reference(exact, hidden.double(), embedding.double())
    rounded = reference_head(release, DEEP, torch.float64).bfloat16()
    theirs = batch.reference(rounded, hidden, embedding)
    ragged = HeadBatch.build(batch.encoded)
    head = our_head(rounded, DEEP)
    ours = head(hidden, ragged, embedding[ragged.option_token_ids])
    assert ours.dtype == torch.bfloat16
    ours_error = (ours - expected).abs().mean()
    assert ours_error <= 1.3 * (theirs - expected).abs().mean()
    # half-precision inputs to a float32 head: only the inputs are rounded
    wide = our_head(exact.float(), DEEP)(hidden, ragged, embedding[ragged.option_token_ids])
    assert (wide - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_gradients_equal_the_release(
    release: ModuleType, tokenizer: PromptTokenizer, release_tokenizer: Any
) -> None:
    small = Batch(release, tokenizer, release_tokenizer, [3, 28, 61, 62, 63, 64])
    reference = reference_head(release, SMALL, torch.float64)
    head = our_head(reference, SMALL)
    hidden, embedding = small.tensors(SMALL, torch.float64)
    theirs, ours = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    expected = small.reference(reference, theirs, embedding)
    weight = torch.linspace(-1, 1, len(expected), dtype=torch.float64)
    (expected * weight).sum().backward()
    ragged = HeadBatch.build(small.encoded)
    (head(ours, ragged, embedding[ragged.option_token_ids]) * weight).sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-10)
    grads = {name: p.grad for name, p in reference.named_parameters()}
    for name, parameter in head.named_parameters():
        assert grads[name] is not None
        torch.testing.assert_close(parameter.grad, grads[name], rtol=1e-8, atol=1e-10)


@torch.no_grad()
def test_a_record_does_not_depend_on_its_neighbours(release: ModuleType, batch: Batch) -> None:
    head = our_head(reference_head(release, SMALL, torch.float64), SMALL)
    hidden, embedding = batch.tensors(SMALL, torch.float64)
    ragged = HeadBatch.build(batch.encoded)
    together = split_logits(head(hidden, ragged, embedding[ragged.option_token_ids]), batch.encoded)
    order = list(reversed(range(len(batch.encoded))))
    parts = hidden.split(batch.lengths)
    turned = [batch.encoded[i] for i in order]
    ragged = HeadBatch.build(turned)
    flat = head(torch.cat([parts[i] for i in order]), ragged, embedding[ragged.option_token_ids])
    for i, again in zip(order, split_logits(flat, turned), strict=True):
        alone = HeadBatch.build([batch.encoded[i]])
        single = head(parts[i], alone, embedding[alone.option_token_ids])
        (solo,) = split_logits(single, [batch.encoded[i]])
        for name, logits in together[i].items():
            np.testing.assert_allclose(again[name], logits, rtol=0, atol=1e-10)
            np.testing.assert_allclose(solo[name], logits, rtol=0, atol=1e-10)


@torch.no_grad()
def test_non_finite_states_stay_within_their_record(release: ModuleType, batch: Batch) -> None:
    head = our_head(reference_head(release, SMALL, torch.float32), SMALL)
    hidden, embedding = batch.tensors(SMALL, torch.float32)
    ragged = HeadBatch.build(batch.encoded)
    lexical = embedding[ragged.option_token_ids]
    clean = split_logits(head(hidden, ragged, lexical), batch.encoded)
    broken = 8
    assert any(isinstance(group, Padded) for group in ragged.options_to_memory.groups)
    list(hidden.split(batch.lengths))[broken][3] = float("nan")
    damaged = split_logits(head(hidden, ragged, lexical), batch.encoded)
    for number, (before, after) in enumerate(zip(clean, damaged, strict=True)):
        for name, logits in after.items():
            if number == broken:
                assert np.isnan(logits).all()
            else:
                np.testing.assert_array_equal(logits, before[name])


def test_split_logits_follows_prompt_order(tokenizer: PromptTokenizer) -> None:
    encoded = [encode_record(tokenizer, parse_record(record(s), "test")) for s in (61, 62)]
    total = sum(len(q.option_ids) for one in encoded for q in one.questions)
    parts = split_logits(torch.arange(total), encoded)
    joined = np.concatenate([v for part in parts for v in part.values()])
    assert joined.dtype == np.float64
    assert joined.tolist() == list(range(total))
    assert [list(part) for part in parts] == [[q.id for q in one.questions] for one in encoded]
    with pytest.raises(ValueError, match="logits for"):
        split_logits(torch.arange(total + 1), encoded)


def test_an_empty_batch_is_refused() -> None:
    encoded: list[Encoded] = []
    with pytest.raises(ValueError, match="at least one record"):
        HeadBatch.build(encoded)


def write_head(folder: Path, head: JointHead, dtype: torch.dtype = torch.bfloat16) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: w.to(dtype).contiguous() for name, w in head.state_dict().items()}
    save_file(weights, folder / HEAD_FILE)
    write_json(folder / HEAD_CONFIG_FILE, asdict(head.config))


@pytest.mark.parametrize("place", ["", "clef_head"])
def test_loads_from_either_layout(tmp_path: Path, place: str) -> None:
    torch.manual_seed(0)
    head = JointHead(SMALL)
    write_head(tmp_path / place, head)
    loaded = JointHead.from_folder(tmp_path, dtype=torch.float64)
    assert loaded.config == SMALL
    assert not loaded.training
    for name, weight in head.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight.bfloat16().double()), name


def test_tensor_shapes_are_those_of_the_release(release: ModuleType) -> None:
    for config in (SMALL, DEEP):
        state = release.JointSchemaHead(**asdict(config)).state_dict()
        assert config.tensor_shapes() == {name: tuple(w.shape) for name, w in state.items()}
    flash = HeadConfig(4096, 1024, 2, 4, 16, 4096)
    assert sum(int(np.prod(shape)) for shape in flash.tensor_shapes().values()) == 121_762_820
    large = HeadConfig(5120, 1024, 2, 4, 16, 4096)
    assert sum(int(np.prod(shape)) for shape in large.tensor_shapes().values()) == 128_056_324


def test_separate_faults_of_a_head_are_told_apart(tmp_path: Path) -> None:
    head = JointHead(SMALL)
    weights = {name: weight.clone() for name, weight in head.state_dict().items()}
    weights["memory_projection.weight"] = torch.zeros(8, 24)
    save_file(weights, tmp_path / HEAD_FILE)
    with pytest.raises(CheckpointError) as caught:
        check_head_file(tmp_path / HEAD_FILE, SMALL)
    assert "memory_projection.weight has shape [8, 24], expected [16, 24]" in caught.value.message
    assert caught.value.faults == ()
    weights["memory_projection.weight"] = head.memory_projection.weight.data
    weights["option_norm.bias"] = torch.zeros(3)
    save_file(weights, tmp_path / HEAD_FILE)
    wide = replace(SMALL, width=32, feedforward=12, hidden_size=48)
    with pytest.raises(CheckpointError, match="says hidden_size 48, the weights have 24") as caught:
        check_head_file(tmp_path / HEAD_FILE, wide)
    assert caught.value.faults == (
        "the config says width 32, the weights have 16",
        "the config says feedforward 12, the weights have 32",
        "option_norm.bias has shape [3], expected [16]",
    )


def test_wrong_heads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no joint_head\.safetensors"):
        JointHead.from_folder(tmp_path)
    write_head(tmp_path, JointHead(SMALL))
    write_json(tmp_path / HEAD_CONFIG_FILE, asdict(SMALL) | {"width": 12})
    with pytest.raises(CheckpointError, match="says width 12, the weights have 16") as one:
        JointHead.from_folder(tmp_path)
    assert one.value.faults == ()
    assert "of the same release" in str(one.value.fix)
    write_json(tmp_path / HEAD_CONFIG_FILE, asdict(SMALL) | {"heads": 3, "extra": 1})
    with pytest.raises(CheckpointError, match="unknown key 'extra'"):
        JointHead.from_folder(tmp_path)
    write_json(tmp_path / HEAD_CONFIG_FILE, asdict(SMALL) | {"heads": 3})
    with pytest.raises(CheckpointError, match="width 16 is no multiple of heads 3"):
        JointHead.from_folder(tmp_path)
    (tmp_path / HEAD_CONFIG_FILE).unlink()
    with pytest.raises(CheckpointError, match=r"joint_head_config\.json is missing"):
        JointHead.from_folder(tmp_path)
    write_head(tmp_path, JointHead(SMALL), torch.float8_e4m3fn)
    with pytest.raises(CheckpointError, match="must not be quantized"):
        JointHead.from_folder(tmp_path)
