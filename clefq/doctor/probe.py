"""Looks at this machine for `clefq doctor`: the edge.

Nothing heavy is imported here: what must be imported to be known is tried in a process of the
interpreter in question, with a time limit. The network is asked only where the caller wants it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from clefq import __version__
from clefq.clef.formats import RECIPE_FORMATS
from clefq.doctor.facts import Environment, Facts, Gpu, Hub, NamedModel, SchemeNeeds
from clefq.errors import ClefqError

_TIMEOUT = 120.0  # seconds; the first import of torch from a cold, busy disk takes long


def probe(model: str | None, *, online: bool) -> Facts:
    """Looks at everything.

    Args:
        model: A folder or a hub id.
        online: Whether the hub may be asked.

    Raises:
        CheckpointError: `model` is neither, or its folder is no whole Clef checkpoint.
    """
    from clefq.quantize.preflight import BASE_MEMORY, available_memory
    from clefq.serving.deltanet import nvcc_version
    from clefq.serving.settings import ServeSettings

    found = None if model is None else _find(model)  # first: wrong use ends at once
    python, serving_error = _serving_python()
    with ThreadPoolExecutor(4) as pool:
        needs = pool.submit(_with_needs, found)
        other = python if python is not None and not _is_this(python) else None
        serving = None if other is None else pool.submit(look_inside, other)
        working = look_inside(sys.executable)
        there = working if python is not None and other is None else None
        there = there if serving is None else serving.result()
        found = needs.result()
    gpus = smi_gpus() or working.gpus or (there.gpus if there is not None else ())
    return Facts(
        clefq=__version__,
        checkout=_checkout(),
        working=_shown(working),
        serving=None if there is None else _shown(there),
        serving_error=serving_error,
        gpus=gpus,
        memory=_total_memory(),
        available=available_memory(),
        disk=shutil.disk_usage(Path.cwd()).free,
        base_memory=BASE_MEMORY,
        gpu_fraction=ServeSettings().gpu_memory,
        hub=_hub(online),
        model=found,
        nvcc=nvcc_version(os.environ) if gpus else None,
    )


def look_inside(python: str) -> Environment:
    """What is installed beside an interpreter, and whether torch and torchvision import."""
    about = _ask(python, "metadata")
    if "error" in about:
        return Environment(python, error=about["error"])
    names = [name for name in ("torch", "torchvision") if name in about["versions"]]
    tried = {name: _ask(python, name) for name in names}
    torch = tried.get("torch", {})
    return Environment(
        python=python,
        version=about["python"],
        versions=about["versions"],
        requires=about["requires"],
        plugins=tuple(about["plugins"]),
        cuda=torch.get("cuda"),
        gpus=tuple(Gpu(*values) for values in torch.get("gpus", ())),
        torch_error=torch.get("error"),
        torchvision_error=tried.get("torchvision", {}).get("error"),
    )


def installed_versions(python: str) -> dict[str, str]:
    """Versions of the packages that matter here, beside an interpreter; imports none of them."""
    versions: dict[str, str] = _ask(python, "metadata").get("versions", {})
    return versions


def _ask(python: str, what: str) -> dict[str, Any]:
    code = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")
    # -P: a file of the current folder must not stand in for a package
    return _run_json([python, "-P", "-c", code, what])


def _run_json(command: list[str]) -> dict[str, Any]:
    """The JSON of a process's last line, or `{"error": …}`."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {_TIMEOUT:.0f} s"}
    except OSError as error:
        return {"error": f"does not run: {error.strerror}"}
    lines = done.stdout.strip().splitlines()
    try:
        value: dict[str, Any] = json.loads(lines[-1])
        return value
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"error": last[:200]}


def _serving_python() -> tuple[str | None, str | None]:
    """The interpreter that runs vLLM, and why it could not be looked for."""
    from clefq.engines.select import runs_here, serve_python

    if runs_here("vllm"):
        return sys.executable, None
    try:
        python = serve_python()
    except ClefqError as error:
        return None, error.message
    return (None if python is None else str(python)), None


def _is_this(python: str) -> bool:
    # not resolved: the interpreters of two environments may be links to the same file
    return Path(python).absolute() == Path(sys.executable).absolute()


def smi_gpus() -> tuple[Gpu, ...]:
    """GPUs as the NVIDIA driver names them; empty without a driver."""
    if shutil.which("nvidia-smi") is None:
        return ()
    query = "--query-gpu=name,memory.total,compute_cap"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_smi(done.stdout)


def parse_smi(text: str) -> tuple[Gpu, ...]:
    """GPUs from lines of `name, MiB, major.minor`; lines of another form are left out."""
    gpus = []
    for line in text.splitlines():
        fields = [part.strip() for part in line.rsplit(",", 2)]
        if len(fields) != 3:
            continue
        major, _, minor = fields[2].partition(".")
        if fields[1].isdigit() and major.isdigit() and minor.isdigit():
            gpus.append(Gpu(fields[0], int(fields[1]) << 20, int(major), int(minor)))
    return tuple(gpus)


def _checkout() -> str | None:
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / "Makefile").is_file():
        return None
    return "." if root == Path.cwd() else str(root)


def _shown(environment: Environment) -> Environment:
    """The environment with a path that is short from here, where it lies below this folder."""
    path = Path(environment.python)
    here = Path.cwd()
    if not path.is_relative_to(here) or _checkout() not in (None, "."):  # fixes start with cd
        return environment
    return replace(environment, python=str(path.relative_to(here)))


def _total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _hub(online: bool) -> Hub:
    from huggingface_hub import get_token
    from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE, HF_HUB_OFFLINE

    cache = Path(HF_HUB_CACHE)
    reached = _reach(ENDPOINT) if online and not HF_HUB_OFFLINE else None
    return Hub(
        cache=_short(cache),
        models=len(list(cache.glob("models--*"))),
        offline=HF_HUB_OFFLINE,
        token=get_token() is not None,
        reached=reached,
    )


def _reach(endpoint: str) -> str:
    import httpx

    try:
        httpx.head(endpoint, timeout=10, follow_redirects=True).raise_for_status()
    except httpx.HTTPError as error:
        return f"the hub does not answer ({type(error).__name__})"
    return ""


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _find(name: str) -> NamedModel:
    """A model's folder and size, from the disk only."""
    from clefq.clef.checkpoint import open_checkpoint, scheme_of

    folder = Path(name).expanduser()
    if not folder.is_dir():
        cached = _cached(name)
        if cached is None:
            return NamedModel(name)
        folder = cached
    checkpoint = open_checkpoint(folder)
    weights = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    return NamedModel(name, str(folder), scheme_of(checkpoint), weights)


def _cached(name: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    from clefq.names.hub import split_model

    repo, revision = split_model(name)
    try:
        return Path(snapshot_download(repo, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _with_needs(model: NamedModel | None) -> NamedModel | None:
    """Adds what quantizing needs, computed in a process of its own: it imports torch."""
    if model is None or model.folder is None or model.scheme != "bf16":
        return model
    code = "import sys; from clefq.doctor.probe import print_needs; print_needs(sys.argv[1])"
    found = _run_json([sys.executable, "-P", "-c", code, model.folder])
    needs = tuple(SchemeNeeds(**value) for value in found.get("needs", ()))
    return replace(model, needs=needs, error=found.get("error"))


def print_needs(folder: str) -> None:
    """The child of `_with_needs`: prints the preflight's numbers per scheme, as JSON."""
    try:
        print(json.dumps({"needs": [asdict(value) for value in needs_of_schemes(Path(folder))]}))
    except (ClefqError, ImportError) as error:
        print(json.dumps({"error": str(error).splitlines()[0][:200]}))


def needs_of_schemes(folder: Path) -> list[SchemeNeeds]:
    """What `clefq quantize` would need for each scheme, by its own preflight.

    Raises:
        CheckpointError: Not a BF16 Clef checkpoint.
    """
    from clefq.clef.checkpoint import open_checkpoint
    from clefq.clef.family import layer_types
    from clefq.quantize.plan import make_plan
    from clefq.quantize.quiet import quiet_libraries
    from clefq.quantize.recipes import bundled_recipe
    from clefq.quantize.run import needs_of as preflight_needs

    checkpoint = open_checkpoint(folder)
    layers = len(layer_types(checkpoint.text_config))
    found = []
    for scheme in RECIPE_FORMATS:
        with quiet_libraries():
            plan = make_plan(folder, bundled_recipe(scheme, layers, None))
        method = "stream" if plan.data_free_reason is None else "oneshot"
        needs = preflight_needs(method, plan, checkpoint.tensors)
        found.append(SchemeNeeds(scheme, method, needs.disk, needs.memory, needs.offload))
    return found
