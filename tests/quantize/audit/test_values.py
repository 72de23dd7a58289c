"""Zeros where no weights have them: what a stopped download or copy leaves behind."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from clefq.clef.weight_files import open_tensors
from clefq.console import Console
from clefq.errors import AuditError, CheckpointError
from clefq.quantize.audit import audit_checkpoint
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.audit.values import _longest, vocabulary
from clefq.quantize.run import QuantizeSpec, quantize
from tests.quantize.conftest import Make
from tests.quantize.editing import LAYER, edit

EMBEDDING = "model.language_model.embed_tokens.weight"


def values(report: AuditReport) -> list[str]:
    return [breach.subject for breach in report.of("values")]


@pytest.mark.parametrize("scheme", ["nvfp4", "fp8", "nvfp4a16"])
@pytest.mark.parametrize("share", [0.05, 0.4, 0.8, 0.99])
def test_a_shard_whose_rest_is_zero(
    made: Make, source: Path, tmp_path: Path, scheme: str, share: float
) -> None:
    """Whole by its header and its size; seen without a source and without recorded hashes."""
    folder = tmp_path / "copy"
    shutil.copytree(made(scheme).folder, folder)
    (folder / "clefq.json").unlink()
    file = folder / "model.safetensors"
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.truncate(int(share * size))
        stream.truncate(size)
    report = audit_checkpoint(folder)
    assert report.of("values"), report.breaches
    assert all("cut short" in breach.effect for breach in report.of("values"))
    # the first matrix that was hit is named, and none before the hole
    begin = {ref.name: ref.begin for ref in open_tensors(folder).values()}
    end = {ref.name: ref.end for ref in open_tensors(folder).values()}
    assert all(end[name] > share * size for name in values(report))
    hit = [n for n, at in begin.items() if at > share * size and n.endswith(".weight_packed")]
    assert set(hit) <= set(values(report))


def test_a_hole_inside_a_shard(copy: Path) -> None:
    """Downloads in parallel leave holes anywhere."""
    name = f"{LAYER}.1.mlp.down_proj.weight_packed"
    edit(copy, lambda tensors: tensors[name].view(-1)[5000:12_000].zero_())
    (breach,) = audit_checkpoint(copy).breaches
    assert breach.subject == name
    assert "codes of zero in one run, from row 19 on" in breach.message
    embedding = load_file(copy / "model.safetensors")[EMBEDDING]
    edit(copy, lambda tensors: tensors[EMBEDDING].view(-1)[10_000:40_000].zero_())
    assert embedding.numel() > 60_000
    (breach,) = [b for b in audit_checkpoint(copy).breaches if b.subject == EMBEDDING]
    assert "bytes of zeros in one run" in breach.message


def test_small_weights_are_no_hole(made: Make, source: Path, tmp_path: Path) -> None:
    """Rows so small beside the others that their scales are the smallest, and codes zero."""
    from clefq.console import Console
    from clefq.quantize.run import QuantizeSpec, quantize

    tiny = tmp_path / "tiny"
    shutil.copytree(source, tiny)
    name = f"{LAYER}.1.mlp.down_proj.weight"
    tensors = load_file(tiny / "model.safetensors")
    tensors[name][20:200] *= 1e-8
    save_file(tensors, tiny / "model.safetensors", metadata={"format": "pt"})
    spec = QuantizeSpec(str(tiny), "nvfp4a16")
    with pytest.raises(AuditError, match=r"loses 180 rows \(20-199\) and 5,760 of its 8,192"):
        quantize(spec, tmp_path / "out", Console(quiet=True))
    accepted = replace(spec, allow_vanished=True)
    result = quantize(accepted, tmp_path / "out", Console(quiet=True))
    codes = load_file(result.folder / "model.safetensors")[f"{name}_packed"]
    assert int((codes[20:200] & 0x77).count_nonzero()) == 0
    assert audit_checkpoint(result.folder).passed
    (note,) = [note for note in result.report.notes if "loses" in note]
    assert "quantize it in FP8" in note


def test_zero_rows_that_the_source_has_too_are_no_damage(
    made: Make, source: Path, tmp_path: Path
) -> None:
    from clefq.console import Console
    from clefq.quantize.run import QuantizeSpec, quantize

    pruned = tmp_path / "pruned"
    shutil.copytree(source, pruned)
    name = f"{LAYER}.1.mlp.down_proj.weight"
    edit_source = load_file(pruned / "model.safetensors")
    edit_source[name][-8:] = 0
    save_file(edit_source, pruned / "model.safetensors", metadata={"format": "pt"})
    result = quantize(QuantizeSpec(str(pruned), "fp8"), tmp_path / "out", Console(quiet=True))
    report = audit_checkpoint(result.folder, pruned)
    assert report.passed
    (note,) = report.notes
    assert "1 matrices hold long runs of zeros" in note
    (breach,) = audit_checkpoint(result.folder).breaches
    assert breach.message == "is zero from row 248 of 256 to its end"


def test_padding_of_the_vocabulary_is_no_damage(copy: Path) -> None:
    words = vocabulary(copy)
    rows = load_file(copy / "model.safetensors")[EMBEDDING].shape[0]
    assert words is not None
    body = json.loads((copy / "tokenizer.json").read_text())
    # a smaller vocabulary: the last rows are padding
    body["added_tokens"] = [t for t in body["added_tokens"] if t["id"] < rows - 40]
    vocab = body["model"]["vocab"]
    body["model"]["vocab"] = {word: at for word, at in vocab.items() if at < rows - 40}
    (copy / "tokenizer.json").write_text(json.dumps(body))
    words = vocabulary(copy)
    assert words is not None and words <= rows - 40
    edit(copy, lambda tensors: tensors[EMBEDDING][words:].zero_())
    assert values(audit_checkpoint(copy)) == []
    edit(copy, lambda tensors: tensors[EMBEDDING][words - 1 :].zero_())
    assert values(audit_checkpoint(copy)) == [EMBEDDING]
    (copy / "tokenizer.json").write_text("[" * 100_000)
    assert vocabulary(copy) is None


def test_norms_of_zero_are_worth_a_word(copy: Path) -> None:
    name = f"{LAYER}.2.input_layernorm.weight"
    edit(copy, lambda tensors: tensors[name].zero_())
    report = audit_checkpoint(copy)
    assert report.passed
    assert any(f"first: {name}" in note for note in report.notes)


def test_a_head_that_was_cut_short(copy: Path) -> None:
    head = load_file(copy / "joint_head.safetensors")
    name = "question_projection.weight"
    head[name] = torch.cat([head[name][:-4], torch.zeros_like(head[name][-4:])])
    save_file(head, copy / "joint_head.safetensors")
    (breach,) = audit_checkpoint(copy).breaches
    assert breach.check == "head"
    assert f"{name} is zero from byte" in breach.message


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=9), max_size=6))
def test_the_longest_run_over_blocks(blocks: list[list[bool]]) -> None:
    flat = [value for block in blocks for value in block]
    runs = {
        (start, stop - start)
        for start in range(len(flat))
        for stop in range(start + 1, len(flat) + 1)
        if all(flat[start:stop])
    }
    _, length = max(runs, key=lambda run: run[1], default=(0, 0))
    found = _longest(np.array(block, dtype=bool) for block in blocks)
    assert found[1] == length
    assert not length or found in runs


def test_a_source_with_nan_is_refused_before_anything_runs(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "source")
    tensors = load_file(tmp_path / "source" / "model.safetensors")
    for name in (f"{LAYER}.1.mlp.up_proj.weight", f"{LAYER}.2.input_layernorm.weight"):
        tensors[name].view(-1)[3] = float("nan")
    save_file(tensors, tmp_path / "source" / "model.safetensors", metadata={"format": "pt"})
    spec = QuantizeSpec(str(tmp_path / "source"), "fp8")
    with pytest.raises(CheckpointError, match=r"up_proj\.weight holds 1 values") as caught:
        quantize(spec, tmp_path / "out", Console(quiet=True))
    assert len(caught.value.faults) == 1 and "input_layernorm" in caught.value.faults[0]
    assert not list(tmp_path.glob("*out*"))
