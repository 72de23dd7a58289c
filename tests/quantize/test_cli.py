"""The three commands: what they print, what they return."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from clefq.cli import audit, main, repair
from clefq.cli import quantize as quantize_command
from clefq.console import Console
from clefq.errors import InputError, RecipeError
from clefq.quantize.audit import audit_checkpoint
from clefq.quantize.repair import repair_checkpoint
from tests.quantize.conftest import Make


def shown(renderable: object, capsys: pytest.CaptureFixture[str]) -> str:
    from rich.console import Console as RichConsole

    RichConsole(width=80, highlight=False).print(renderable)
    text = capsys.readouterr().out
    assert max(cell_len(line.rstrip()) for line in text.splitlines()) <= 80
    return text


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clefq.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_audit_prints_checks_and_effects(
    unshared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(audit.render(audit_checkpoint(unshared)), capsys)
    assert "weight scales         25  3 breach(es)" in text
    assert "members differ: in_proj_qkv" in text
    assert "vLLM takes the largest divisor for all: weights of" in text
    assert "next: clefq repair" in text


def test_audit_exits_with_the_verdict(unshared: Path, made: Make, source: Path) -> None:
    bad = run("audit", unshared, "--json")
    assert bad.returncode == 1, bad.stderr
    body = json.loads(bad.stdout)
    assert body["passed"] is False
    assert body["checks"]["weight scales"] == {"looked_at": 25, "breaches": 3}
    assert {breach["check"] for breach in body["breaches"]} == {"weight scales"}
    good = run("audit", made("fp8", "stream").folder, "--source", source)
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.rstrip().endswith("\nsound")


def test_repair_prints_errors_before_and_after(
    unshared: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = repair_checkpoint(unshared, source, tmp_path / "out", Console(quiet=True))
    text = shown(repair.render(report), capsys)
    assert "in_proj_z    requantized        3" in text
    assert "11 unquantized tensors restored from the source" in text
    body = report.to_json()
    assert {m["method"] for m in body["members"]} == {"kept", "requantized"}


def test_quantize_prints_what_was_made(made: Make, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(quantize_command._text(made("mixed"), None), capsys)
    assert "9 × w4a4, 16 × w8a8" in text or "16 × w8a8, 9 × w4a4" in text
    assert "smaller" in text
    assert "peak memory" in text
    assert "next: clefq predict" in text
    assert json.dumps(quantize_command._json(made("mixed")))


def test_a_rounding_is_named(
    source: Path, tmp_path: Path, made: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the first line, in the manifest, in the output's name; a file says it itself."""
    text = shown(quantize_command._text(made("nvfp4a16+search", "stream"), None), capsys)
    assert "(nvfp4a16, stream, search)" in " ".join(text.split())
    assert made("nvfp4a16", "stream").manifest.recipe["rounding"] == "nearest"
    assert made("nvfp4a16+search", "stream").manifest.recipe["rounding"] == "search"
    assert quantize_command._made_name("nvfp4", None, "gptq") == "nvfp4-gptq"
    assert quantize_command._made_name("nvfp4", None, "nearest") == "nvfp4"
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("quant_stage: {quant_modifiers: {QuantizationModifier: {scheme: NVFP4A16}}}")
    with pytest.raises(RecipeError) as caught:
        quantize_command.command(str(source), recipe=recipe, rounding="search", quiet=True)
    assert "weight_observer: clefq_search" in str(caught.value.fix)
    with pytest.raises(InputError, match="this recipe uses data and needs a calibration set"):
        quantize_command.command(str(source), "nvfp4a16", rounding="gptq", quiet=True)


def test_errors_are_one_line_and_a_fix(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError) as caught:
        quantize_command.command(str(source), "nvfp4", out=tmp_path / "out", quiet=True)
    assert caught.value.exit_code == 2
    main._print_error(caught.value)
    assert capsys.readouterr().err.splitlines() == [
        "clefq: this scheme calibrates activations and needs a calibration set.",
        "  fix: build one with `clefq build calibration NAME`, then add --calibration SET.",
    ]
    assert list(tmp_path.iterdir()) == []
