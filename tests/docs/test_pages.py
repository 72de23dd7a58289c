"""The task pages, executed: every command in order, on the miniature and a smaller set."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clefq.nano import WEIGHTS
from tests.docs.conftest import ROOT
from tests.docs.markdown import blocks

BIN = Path(sys.executable).parent
Printed = dict[str, str]

# a busy machine is no failure
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Shell:
    """Runs a page's blocks in one folder, with the page's variables.

    Args:
        folder: The folder.
        variables: Values in place of the page's own.
    """

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self.variables = variables
        self.set: set[str] = set()

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        """Runs a block; assignments of variables give their values to all later blocks."""
        for name in re.findall(r"^([A-Z][A-Z0-9]*)=", code, re.MULTILINE):
            assert name in self.variables, f"the page sets {name}"
            self.set.add(name)
        code = re.sub(r"^[A-Z][A-Z0-9]*=.*$", "", code, flags=re.MULTILINE)
        environment = {
            **os.environ,
            **self.variables,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            **{f"GIT_{who}_NAME": "someone" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "someone@example.org" for who in ("AUTHOR", "COMMITTER")},
        }
        environment.pop("GITHUB_STEP_SUMMARY", None)
        return subprocess.run(
            ["bash", "-eu", "-c", code],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )

    def page(
        self, name: str, skip: tuple[str, ...] = (), judging: tuple[str, ...] = ()
    ) -> dict[str, str]:
        """Runs a page's bash blocks, and gives what each heading's blocks printed.

        Args:
            name: The page.
            skip: Headings that are left out.
            judging: Headings whose verdict may be inconclusive: the set is smaller than the page's.
        """
        printed: dict[str, str] = {}
        for block in blocks(ROOT / "docs" / name):
            if block.language != "bash" or block.heading in skip:
                continue
            done = self.run(block.code)
            codes = (0, 3) if block.heading in judging else (0,)
            assert done.returncode in codes, f"{name}:{block.line}\n{done.stdout}{done.stderr}"
            printed[block.heading] = printed.get(block.heading, "") + done.stdout
        return printed


@pytest.fixture(scope="module")
def approved(tmp_path_factory: pytest.TempPathFactory, quick_set: Path) -> tuple[Shell, Printed]:
    """docs/approve.md, run."""
    folder = tmp_path_factory.mktemp("approve")
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    shell = Shell(folder, {"BF16": str(WEIGHTS), "BUILD": "build", "SET": str(quick_set)})
    return shell, shell.page("approve.md", judging=(JUDGE, KEEP))


JUDGE, KEEP = "5. Judge", "7. Keep the evidence"


def test_approve(approved: tuple[Shell, Printed]) -> None:
    shell, printed = approved
    assert shell.set == set(shell.variables)
    assert "sound" in printed["1. Is the file sound?"]
    assert "against bf16" in printed[JUDGE]
    report = json.loads((shell.folder / "report/build/parity.json").read_text(encoding="utf-8"))
    assert report["gate_file"]["preregistration"]["status"] == "preregistered"
    assert report["noise_floor"]
    assert "predictions" in printed[KEEP]


def test_day_two(tmp_path: Path) -> None:
    grows, builds = "The set grows", "Another build, and which one to take"
    elsewhere = "Elsewhere, and for a manager"
    shell = Shell(tmp_path, {"BF16": str(WEIGHTS)})
    printed = shell.page("day-two.md", judging=("The first day, again", grows, builds, elsewhere))
    text = (tmp_path / "report/tickets-2/fp8/parity.json").read_text(encoding="utf-8")
    order = json.loads(text)["gate_file"]["preregistration"]
    assert order["status"] == "grown"
    assert (order["growth"]["known"], order["growth"]["new"]) == (60, 1)
    assert "nothing was done" in printed[grows]
    assert "nvfp4a16" in printed[builds]
    assert "gold,queue/billing" in printed["What changed, and where"]
    assert (tmp_path / "flips.tickets-2.fp8.csv").is_file()
    assert "tickets-2" in printed[elsewhere]


def test_check_checkpoint(approved: tuple[Shell, Printed], tmp_path: Path) -> None:
    """On the build that the other page made, with the very same command."""
    top, mend, answers = "Check a checkpoint", "3. Mend it", "4. How it answers"
    page = blocks(ROOT / "docs" / "check-checkpoint.md")
    code = [block.code for block in page if block.heading == top and block.language == "bash"]
    assert code[1] in [block.code for block in blocks(ROOT / "docs" / "approve.md")]
    shell = Shell(tmp_path, approved[0].variables)
    shutil.copytree(approved[0].folder / "build", tmp_path / "build")
    printed = shell.page("check-checkpoint.md", skip=(top, mend), judging=(answers,))
    assert "consistent" in printed["1. What is in the file"]
    assert "against bf16" in printed[answers]

    _unshare(tmp_path / "build")
    broken = shell.run(next(b.code for b in page if b.heading == "1. What is in the file"))
    assert broken.returncode == 1
    assert "weight scales" in broken.stdout
    mended = shell.run(next(block.code for block in page if block.heading == mend))
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "in_proj_" in mended.stdout
    assert mended.stdout.rstrip().endswith("sound")


def _unshare(folder: Path) -> None:
    """Quantizes one of each fused DeltaNet pair by its own range, as plain llm-compressor does."""
    from compressed_tensors.quantization import preset_name_to_scheme
    from safetensors.torch import load_file, save_file

    from clefq.quantize import kernels

    (folder / "clefq.json").unlink()  # a build of somebody else
    args = preset_name_to_scheme("NVFP4A16", ["Linear"]).weights
    source = {}
    for path in WEIGHTS.glob("model*.safetensors"):
        source |= load_file(path)
    tensors = load_file(folder / "model.safetensors")
    changed = 0
    for name, shared in list(tensors.items()):
        module = name.removesuffix(".weight_global_scale")
        if module == name or "linear_attn.in_proj_" not in module:
            continue
        weight = source[f"{module}.weight"]
        own = kernels.global_scale(kernels.absmax(weight))
        if float(own) == float(shared):
            continue
        packed, scales = kernels.nvfp4_rows(weight, own, args)
        tensors[f"{module}.weight_packed"] = packed
        tensors[f"{module}.weight_scale"] = scales
        tensors[name] = own.reshape(shared.shape)
        changed += 1
    assert changed
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
