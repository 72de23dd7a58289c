"""The README: its links, its examples and its length."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from clefq.clef.records import parse_record
from tests.docs.conftest import ROOT
from tests.docs.markdown import blocks

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_every_link_is_there() -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", TEXT)
    assert len(links) > 10
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_it_stays_short() -> None:
    assert len(TEXT.splitlines()) < 150


def test_the_request_of_the_curl_example_is_one() -> None:
    (code,) = [block.code for block in blocks(README) if "curl " in block.code]
    body = json.loads(code[code.index("'{") + 1 : code.rindex("}'") + 1])
    record = parse_record({"id": "1", "cohort": "x", **_without_model(body)}, "README.md")
    assert [question.type for question in record.questions] == ["noul", "choice"]


def _without_model(body: dict[str, object]) -> dict[str, object]:
    assert body.pop("model") == "clef"
    return body


def test_yaml_examples_call_the_action_with_inputs_that_it_has() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    found = 0
    for page in (README, ROOT / "docs" / "ci.md"):
        for block in blocks(page):
            if block.language == "yaml" and "uses:" in block.code:
                for given in _calls(yaml.safe_load(block.code)):
                    assert set(given) <= set(action["inputs"])
                    found += 1
    assert found == 3


def _calls(value: object) -> list[dict[str, object]]:
    """Inputs of every step that calls clefq's action."""
    if isinstance(value, list):
        return [call for each in value for call in _calls(each)]
    if not isinstance(value, dict):
        return []
    if "clefq@" in str(value.get("uses")):
        return [value["with"]]
    return [call for each in value.values() for call in _calls(each)]


def test_the_action_page_lists_every_input() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    assert [name for name in action["inputs"] if f"`{name}`" not in page] == []


def test_the_gitlab_job_follows_gitlabs_schema(tmp_path: Path) -> None:
    import subprocess
    import sys

    (code,) = [b.code for b in blocks(ROOT / "docs" / "ci.md") if "artifacts:" in b.code]
    file = tmp_path / ".gitlab-ci.yml"
    file.write_text(code, encoding="utf-8")
    tool = Path(sys.executable).parent / "check-jsonschema"
    done = subprocess.run(
        [tool, "--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
