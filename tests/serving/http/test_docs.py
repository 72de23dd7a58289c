"""The examples and tables of docs/server-api.md are what the server does."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

from clefq.serving.http import errors
from clefq.serving.http.settings import Limits
from clefq.serving.prompts import PromptMaker
from tests.serving.http.client import Asker

PAGE = (Path(__file__).resolve().parents[3] / "docs/server-api.md").read_text(encoding="utf-8")
REQUEST, ANSWER, ERROR = (
    json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
)


def test_the_example_has_the_shown_form(prompts: PromptMaker) -> None:
    """The numbers shown are the miniature's; the test of the live server compares them."""
    value = Asker(prompts)(REQUEST).json()
    assert form(value) == form(ANSWER)
    assert value["usage"] == ANSWER["usage"]


def form(value: object) -> object:
    """A value with its texts and numbers reduced to their types, keys in their order."""
    if isinstance(value, dict):
        return [(key, form(item)) for key, item in value.items()]
    return type(value)


def test_the_error_is_as_shown(prompts: PromptMaker) -> None:
    body = json.loads(json.dumps(REQUEST))
    del body["questions"]["team"]["criteria"]["technical"]
    assert Asker(prompts)(body).json() == ERROR


def test_every_error_and_limit_is_listed() -> None:
    rows = set(re.findall(r"^\| (\d{3}) \| `(\w+)`", PAGE, re.MULTILINE))
    assert rows == {(str(kind.status), kind.type) for kind in errors.ASK_KINDS}
    for item in fields(Limits):
        if item.name != "image_formats":
            assert f"`{item.name}`" in PAGE


def test_the_app_is_made_as_shown(prompts: PromptMaker) -> None:
    from clefq.serving.http.app import create_app
    from clefq.serving.http.settings import ServerSettings
    from tests.serving.http.fake import FakeBackend

    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    code = code.replace('PromptMaker(Path("models/nvfp4"), max_images=4)', "prompts")
    names = {"backend": FakeBackend(), "prompts": prompts}
    exec(compile(code, "server-api.md", "exec"), names)
    assert type(names["app"]) is type(create_app(FakeBackend(), prompts, ServerSettings()))
