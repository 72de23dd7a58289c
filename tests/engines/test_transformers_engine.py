"""The engine against the release's own code, and what it does with records that cannot run."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from clefq.clef.records import Record, parse_record, record_to_json
from clefq.clef.tokenizer import PromptTokenizer
from clefq.engines.base import NON_FINITE, EngineSpec, RecordResult
from clefq.engines.transformers_engine import TransformersEngine
from clefq.errors import ClefqError, InputError
from tests.engines.conftest import IMAGES, make_record

SPEC = EngineSpec(threads=1)


def run(
    engine: TransformersEngine, records: Sequence[Record], root: Path | None = None
) -> dict[str, RecordResult]:
    return {r.record_id: r for group in engine.predict(records, root) for r in group}


class Processor:
    """What the release asks of a Qwen3-VL processor, from transformers' parts (no video)."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer, Qwen2VLImageProcessorPil

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.images = Qwen2VLImageProcessorPil.from_pretrained(folder)

    def __call__(self, text: list[str], images: Any, **_: Any) -> dict[str, Any]:
        features = self.images(images=images, return_tensors="pt")
        prompt = text[0]
        for grid in features["image_grid_thw"]:
            pads = "<|image|>" * (int(grid.prod()) // IMAGES["merge_size"] ** 2)
            prompt = prompt.replace("<|image_pad|>", pads, 1)
        ids = self.tokenizer(
            prompt.replace("<|image|>", "<|image_pad|>"), add_special_tokens=False
        ).input_ids
        pad = self.tokenizer.convert_tokens_to_ids("<|image_pad|>")
        kinds = torch.tensor([[int(token == pad) for token in ids]])
        return {"input_ids": torch.tensor([ids]), "mm_token_type_ids": kinds, **features}


class Release:
    """The release's code on the same checkpoint."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        import json

        from clef_finetune.jsm import load_jsm
        from transformers import Qwen3_5ForConditionalGeneration

        self.code = load_jsm()
        self.backbone = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=dtype)
        head = self.code.JointSchemaHead(
            **json.loads((folder / "joint_head_config.json").read_text())
        )
        head.load_state_dict(load_file(folder / "joint_head.safetensors"))
        self.model = self.code.ClefModel(self.backbone, head.to(dtype)).eval()
        self.processor = Processor(folder)

    def logprobs(self, record: Record, images: Sequence[Any] = ()) -> dict[str, np.ndarray]:
        value = record_to_json(record) | {"images": list(images)}
        encoded = self.code.encode_record(self.processor.tokenizer, value, processor=self.processor)
        batch = self.code.collate_records([encoded], 0, torch.device("cpu"))
        with torch.inference_mode():
            logits = self.model(batch)[0]
        return {
            q.question_id: torch.log_softmax(row.double(), -1).numpy()
            for q, row in zip(encoded.questions, logits, strict=True)
        }


def largest_difference(
    result: dict[str, RecordResult], reference: dict[str, dict[str, np.ndarray]]
) -> float:
    return max(
        float(np.abs(result[record].logprobs[question] - values).max())
        for record, answers in reference.items()
        for question, values in answers.items()
    )


@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-9), ("float32", 2e-5)])
def test_equals_the_release_code(
    release: Path, records: list[Record], dtype: str, limit: float
) -> None:
    engine = TransformersEngine(release, EngineSpec(dtype=dtype, threads=1))
    reference = Release(release, getattr(torch, dtype))
    expected = {record.id: reference.logprobs(record) for record in records}
    result = run(engine, records)
    assert set(result) == set(expected)
    assert largest_difference(result, expected) < limit
    spread = np.concatenate([v for a in expected.values() for v in a.values()]).std()
    assert spread > 0.05  # the comparison has something to compare


def test_bf16_backbone_has_the_bits_of_from_pretrained(
    release: Path, records: list[Record]
) -> None:
    engine = TransformersEngine(release, SPEC)
    assert engine._backbone is not None
    ours, theirs = engine._backbone.model, Release(release, torch.bfloat16).backbone
    assert dict(ours.named_parameters()).keys() == dict(theirs.named_parameters()).keys()
    pairs = [*zip(ours.named_parameters(), theirs.named_parameters(), strict=True)]
    pairs += [*zip(ours.named_buffers(), theirs.named_buffers(), strict=True)]
    for (name, left), (_, right) in pairs:
        assert left.dtype == right.dtype, name
        assert torch.equal(left, right), name


def test_bf16_stays_near_the_release(release: Path, records: list[Record]) -> None:
    """The head runs in FP32 here and in BF16 there; both round the same hidden states."""
    engine = TransformersEngine(release, SPEC)
    exact = run(TransformersEngine(release, EngineSpec(dtype="float64", threads=1)), records)
    bf16 = Release(release, torch.bfloat16)
    theirs = {record.id: bf16.logprobs(record) for record in records}
    truth = {key: dict(value.logprobs) for key, value in exact.items()}
    ours = run(engine, records)
    assert largest_difference(ours, theirs) < 0.05
    assert largest_difference(ours, truth) < 0.05


def test_batching_changes_nothing_but_rounding(release: Path, records: list[Record]) -> None:
    records = records[:12]
    alone = run(TransformersEngine(release, EngineSpec(dtype="float64", batch_tokens=1)), records)
    exact = TransformersEngine(release, EngineSpec(dtype="float64", batch_tokens=8192))
    together = run(exact, records)
    backwards = run(exact, records[::-1])
    reference = {key: dict(value.logprobs) for key, value in alone.items()}
    assert largest_difference(together, reference) < 1e-11
    assert largest_difference(backwards, reference) < 1e-11
    low = run(TransformersEngine(release, EngineSpec(batch_tokens=1)), records)
    low_together = run(TransformersEngine(release, EngineSpec(batch_tokens=8192)), records)
    drift = largest_difference(low_together, {k: dict(v.logprobs) for k, v in low.items()})
    assert drift < 0.02


def test_a_group_is_a_batch_and_a_suffix_repeats(release: Path, records: list[Record]) -> None:
    engine = TransformersEngine(release, EngineSpec(batch_tokens=2000, threads=1))
    groups = [list(group) for group in engine.predict(records)]
    assert len(groups) > 3
    done = {result.record_id for group in groups[:2] for result in group}
    rest = [list(g) for g in engine.predict([r for r in records if r.id not in done])]
    assert [[r.record_id for r in g] for g in rest] == [
        [r.record_id for r in g] for g in groups[2:]
    ]
    for first, again in zip(groups[2:], rest, strict=True):
        for left, right in zip(first, again, strict=True):
            for question, values in left.logprobs.items():
                assert np.array_equal(values, right.logprobs[question])


def image_record(root: Path, number: int, sizes: list[tuple[int, int]], state: str) -> Record:
    from PIL import Image

    names = []
    for index, size in enumerate(sizes):
        pixels = np.random.default_rng(number * 10 + index).integers(0, 255, (*size, 3))
        names.append(f"images/{number}-{index}.png")
        (root / "images").mkdir(exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(root / names[-1])
    questions = {"q": {"type": "noul"}, "s": {"type": "score", "criteria": ["a", "b", "c"]}}
    value = {"id": f"i{number}", "cohort": "c", "state": state, "questions": questions}
    return parse_record(value | {"images": names}, "test")


def test_images_equal_the_release_code(
    release: Path, records: list[Record], tmp_path: Path
) -> None:
    from PIL import Image

    mixed = [
        image_record(tmp_path, 1, [(64, 48)], "one image"),
        image_record(tmp_path, 2, [(40, 100), (32, 32)], "two images"),
        *records[:3],
    ]
    engine = TransformersEngine(release, EngineSpec(dtype="float64", threads=1))
    result = run(engine, mixed, tmp_path)
    reference = Release(release, torch.float64)
    expected = {
        record.id: reference.logprobs(
            record, [Image.open(tmp_path / name).convert("RGB") for name in record.images]
        )
        for record in mixed
    }
    assert largest_difference(result, expected) < 1e-9
    blind = run(engine, [parse_record(record_to_json(mixed[0]) | {"images": []}, "test")])
    assert np.abs(blind["i1"].logprobs["s"] - result["i1"].logprobs["s"]).max() > 1e-4


def test_image_token_spelled_in_a_state_is_text(release: Path, tmp_path: Path) -> None:
    record = image_record(tmp_path, 3, [(64, 64)], "an <|image_pad|> in words")
    engine = TransformersEngine(release, SPEC)
    assert not run(engine, [record], tmp_path)["i3"].errors


def test_unreadable_media_fail_their_record_only(
    release: Path, records: list[Record], tmp_path: Path
) -> None:
    good = image_record(tmp_path, 1, [(64, 48)], "fine")
    gone = image_record(tmp_path, 2, [(64, 48)], "gone")
    (tmp_path / gone.images[0]).unlink()
    bad = image_record(tmp_path, 3, [(64, 48)], "bad")
    (tmp_path / bad.images[0]).write_bytes(b"no image")
    film = parse_record(record_to_json(records[0]) | {"videos": ["videos/a.mp4"]}, "test")
    result = run(TransformersEngine(release, SPEC), [good, gone, bad, film], tmp_path)
    assert not result["i1"].errors
    assert "no image" in result["i2"].errors["q"]
    assert "cannot be read" in result["i3"].errors["q"]
    assert "videos" in next(iter(result[film.id].errors.values()))


def test_a_record_that_is_too_long_is_an_error_or_cut(release: Path) -> None:
    record = make_record(0, random.Random(1), words=200)
    length = run(TransformersEngine(release, SPEC), [record])["r0"].input_tokens
    limited = EngineSpec(max_length=length - 5, threads=1)
    refused = run(TransformersEngine(release, limited), [record])["r0"]
    assert not refused.logprobs
    assert f"takes {length} tokens, the limit is {length - 5}" in refused.errors["q0"]
    cut = EngineSpec(max_length=length - 5, truncate_state=True, threads=1)
    result = run(TransformersEngine(release, cut), [record])["r0"]
    assert (result.input_tokens, result.truncated_tokens) == (length - 5, 5)
    assert not result.errors


def test_nan_stays_in_its_own_record(release: Path, records: list[Record], tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(release, folder)
    token = PromptTokenizer.from_folder(folder).encode("~")[0]
    weights = load_file(folder / "model.safetensors")
    weights["model.language_model.embed_tokens.weight"][token] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    poisoned = parse_record(record_to_json(records[3]) | {"id": "bad", "state": "a ~ b"}, "test")
    batch = [*records[:6], poisoned]
    result = run(TransformersEngine(folder, SPEC), batch)
    assert set(result["bad"].errors.values()) == {NON_FINITE}
    clean = run(TransformersEngine(release, SPEC), batch)
    for record in records[:6]:
        assert not result[record.id].errors
        for question, values in clean[record.id].logprobs.items():
            assert np.allclose(values, result[record.id].logprobs[question], atol=1e-6)


def test_info_says_what_ran(release: Path) -> None:
    import transformers

    info = TransformersEngine(release, SPEC).info
    assert (info.kernels, info.arithmetic, info.dtype) == ("real", "bf16", "bfloat16")
    assert (info.device, info.engine_version) == ("cpu", transformers.__version__)


def test_bad_devices_and_types_are_one_line(release: Path) -> None:
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        TransformersEngine(release, EngineSpec(device="gpu"))
    with pytest.raises(InputError, match="no device 'cuda:7'"):
        TransformersEngine(release, EngineSpec(device="cuda:7"))
    with pytest.raises(InputError, match="dtype is 'int8'") as caught:
        EngineSpec(dtype="int8", batch_tokens=0)
    assert caught.value.message.startswith("engine options: batch_tokens is 0")


def test_a_closed_engine_says_so(release: Path, records: list[Record]) -> None:
    engine = TransformersEngine(release, SPEC)
    engine.close()
    engine.close()
    with pytest.raises(ClefqError, match="closed"):
        run(engine, records[:1])


def test_running_out_of_memory_names_the_option(
    release: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TransformersEngine(release, SPEC)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(
        engine, "_backbone", SimpleNamespace(hidden_states=full, memo=SimpleNamespace())
    )
    with pytest.raises(ClefqError, match="ran out of memory") as caught:
        run(engine, records[:1])
    assert caught.value.fix is not None
    assert "--batch-tokens" in caught.value.fix


@pytest.mark.parametrize("wrong", [{"rms_norm_eps": "abc"}, {"rope_parameters": 5}])
def test_a_config_value_of_the_wrong_type_is_one_line(
    release: Path, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    import json

    folder = tmp_path / "broken"
    shutil.copytree(release, folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"].update(wrong)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ClefqError, match=r"config\.json: transformers cannot build it"):
        TransformersEngine(folder, SPEC)
