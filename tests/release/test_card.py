from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from clefq.console import Console
from clefq.errors import InputError
from clefq.names.run_folder import find_place
from clefq.parity.gates.formatting import figure
from clefq.parity.report.parity_json import signed
from clefq.quantize.run import QuantizeSpec, quantize
from clefq.release.card import CardOptions, make_card
from clefq.release.card_text import card_text, compare, read_card
from clefq.release.caveats import caveats
from clefq.release.evidence import Evidence, gather
from clefq.store.atomic import write_json
from tests.release.conftest import EVAL, Clefq, Drift, write_answers

CONSOLE = Console(quiet=True)


def of(root: Path, variant: str) -> Evidence:
    return gather(find_place(root, variant))


def edited(found: Evidence, **changes: Any) -> Evidence:
    """The evidence with parts of its first report replaced."""
    (item,) = found.sets
    document = json.loads(json.dumps(item.document))
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = document
        for name in parents:
            place = place[name]
        place[last] = value
    return replace(found, sets=(replace(item, document=document),))


@pytest.fixture(scope="module")
def evidence(finished: Path) -> Evidence:
    return of(finished, "nvfp4a16")


def test_written_and_checked(
    clefq: Clefq, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clefq("card", run_folder, "--variant", "fp8", "--base-model", "Org/clef") == 0
    path = run_folder / "models" / "fp8" / "README.md"
    assert clefq("card", run_folder, "--variant", "fp8", "--check") == 0
    front = yaml.safe_load(path.read_text("utf-8").split("---\n")[1])
    assert front["base_model"] == "Org/clef"
    assert front["base_model_relation"] == "quantized"
    assert front["license"] == "apache-2.0"
    assert {"library_name", "pipeline_tag"} <= front.keys()
    assert {"clef", "fp8", "clefq"} <= set(front["tags"])
    assert clefq("card", run_folder) == 2  # which of the two?
    assert clefq("card", run_folder, "--variant", "bf16") == 2
    assert clefq("card", run_folder, "--variant", "nvfp4a16", "--check") == 2  # not written yet
    text = path.read_text("utf-8")
    path.write_text(text.replace("---\n", "---\nmodel-index: [{results: [{value: 1.0}]}]\n", 1))
    assert clefq("card", run_folder, "--variant", "fp8", "--check") == 1
    path.write_text(text, "utf-8")
    # the hub reads it
    from huggingface_hub import ModelCard

    ModelCard.load(path)
    assert "missing" not in capsys.readouterr().err


@pytest.mark.parametrize(("scheme", "arithmetic"), [("int8", "w8a8-int8"), ("int4", "w4a16-int4")])
def test_integers_have_cards_too(
    clefq: Clefq, run_folder: Path, scheme: str, arithmetic: str
) -> None:
    folder = run_folder / "models" / scheme
    quantize(QuantizeSpec(str(run_folder / "models" / "bf16"), scheme), folder, CONSOLE)
    write_answers(run_folder, scheme, Drift(noise=0.02, arithmetic=arithmetic))
    judged = clefq("parity", "--baseline", "bf16", "--candidate", scheme, "--run", run_folder)
    assert judged in (0, 1, 3)
    card = ("card", run_folder, "--variant", scheme)
    assert clefq(*card) == 0 and clefq(*card, "--check") == 0
    text = (folder / "README.md").read_text("utf-8")
    assert scheme in yaml.safe_load(text.split("---\n")[1])["tags"]
    assert f"{scheme.upper()} build of bf16" in text
    assert f"MLP: 24 × {arithmetic}" in text and f"({arithmetic}, real kernels)" in text
    assert "amax / 6" not in text  # which is NVFP4's scale alone


def test_every_figure_is_the_reports(evidence: Evidence) -> None:
    card = make_card(evidence, CardOptions())
    (item,) = evidence.sets
    metrics = item.document["metrics"]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|", card.sections["parity"], re.M)
    table = {title: (value, bounds) for title, value, bounds in rows}
    delta = metrics["accuracy_delta"]
    assert table["Accuracy difference"][0] == figure(delta["estimate"], signed=True)
    assert table["Agreement"][0] == f"{100 * metrics['agreement']['estimate']:.2f}%"
    low, high = metrics["kl"]["lower"], metrics["kl"]["upper"]
    assert table["KL divergence"][1] == f"[{low:.4f}, {high:.4f}]"
    folder = evidence.place.model
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert f"| this checkpoint | {size / 1e6:.3g} MB |" in card.sections["parity"]
    manifest = json.loads((folder / "clefq.json").read_text())
    assert manifest["source"]["sha256"] in card.sections["evidence"]
    assert manifest["recipe"]["sha256"] in card.sections["evidence"]


def test_check_finds_every_edited_figure(evidence: Evidence, tmp_path: Path) -> None:
    """Each line with a digit in it is changed in turn, wherever that is in a section."""
    card = make_card(evidence, CardOptions("Org/clef", "me/clef-4bit"))
    path = tmp_path / "README.md"
    path.write_text(card_text(card), "utf-8")
    whole = read_card(path)
    assert compare(whole, card) == []
    lines = path.read_text("utf-8").splitlines()
    tried = 0
    for section in whole.sections.values():
        for number in range(section.line, section.line + len(section.lines)):
            changed = re.sub(r"\d", lambda m: str((int(m[0]) + 1) % 10), lines[number - 1], count=1)
            if changed == lines[number - 1]:
                continue
            text = "\n".join([*lines[: number - 1], changed, *lines[number:]])
            path.write_text(text + "\n", "utf-8")
            faults = compare(read_card(path), card)
            assert len(faults) == 1 and faults[0].startswith(f"README.md:{number} says"), faults
            tried += 1
    assert tried > 40


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("license: apache-2.0", "license: mit", "front matter: license is 'mit'"),
        ("**FAIL** on", "**PASS** on", 'says "**PASS**'),
        ("- **Untested: videos.** No record of the sets has one.\n", "", "lacks"),
        ("## Caveats\n", "## Caveats\n\n- The best model.\n", "which no evidence gives"),
        ("<!-- clefq:caveats -->", "", "lacks the section caveats"),
    ],
)
def test_check_names_the_place(
    evidence: Evidence, tmp_path: Path, old: str, new: str, expected: str
) -> None:
    found = edited(evidence, verdict__word="fail")
    card = make_card(found, CardOptions())
    text = card_text(card)
    assert old in text
    path = tmp_path / "README.md"
    path.write_text(text.replace(old, new), "utf-8")
    faults = compare(read_card(path), card)
    assert any(expected in fault for fault in faults), faults


def test_what_is_stale_is_noticed(
    clefq: Clefq, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("card", run_folder, "--variant", "fp8")
    assert clefq(*arguments) == 0
    write_answers(run_folder, "fp8", Drift(noise=0.021))
    assert clefq(*arguments, "--check") == 1
    assert "is stale: fp8.parquet was changed since" in capsys.readouterr().out.replace("\n", " ")
    assert clefq(*arguments) == 2  # and not written again either
    assert clefq("parity", "--baseline", "bf16", "--run", run_folder, "--quiet") in (0, 1, 3)
    capsys.readouterr()
    assert clefq(*arguments, "--check", "--json") == 1
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert any("says" in fault and "the evidence" in fault for fault in faults)
    assert clefq(*arguments) == 0
    assert clefq(*arguments, "--check") == 0


def test_another_checkpoint_is_noticed(clefq: Clefq, run_folder: Path) -> None:
    folder = run_folder / "models" / "fp8"
    assert clefq("card", run_folder, "--variant", "fp8") == 0
    path = folder / "joint_head.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert clefq("card", run_folder, "--variant", "fp8", "--check") == 1
    assert clefq("card", run_folder, "--variant", "fp8") == 2


def test_an_edited_report_is_noticed(clefq: Clefq, run_folder: Path) -> None:
    path = run_folder / "report" / EVAL / "fp8" / "parity.json"
    document = json.loads(path.read_text())
    document["metrics"]["agreement"]["estimate"] = 1.0
    write_json(path, document)
    assert clefq("card", run_folder, "--variant", "fp8") == 2
    write_json(path, signed(document))  # then summary.json still knows
    assert clefq("card", run_folder, "--variant", "fp8") == 2


def test_own_words_stay(clefq: Clefq, run_folder: Path) -> None:
    assert clefq("card", run_folder, "--variant", "fp8", "--repo", "me/mine") == 0
    path = run_folder / "models" / "fp8" / "README.md"
    text = path.read_text("utf-8").replace("license:", "language: en\nlicense:")
    text = text.replace("# mine", "# Mine\n\nMade for our help desk.")
    text = text.replace("<!-- clefq:usage -->", "Read this first.\n\n<!-- clefq:usage -->")
    path.write_text(text.replace("89.", "98."), "utf-8")
    assert clefq("card", run_folder, "--variant", "fp8") == 0
    again = path.read_text("utf-8")
    assert "language: en" in again
    assert "# Mine\n\nMade for our help desk." in again
    assert "Read this first." in again
    assert "hf download me/mine" in again
    assert clefq("card", run_folder, "--variant", "fp8", "--check") == 0
    once = again
    assert clefq("card", run_folder, "--variant", "fp8") == 0
    assert path.read_text("utf-8") == once
    path.write_text("# My own card\n")
    assert clefq("card", run_folder, "--variant", "fp8") == 2
    assert path.read_text() == "# My own card\n"


def test_an_edited_header_is_named(
    clefq: Clefq, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = ("card", run_folder, "--variant", "fp8")
    assert clefq(*card, "--repo", "me/mine") == 0
    path = run_folder / "models" / "fp8" / "README.md"
    text = path.read_text("utf-8")
    path.write_text(text.replace('"repo": "me/mine"', '"repo": "my own"'), "utf-8")
    for arguments in (card, (*card, "--check"), (*card, "--repo", "me/mine")):
        assert clefq(*arguments) == 2
        said = capsys.readouterr().err
        assert f"{path}: the clefq:card line is malformed" in said and "--repo" not in said


def test_a_checkpoint_outside_of_a_run_folder(clefq: Clefq, run_folder: Path) -> None:
    elsewhere = run_folder.parent / "fp8"
    shutil.move(run_folder / "models" / "fp8", elsewhere)
    report = run_folder / "report" / EVAL
    assert clefq("card", "--model", elsewhere, "--report", report) == 0
    assert clefq("card", "--model", elsewhere, "--report", report / "fp8", "--check") == 0
    assert clefq("card", "--model", elsewhere) == 2


def test_nothing_is_claimed_of_a_foreign_checkpoint(run_folder: Path) -> None:
    (run_folder / "models" / "fp8" / "clefq.json").unlink()
    (run_folder / "models" / "fp8" / "LICENSE").unlink()
    found = of(run_folder, "fp8")
    card = make_card(found, CardOptions())
    assert "recipe, source, calibration, audit | not recorded" in card.sections["quantization"]
    assert "is not recorded (no clefq.json)" in card.sections["caveats"]
    assert "passed" not in card.sections["quantization"]
    assert {"license", "base_model", "base_model_relation"}.isdisjoint(card.front)
    assert "clefq" not in card.front["tags"]


def test_a_base_model_that_is_not_the_source_is_refused(evidence: Evidence) -> None:
    assert evidence.manifest is not None
    source = {**evidence.manifest.source, "model_id": "Org/clef"}
    found = replace(evidence, manifest=replace(evidence.manifest, source=source))
    assert make_card(found, CardOptions()).front["base_model"] == "Org/clef"
    with pytest.raises(InputError, match=r"clefq\.json says"):
        make_card(found, CardOptions(base_model="Org/other"))


def test_caveats_come_from_the_evidence(evidence: Evidence) -> None:
    text = "\n".join(caveats(evidence))
    assert "**Simulated kernels.**" in text and "w4a16" in text
    assert "not made with vLLM" in text
    assert "Images are hardly tested: 36 of 368 records" in text
    assert "**Untested: videos.**" in text
    assert "Untested: prompts of more than 3,763 tokens" in text
    assert "Not pre-registered" in text
    assert "Weakest cohorts of nano-eval" in text
    real = edited(
        evidence,
        candidate__kernels="real",
        candidate__engine="vllm",
        gate_file__preregistration__status="preregistered",
    )
    fewer = "\n".join(caveats(real))
    for phrase in ("Simulated kernels", "not made with vLLM", "Not pre-registered"):
        assert phrase not in fewer
    clipped = edited(evidence, candidate__clipped={"layers.0.down_proj": 0.04})
    assert "most in layers.0.down_proj (4.0%); calibrate on records" in "\n".join(caveats(clipped))
    other = edited(evidence, candidate__arithmetic="w4a4", candidate__model_sha256=None)
    words = "\n".join(caveats(other))
    assert "**Other arithmetic.**" in words and "nothing proves that it served" in words
    (item,) = evidence.sets
    blind = replace(evidence, sets=(replace(item, media=None, manifest=None),))
    assert "Whether the sets hold images or videos is not recorded" in "\n".join(caveats(blind))


def test_longer_prompts_than_the_limit_are_untested_whatever_the_set_holds(
    evidence: Evidence,
) -> None:
    text = "\n".join(caveats(edited(evidence, candidate__max_length=2048)))
    assert "Untested: prompts of more than 2,048 tokens" in text
    found = edited(evidence, candidate__max_length=2048)
    (item,) = found.sets
    blind = replace(found, sets=(replace(item, manifest=None),))
    assert "Untested: prompts of more than 2,048 tokens" in "\n".join(caveats(blind))


def test_a_recipe_that_was_searched_on_the_set_is_said(run_folder: Path) -> None:
    found = of(run_folder, "fp8")
    assert "searched on" not in "\n".join(caveats(found))
    recipe = run_folder / "models" / "fp8" / "recipe.yaml"
    sha = found.sets[0].document["eval_set"]["sha256"]
    recipe.write_text(f"# eval set  {EVAL}, {sha}, 10 records\n" + recipe.read_text("utf-8"))
    assert f"**The recipe was searched on {EVAL}**" in "\n".join(caveats(found))


@pytest.mark.parametrize("changes", [{"scheme": "fp8"}, {"arithmetic": "w8a8"}])
def test_a_comparison_with_another_baseline_is_no_parity_with_bf16(
    evidence: Evidence, changes: dict[str, str]
) -> None:
    found = edited(evidence, **{f"baseline__{key}": value for key, value in changes.items()})
    with pytest.raises(InputError, match="not with BF16"):
        make_card(found, CardOptions())


def test_the_weakest_cohort_is_the_one_that_lost(evidence: Evidence) -> None:
    slices = json.loads(json.dumps(evidence.sets[0].document["slices"]))
    slices["cohort=form"]["accuracy_delta"] |= {
        "estimate": -0.25, "lower": -0.3, "upper": -0.2,
    }  # fmt: skip
    found = edited(evidence, slices=slices)
    line = next(line for line in caveats(found) if line.startswith("Weakest"))
    assert line.startswith(
        "Weakest cohorts of nano-eval, worst first: form accuracy −25.00 pt [−30.00, −20.00]"
    )


@pytest.mark.parametrize("word", ["fail", "inconclusive", "invalid"])
def test_the_worst_verdict_stands_first(evidence: Evidence, word: str) -> None:
    """Whatever else the card says: the bad news is its first section."""
    text = card_text(make_card(edited(evidence, verdict__word=word), CardOptions()))
    body = text.split("---\n", 2)[2]
    first = body.index(f"**{word.upper()}** on nano-eval")
    assert first < body.index("##")


def test_throughput_only_where_it_was_measured(evidence: Evidence) -> None:
    assert make_card(evidence, CardOptions()).sections["throughput"].endswith("Not measured.")
    (item,) = evidence.sets
    assert item.row is not None
    row = {**item.row, "throughput": {"value": 41.25, "unit": "records/s", "source": "bench.json"}}
    found = replace(evidence, sets=(replace(item, row=row),))
    assert make_card(found, CardOptions()).sections["throughput"].endswith("Not measured.")
    real = edited(found, candidate__kernels="real")
    assert "| 41.25 records/s | cpu, transformers" in make_card(real, CardOptions()).sections[
        "throughput"
    ].replace("predicting nano-eval | ", "| ")


def test_the_transformers_snippet_runs(
    run_folder: Path, clefq: Clefq, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The card's own code, on the folder alone; only the device is another one."""
    from clef_finetune.jsm import VENDORED_PATH
    from transformers import AutoProcessor, AutoTokenizer

    from clefq.quantize.quiet import quiet_libraries

    # the processor class needs torchvision for its videos; text needs its tokenizer alone
    monkeypatch.setattr(
        AutoProcessor,
        "from_pretrained",
        lambda path: SimpleNamespace(tokenizer=AutoTokenizer.from_pretrained(path)),
    )
    folder = run_folder / "models" / "fp8"
    shutil.copy(VENDORED_PATH, folder / "joint_schema_model.py")
    assert clefq("card", run_folder, "--variant", "fp8", "--quiet") == 0
    text = (folder / "README.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert 'device="cuda"' in code
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    capsys.readouterr()
    try:
        with quiet_libraries():
            exec(compile(code.replace("cuda", "cpu"), "card", "exec"), {})
    finally:
        sys.modules.pop("joint_schema_model", None)
    answers = eval(capsys.readouterr().out)
    assert answers["team"]["choice"] in ("billing", "shipping", "technical")
    assert 0 <= answers["refund"]["noul"] <= 1
    assert sum(answers["urgency"]["probabilities"].values()) == pytest.approx(1, abs=2e-4)
