"""A random nano-shaped checkpoint, records over it, and one engine per checkpoint and session."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

# threads that spin while they wait bring a busy machine to a standstill; read when torch loads
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("KMP_BLOCKTIME", "0")

from clefq.clef.records import Record, parse_record
from clefq.nano import SETS, WEIGHTS

WORDS = [
    *("account", "card", "refund", "transfer", "late", "fee", "approve", "please", "why", "when"),
    *("how", "limit", "travel", "top", "pin", "failed", "pending", "exchange", "rate", "42"),
    *("blå", "雨", "🙂"),
]


@pytest.fixture(scope="session")
def random_nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tools.nano.build import build_random

    return build_random(tmp_path_factory.mktemp("random") / "bf16", seed=3)


def make_record(rng: random.Random, number: int, *, words: int, options: int = 0) -> Record:
    """A record of random words: one to four questions of all types."""
    questions: dict[str, object] = {}
    for index in range(rng.randint(1, 4)):
        kind = "choice" if options and index == 0 else rng.choice(["noul", "choice", "score"])
        body: dict[str, object] = {"type": kind, "instructions": phrase(rng, 6)}
        if kind == "choice":
            count = options if options and index == 0 else rng.randint(2, 6)
            body["criteria"] = {
                f"{rng.choice(WORDS)}-{option}": rng.choice([None, phrase(rng, 4)])
                for option in range(count)
            }
        if kind == "score":
            body["criteria"] = ["bad", "fair", "good"]
        questions[f"q{index}"] = body
    value = {
        "id": f"r{number}",
        "cohort": "words",
        "state": {"text": phrase(rng, words)},
        "questions": questions,
    }
    return parse_record(value, f"record {number}")


def phrase(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


@pytest.fixture(scope="session")
def mixed_records() -> list[Record]:
    """Short and long prompts, several of them longer than one engine step, one with 77 options."""
    rng = random.Random(7)
    sizes = [8, 400, 30, 150, 8, 30, 900, 60]
    records = [make_record(rng, number, words=size) for number, size in enumerate(sizes)]
    return [*records, make_record(rng, len(records), words=40, options=77)]


@pytest.fixture(scope="session")
def image_set(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Record], Path]:
    """Records with up to three images of different shapes, and the folder of the images."""
    from PIL import Image, ImageDraw

    rng = random.Random(5)
    root = tmp_path_factory.mktemp("images")
    records = []
    for number, count in enumerate([1, 2, 3, 1]):
        names = []
        for index in range(count):
            width, height = rng.choice([(64, 64), (200, 120), (90, 310), (400, 300)])
            image = Image.new("RGB", (width, height), tuple(rng.randrange(256) for _ in range(3)))
            draw = ImageDraw.Draw(image)
            for _ in range(12):
                ends = [rng.randrange(side) for side in (width, height) * 2]
                draw.line(ends, fill=tuple(rng.randrange(256) for _ in range(3)), width=6)
            names.append(f"{number}-{index}.png")
            image.save(root / names[-1])
        records.append(replace(make_record(rng, number, words=60), images=tuple(names)))
    return records, root


def quantize_miniature(scheme: str, out: Path) -> Path:
    """The trained miniature by `clefq quantize`, in the environment that `make setup` builds."""
    python = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "python"
    python = Path(os.environ.get("CLEFQ_QUANTIZE_PYTHON", python))
    if not python.is_file():
        pytest.skip("needs the quantization environment: make setup")
    command = [str(python), "-m", "clefq.cli.main", "quantize", str(WEIGHTS)]
    command += ["--scheme", scheme, "--out", str(out), "--quiet"]
    if scheme == "nvfp4":
        command += ["--calibration", str(SETS / "nano-calibration")]
    subprocess.run(command, check=True, timeout=280)
    return out


def quantized(source: Path, kind: str, out: Path) -> Path:
    """A copy of a BF16 checkpoint with every Linear quantized to nearest, packed by the library.

    Args:
        source: BF16 checkpoint, in any number of shards.
        kind: `fp8`, `nvfp4` or `nvfp4a16`.
        out: New folder.
    """
    from safetensors.torch import load_file, save_file

    from tests.engines.quantizing import quantize_release

    merged = out.with_name(f"{out.name}-merged")
    shutil.copytree(source, merged)
    tensors = {}
    for shard in merged.glob("model*.safetensors"):
        tensors |= load_file(shard)
        shard.unlink()
    (merged / "model.safetensors.index.json").unlink(missing_ok=True)
    save_file(tensors, merged / "model.safetensors", metadata={"format": "pt"})
    quantize_release(merged, out, lambda module: kind)
    shutil.rmtree(merged)
    # vLLM has module names of its own: targets anchored to a checkpoint's names match nothing
    config = json.loads((out / "config.json").read_text())
    section = config["quantization_config"]
    form = "float-quantized" if kind == "fp8" else "nvfp4-pack-quantized"
    section["format"] = form
    section["config_groups"]["group_0"] |= {"targets": ["Linear"], "format": form}
    section["ignore"] = ["re:.*lm_head$", "re:.*visual.*", r"re:.*linear_attn\.in_proj_[ab]$"]
    (out / "config.json").write_text(json.dumps(config))
    return out
