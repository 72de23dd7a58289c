"""What surrounds the weights of an output, as values: config, places, kept calibrations."""

from __future__ import annotations

from pathlib import Path

import pytest

from clefq.clef.family import Widths
from clefq.errors import AuditError, InputError
from clefq.quantize.audit.measured import growth
from clefq.quantize.finish import IGNORED_DRAFTS, config_with, refuse_inside
from clefq.quantize.output import output_folder
from clefq.quantize.preflight import Needs, Prompts, with_prompts


def test_draft_layers_are_ignored_where_there_are_some() -> None:
    plan = {"ignore": ["lm_head"]}
    plain = config_with({"a": 1}, plan, ["model.language_model.norm.weight"])
    assert plain == {"a": 1, "quantization_config": plan}
    drafts = config_with({}, plan, ["mtp.layers.0.mlp.up_proj.weight"])
    assert drafts["quantization_config"]["ignore"] == ["lm_head", IGNORED_DRAFTS]
    assert plan == {"ignore": ["lm_head"]}


def test_an_output_inside_what_is_read(tmp_path: Path) -> None:
    refuse_inside(tmp_path / "out", tmp_path / "model")
    for out in (tmp_path / "model", tmp_path / "model" / "out", tmp_path / "x/../model/out"):
        with pytest.raises(InputError, match="would change that checkpoint"):
            refuse_inside(out, tmp_path / "model")


@pytest.mark.parametrize("calibrated", [True, False])
def test_a_calibration_survives_a_failed_audit(tmp_path: Path, calibrated: bool) -> None:
    with (
        pytest.raises(AuditError),
        output_folder(tmp_path / "out", lambda: {"recipe": 1}) as folder,
    ):
        (folder / "model.safetensors").write_text("wrong")
        (folder / ".work").mkdir()
        if calibrated:
            (folder / ".work" / "saved.done").touch()
        raise AuditError("the result would be wrong.")
    assert not (tmp_path / "out").exists()
    left = {p.name for p in tmp_path.rglob("*") if p.is_file()}
    assert left == ({"saved.done", ".fingerprint.json"} if calibrated else set())
    if calibrated:
        with output_folder(tmp_path / "out", lambda: {"recipe": 1}) as folder:
            assert (folder / ".work" / "saved.done").is_file()


def test_what_the_last_tenth_of_the_records_added() -> None:
    grew = growth({"a": [1.0] * 9 + [1.5], "b": [2.0] * 10 + [9.0] * 10}, 10)
    assert grew is not None
    # the second ten calls repeat the records behind quantized layers
    assert (grew.places, grew.grew, grew.factor) == (2, 1, 1.5)
    assert growth({"a": [1.0] * 9}, 9) is None
    assert growth({}, 100) is None


def test_prompts_count_by_their_length_not_its_square() -> None:
    """Measured on the miniature (256 columns of each kind), a record of its own or among others."""
    nano = Widths(256, 256, 256)
    for lengths, peak in (
        ([4096], 0.66e9),
        ([16384], 0.98e9),
        ([16384, *[200] * 127], 1.07e9),
        ([2048] * 32, 0.68e9),
    ):
        prompts = Prompts(max(lengths), sum(lengths), nano)
        needs = with_prompts(Needs(0, 700_000_000), prompts)
        assert peak <= needs.memory <= 1.3 * peak
    assert with_prompts(Needs(0, 5, gpu=7), Prompts(0, 0, nano)) == Needs(0, 5, gpu=7)
