"""docs/publish.md, executed: from BF16 to the upload command, on the miniature and smaller sets."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from clefq.nano import SETS, WEIGHTS
from clefq.store.sets import SetDraft, open_set, write_set
from tests.docs.test_pages import Shell


def shortest(name: str, count: int, root: Path) -> Path:
    """The shortest records of a bundled set, as a set of its own."""
    found = [record for record in open_set(SETS / name).records() if not record.images]
    short = sorted(found, key=lambda record: len(str(record.state)))[:count]
    role = open_set(SETS / name).manifest.role
    draft = SetDraft(role=role, name=f"few-{name}", definition={"shortest": count}, sources=())
    return write_set(root / f"few-{name}", short, {}, draft).path


@pytest.mark.slow
def test_from_bf16_to_the_upload_command(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    variables = {
        "BF16": str(WEIGHTS),
        "SET": str(shortest("nano-eval", 40, tmp_path)),
        "CALIBRATION": str(shortest("nano-calibration", 8, tmp_path)),
        "BASE": "Cloudflare/clef-flash",
        "REPO": "me/clef-nano-NVFP4",
    }
    shell = Shell(tmp_path, variables)
    judge, keep = "3. Judge", "6. Keep it proven"
    printed = shell.page("publish.md", judging=(judge, keep))
    assert shell.set == set(variables)
    assert "sound" in printed["2. Quantize"] and "w4a4" in printed["2. Quantize"]
    upload = printed["5. Make the folder to upload"]
    assert "hf upload me/clef-nano-NVFP4 upload ." in upload
    assert "computed again: same" in upload.replace("\n", " ")
    card = (tmp_path / "upload" / "README.md").read_text("utf-8")
    assert "base_model: Cloudflare/clef-flash\nbase_model_relation: quantized" in card
    assert "The gates were committed before the candidate was run" in card
    assert "**Simulated kernels.**" in card
    report = tmp_path / "release" / "report" / "few-nano-eval" / "nvfp4" / "parity.json"
    verdict = json.loads(report.read_text("utf-8"))["verdict"]["word"]
    assert f"**{verdict.upper()}** on few-nano-eval" in card
    assert printed[keep].count("every figure, hash and verdict") == 1
