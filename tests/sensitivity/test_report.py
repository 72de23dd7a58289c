"""What a person reads: the tables, the page, the command."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console as RichConsole
from typer.testing import CliRunner

from clefq.cli.main import app
from clefq.errors import ClefqError
from clefq.sensitivity.report_html import report_html
from clefq.sensitivity.report_plots import heat_map
from clefq.sensitivity.report_text import report_text, short
from clefq.sensitivity.schema import BlockResult, Sensitivity
from tests.sensitivity.conftest import Swept


def lines_of(found: Sensitivity) -> list[str]:
    console = RichConsole(width=80, record=True, file=io.StringIO())
    console.print(report_text(found, Path("out"), "models/bf16"))
    return console.export_text().splitlines()


def deeper(found: Sensitivity, layers: int) -> Sensitivity:
    """The same figures for a model of many layers."""
    blocks: list[BlockResult] = []
    for layer in range(layers):
        for result in found.blocks:
            if result.layer == (3 if layer % 4 == 3 else 0):
                name = f"{layer}.{result.kind}"
                blocks.append(replace(result, block=name, layer=layer))
    return replace(found, blocks=tuple(blocks))


def test_the_tables_fit_80_columns_and_cut_nothing(swept: Swept) -> None:
    best = swept.found.layouts[0]
    assert best.measured is not None
    same = replace(best.measured.agreement, estimate=1.0)
    full = replace(best, name="last-quarter-fp8", measured=replace(best.measured, agreement=same))
    widest = replace(swept.found, layouts=(replace(full, on_front=True),))
    for found in (swept.found, widest, deeper(swept.found, 64)):
        lines = lines_of(found)
        assert max(map(len, lines)) <= 80
        assert not any("…" in line for line in lines)
        assert sum("flips" in line for line in lines) == 2
    assert any("the worst 16 of 128" in line for line in lines)
    assert any(line.startswith("recipe  out/recipe.yaml") for line in lines)


def test_without_a_budget_there_is_no_recipe_to_speak_of(swept: Swept) -> None:
    layouts = tuple(la for la in swept.found.layouts if la.origin == "published")
    found = replace(swept.found, layouts=layouts, budget=None, recipe=None)
    text = "\n".join(lines_of(found))
    assert "recipe" not in text
    assert "recipe.yaml" not in report_html(found)


def test_numbers_are_short() -> None:
    cases = [(0.0, "0"), (0.00049, "0.000"), (0.0312, "0.031"), (1.234, "1.23"), (12.34, "12.3")]
    cases += [(123.4, "123"), (12345.6, "12,346")]
    assert [short(value) for value, _ in cases] == [text for _, text in cases]


def test_the_page_stands_alone(swept: Swept) -> None:
    html = (swept.spec.out / "sensitivity.html").read_text()
    assert html == report_html(swept.found)
    assert "<script" not in html
    assert not re.search(r'(src|href)="', html)
    assert "prefers-color-scheme: dark" in html
    assert "Simulated kernels" in html
    for layout in swept.found.layouts:
        assert f">{layout.name}<" in html
    pictures = re.findall(r"<svg.*?</svg>", html, flags=re.S)
    assert len(pictures) == 3
    for picture in pictures:
        ElementTree.fromstring(picture)


@pytest.mark.parametrize("layers", [4, 64])
def test_the_heat_map_has_every_block(swept: Swept, layers: int) -> None:
    found = deeper(swept.found, layers)
    root = ElementTree.fromstring(heat_map(found))
    space = "{http://www.w3.org/2000/svg}"
    titles = [t.text or "" for t in root.findall(f"{space}g/{space}title")]
    assert len(titles) == layers * 2 * 3
    assert {t.split(":")[0] for t in titles} == {f"{r.block} in {r.scheme}" for r in found.blocks}
    shades = [r.attrib["class"] for r in root.findall(f"{space}g/{space}rect")]
    worst = max(range(len(titles)), key=lambda at: _kl(titles[at]))
    assert shades[worst] == "h h9"


def _kl(title: str) -> float:
    found = re.search(r"KL ([\d.]+) \[", title)
    assert found is not None
    return float(found[1])


def test_names_of_others_are_escaped(swept: Swept) -> None:
    found = replace(swept.found, eval_set={**swept.found.eval_set, "name": "<b>set</b>"})
    assert "<b>set</b>" not in report_html(found)


@pytest.fixture
def command(
    swept: Swept, release: Path, set_path: Path, calibration: Path
) -> Callable[..., list[str]]:
    def arguments(out: Path, *more: str) -> list[str]:
        return [
            "sensitivity", str(release), "--eval", str(set_path), "--calibration",
            str(calibration), "--out", str(out), "--threads", "1", "--batch-tokens", "3000",
            "--no-published", "--no-verify", "--quiet", *more,
        ]  # fmt: skip

    return arguments


def test_the_command_resumes_and_prints_json(
    swept: Swept, command: Callable[..., list[str]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(swept.spec.out, out)
    done = CliRunner().invoke(app, command(out, "--json", "--budget-fraction", "0.75"))
    assert done.exit_code == 0, done.output
    body = json.loads(done.stdout)
    assert body["effort"]["resumed"] == 24
    best = body["layouts"][0]
    assert best["nbytes"] <= 0.75 * body["model"]["bf16_bytes"] == body["budget"]["limit"]
    text = CliRunner().invoke(app, command(out, "--budget-bytes", "520000"))
    assert text.exit_code == 0
    assert "budget  --budget-bytes 520,000: " in text.stdout
    unfolded = "".join(line.strip() for line in text.stdout.splitlines())
    assert f"clefq quantize {command(out)[1]} --recipe" in unfolded
    said = f"--calibration {command(out)[5]} --out DIR"
    assert said.replace(" ", "") in unfolded.replace(" ", "")


def test_the_next_command_runs_where_names_were_given(
    swept: Swept, release: Path, command: Callable[..., list[str]], tmp_path: Path
) -> None:
    """`clefq quantize` takes no variant names: their paths are printed."""
    shutil.copytree(swept.spec.out, tmp_path / "out")
    for name, target in (("models/bf16", release), ("sets/own", Path(command(tmp_path)[5]))):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).symlink_to(target)
    given = command(tmp_path / "out", "--run", str(tmp_path))
    given[1], given[5] = "bf16", "own"
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    unfolded = "".join(line.strip() for line in done.stdout.splitlines()).replace(" ", "")
    said = f"clefq quantize {tmp_path}/models/bf16 --recipe {tmp_path}/out/recipe.yaml "
    said += f"--calibration {tmp_path}/sets/own --out DIR"
    assert said.replace(" ", "") in unfolded


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--budget-gb", "1", "--budget-speed", "2"), "exclude each other"),
        (("--budget-gb", "-1"), "expected a positive number"),
        (("--budget-bytes", "1000"), "no layout of fp8, nvfp4a16, nvfp4 meets"),
        (("--schemes", "int3"), "unknown scheme 'int3'"),
        (("--schemes", "int4"), "int4 cuts inputs into groups of 128"),
        (("--speeds", "fp8"), "is no speed"),
    ],
)
def test_wrong_options_are_one_line(
    swept: Swept, command: Callable[..., list[str]], more: tuple[str, ...], message: str
) -> None:
    done = CliRunner().invoke(app, command(swept.spec.out, *more))
    assert isinstance(done.exception, ClefqError)
    assert message in done.exception.message
    assert done.exception.fix or message == "expected a positive number"
