"""YAML without surprises: a key that appears twice is a fault, not the loss of the first."""

from __future__ import annotations

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Plain values only; refuses doubled keys, which YAML's specification forbids."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value} appears twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return node


def load_yaml(text: str) -> Any:
    """Decodes one YAML document of plain values.

    Raises:
        yaml.YAMLError: Not YAML, a doubled key, a date or number that is none, or nested too
            deeply; a `MarkedYAMLError` where the place is known.
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError as error:
        raise yaml.MarkedYAMLError(problem="it is nested too deeply") from error
    except ValueError as error:
        raise yaml.MarkedYAMLError(problem=str(error)) from error


def yaml_fault(error: Exception) -> str:
    """Why a text cannot be decoded, and where that is known the line, as one line of words."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f", line {mark.line + 1}" if mark is not None else ""
    return f"is not valid YAML{where}: {' '.join(str(problem or error).split())}."
