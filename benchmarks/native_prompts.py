"""What vLLM's and SGLang's own code makes of our requests: accepted or not, and the same prompt.

    python benchmarks/native_prompts.py --vllm vllm-0.33.0-….whl    # where vLLM is installed
    python benchmarks/native_prompts.py --sglang sglang-0.5.23-….whl

Reads request models and prompt code out of a wheel, without installing it, sends them the bodies
that `clefq predict --engine http` would send for the records of a set without images, and holds
their prompts against ours, token for token.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.util
import json
import sys
import types
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
NANO = REPOSITORY / "clefq" / "nano"
VLLM = (
    "vllm.entrypoints.openai.decisions",
    "vllm.entrypoints.generate.structured_decisions",
    "vllm.entrypoints.generate.label_reads",
    "vllm.entrypoints.generate.base.protocol",
)
SGLANG = "sglang.srt.entrypoints.systemone"
SGLANG_TEXTS = "sglang.srt.entrypoints.openai.protocol"
SGLANG_HEAD = "sglang.srt.layers.joint_schema_head"
Encode = Callable[[dict[str, Any]], list[int]]


class Stub(types.ModuleType):
    """A module of which nothing is used."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class Wheel(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules from a wheel; others below `stubs` are stubs."""

    def __init__(self, path: Path, taken: tuple[str, ...], stubs: str | None) -> None:
        self.archive = zipfile.ZipFile(path)
        self.names = set(self.archive.namelist())
        self.taken = taken
        self.stubs = stubs
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        stem = name.replace(".", "/")
        for file, package in ((f"{stem}/__init__.py", True), (f"{stem}.py", False)):
            if name.startswith(self.taken) and file in self.names:
                spec = importlib.util.spec_from_loader(name, self, is_package=package)
                assert spec is not None
                spec.origin = file
                return spec
        if self.stubs is not None and name.partition(".")[0] == self.stubs:
            return importlib.util.spec_from_loader(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return None if spec.origin else Stub(spec.name)

    def exec_module(self, module: Any) -> None:
        origin = module.__spec__.origin
        if origin:
            exec(compile(self.archive.read(origin), origin, "exec"), module.__dict__)


def vllm_encoders(wheel: Path, tokenizer: Any) -> dict[str, Encode]:
    """Bodies of `vllm` and of `decisions` to the prompt of vLLM's own Clef."""
    Wheel(wheel, VLLM, None)
    requests = importlib.import_module(f"{VLLM[1]}.protocol")
    decisions = importlib.import_module(f"{VLLM[0]}.protocol")
    kinds = importlib.import_module(f"{VLLM[0]}.question_types")
    adapters = importlib.import_module(f"{VLLM[0]}.adapters")
    strategies = importlib.import_module(f"{VLLM[0]}.strategies")
    clef = strategies.ClefFlashStrategy.__new__(strategies.ClefFlashStrategy)
    clef.tokenizer, clef.max_length = tokenizer, clef.MAX_LENGTH
    system = f"<|im_start|>system\n{clef.SYSTEM_PROMPT}<|im_end|>\n<|im_start|>user\nSTATE:\n"
    end = "\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nJOINT SCHEMA DECISIONS:"
    clef.prefix, clef.suffix = clef._tokens(system), clef._tokens(end)
    most = clef.limits().max_options

    def systemone(body: dict[str, Any]) -> list[int]:
        request = requests.StructuredDecisionRequest(**body)
        asked = [
            kinds.build_question(name, q.type, q.instructions, q.criteria, most)
            for name, q in request.questions.items()
        ]
        return list(clef.encode(asked, clef.render_state(request.state))[0])

    def openai(body: dict[str, Any]) -> list[int]:
        request = decisions.DecisionRequest(**body)
        asked = [adapters.make_read_question(i, q, most) for i, q in enumerate(request.questions)]
        return list(clef.encode(asked, adapters.input_text(request.input))[0])

    return {"vllm": systemone, "decisions": openai}


def sglang_encoders(wheel: Path, tokenizer: Any) -> dict[str, Encode]:
    """Bodies of `sglang` to the prompt of its joint schema head."""
    found = Wheel(wheel, (f"{SGLANG}.protocol", f"{SGLANG}.joint_schema"), "sglang")
    # of the module that the request model imports its texts from, only those
    source = found.archive.read(SGLANG_TEXTS.replace(".", "/") + ".py").decode()
    marks = ("def is_blank_decision_text", "def _nonblank_decision_text", "def check_option_names")
    begin = min(at for at in map(source.find, marks) if at > 0)
    texts = types.ModuleType(SGLANG_TEXTS)
    head = "import unicodedata\nfrom typing import *\nfrom pydantic import *\n"
    image = "class ChatCompletionMessageContentImageURL(BaseModel):\n    url: str\n"
    exec(head + image + source[begin : source.index("class DecisionOption(")], texts.__dict__)
    layout = types.ModuleType(SGLANG_HEAD)
    layout.__dict__.update(
        QUESTION_TYPES=["noul", "choice", "score"],
        LayoutQuestion=lambda *parts: parts,
        pack_decision_layout=lambda *parts: parts,
    )
    sys.modules |= {SGLANG_TEXTS: texts, SGLANG_HEAD: layout}
    requests = importlib.import_module(f"{SGLANG}.protocol")
    schema = importlib.import_module(f"{SGLANG}.joint_schema")

    def systemone(body: dict[str, Any]) -> list[int]:
        request = requests.SystemOneRequest(**body)
        return list(schema.encode_joint_schema(tokenizer, request, 16_384, [])[0])

    return {"sglang": systemone}


def compare(name: str, encode: Encode, set_path: Path, model: Path) -> str:
    """One line: how many records were asked, accepted, and read as the release reads them."""
    from clefq.clef.encoding import EncodeSpec, encode_record
    from clefq.clef.tokenizer import PromptTokenizer
    from clefq.engines.http_apis import APIS, fault_of, request_body
    from clefq.store.sets import open_set

    own = PromptTokenizer.from_folder(model)
    counts: Counter[str] = Counter()
    for record in open_set(set_path).records():
        if record.images:
            continue
        counts["records"] += 1
        if fault_of(APIS[name], record, set_path) is not None:
            counts["not asked"] += 1
            continue
        body = json.loads(json.dumps(request_body(record, "clef", set_path, APIS[name])))
        try:
            ids = encode(body)
        except ValueError as error:  # pydantic's and both servers' own refusals
            counts["refused"] += 1
            print(f"{name} refuses {record.id}: {' '.join(str(error).split())[:160]}")
            continue
        ours = encode_record(own, record, EncodeSpec(max_length=1 << 40)).token_ids
        counts["same prompt"] += ids == list(ours)
    return f"{name}: " + ", ".join(f"{count} {what}" for what, count in counts.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", type=Path, help="vLLM's wheel")
    parser.add_argument("--sglang", type=Path, help="SGLang's wheel")
    parser.add_argument("--set", type=Path, default=NANO / "sets" / "nano-eval")
    parser.add_argument("--model", type=Path, default=NANO / "weights")
    options = parser.parse_args()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    encoders: dict[str, Encode] = {}
    if options.vllm is not None:
        encoders |= vllm_encoders(options.vllm, tokenizer)
    if options.sglang is not None:
        encoders |= sglang_encoders(options.sglang, tokenizer)
    for name, encode in encoders.items():
        print(compare(name, encode, options.set, options.model))


if __name__ == "__main__":
    main()
