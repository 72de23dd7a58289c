"""The `vllm serve` command line with the settings of `clefq serve`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clefq.serving.settings import ServeSettings, engine_arguments, engine_environment

# The plugin must be named: vLLM adds no routes of others by itself.
_VARIABLES = {"VLLM_PLUGINS": "clefq"}


def vllm_command(
    folder: Path, settings: ServeSettings, *, cpu: bool
) -> tuple[dict[str, str], list[str]]:
    """Environment variables and arguments for vLLM's own server.

    Args:
        folder: The checkpoint.
        settings: As for `clefq serve`.
        cpu: Whether vLLM runs on a CPU.

    Returns:
        Variables to set, and the arguments after `vllm serve`.

    Raises:
        CheckpointError: The folder has no sound head, or was made for a newer runner.
    """
    # what is installed here says nothing about the machine that this is pasted on
    arguments = engine_arguments(folder.absolute(), settings, cpu=cpu, here=False)
    model = arguments.pop("model")
    flags = [word for name, value in arguments.items() for word in _flag(name, value)]
    return {**_VARIABLES, **_needed(engine_environment(settings), cpu)}, [model, *flags]


# The CPU build's own `vllm` command does not find its version.
_SERVE = {False: "vllm serve", True: "python -m vllm.entrypoints.openai.api_server --model"}


def shell_text(variables: Mapping[str, str], arguments: Sequence[str], *, cpu: bool) -> str:
    """The command as it can be pasted, one flag a line."""
    lines = [" ".join([*(f"{k}={shlex.quote(v)}" for k, v in variables.items()), _SERVE[cpu]])]
    for word in arguments:
        if word.startswith("--"):
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n".join(lines)


def _needed(variables: Mapping[str, str], cpu: bool) -> dict[str, str]:
    keep = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN", *(variables if cpu else ())}
    return {name: value for name, value in variables.items() if name in keep}


def _flag(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, dict):
        return [flag, json.dumps(value)]
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [flag, str(value)]
