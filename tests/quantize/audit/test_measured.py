"""`clefq audit --calibration SET`: stored input scales against what records reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from clefq.quantize.audit import audit_checkpoint, measured
from clefq.quantize.audit.bounds import claimed
from clefq.quantize.audit.checkpoint import open_audited
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.calibration import Calibration
from tests.quantize.conftest import Make

FEW = Calibration((), "records", "", "calibration", 16384, 0)


def test_records_prove_what_bounds_do_not(made: Make, source: Path, calibration_set: Path) -> None:
    """The records that calibrated a build reach what its scales say, and no more."""
    folder = made("nvfp4").folder
    open_, told = (
        audit_checkpoint(folder, source, calibration=given) for given in (None, calibration_set)
    )
    assert told.word == "sound"
    assert any("--calibration SET" in line for line in open_.unproven)
    assert not any("--calibration SET" in line for line in told.unproven)
    assert told.notes[-1] == "input scales were measured with 4 records."
    assert not any("smaller than these records need" in note for note in told.notes)


@pytest.mark.parametrize(
    ("factor", "effect", "note"),
    [
        (1.0, None, None),
        (2.5, None, "by up to 2.50 times"),
        (40.0, "inputs are clipped", None),
        (1 / 4000, "inputs are rounded to zero", None),
    ],
)
def test_how_far_inputs_may_be_from_their_scales(
    made: Make,
    monkeypatch: pytest.MonkeyPatch,
    factor: float,
    effect: str | None,
    note: str | None,
) -> None:
    audited = open_audited(made("nvfp4").folder)
    claims = {m: claimed(audited.refs, m, s) or 0.0 for m, s in audited.schemes.items()}
    reached = {module: [claim * factor] for module, claim in claims.items()}
    monkeypatch.setattr(measured, "measure", lambda *_: reached)
    report = AuditReport("")
    measured.check(report, audited.refs, audited.schemes, Path(), FEW)
    assert {breach.effect for breach in report.breaches} == ({effect} if effect else set())
    assert len(report.breaches) == (len(claims) if effect else 0)
    assert any(note in line for line in report.notes) if note else len(report.notes) == 1
