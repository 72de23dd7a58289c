"""The published JSON Schemas: valid, every key described, made of the code."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from clefq.store.data_files import data_folder
from clefq.store.yaml_text import load_yaml
from tests.docs.conftest import ROOT

sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from clefq_reference import schemas

SCHEMAS = schemas()


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_schemas_are_valid_and_say_what_every_key_means(name: str) -> None:
    schema = SCHEMAS[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    parts: list[tuple[str, dict[str, Any]]] = [(name, schema), *schema.get("$defs", {}).items()]
    for title, part in parts:
        assert part["description"], title
        assert part["additionalProperties"] is False
        for key, value in part["properties"].items():
            assert value.get("description"), f"{title}: {key}"


def test_what_is_shipped_follows_its_schema() -> None:
    definition = jsonschema.Draft202012Validator(SCHEMAS["definition.schema.json"])
    for folder in ("calibration", "evals"):
        for path in data_folder(folder).glob("*.yaml"):
            definition.validate(load_yaml(path.read_text("utf-8")))
    manifest = jsonschema.Draft202012Validator(SCHEMAS["set-manifest.schema.json"])
    for path in Path(ROOT / "clefq/nano/sets").glob("*/manifest.json"):
        manifest.validate(json.loads(path.read_text("utf-8")))
