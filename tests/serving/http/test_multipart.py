"""The hosted API's multipart body: what it holds, and in how many ways it can be broken."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from clefq.serving.http.errors import ApiError
from clefq.serving.http.multipart import place_assets, read_form
from tests.serving.http.client import BODY, Asker
from tests.serving.http.test_app import error_of, picture

BOUNDARY = b"b0undary"
FILE = base64.b64decode(picture())


def form(*parts: tuple[str, bytes]) -> bytes:
    lines = []
    for name, content in parts:
        head = f'Content-Disposition: form-data; name="{name}"; filename="{name}"'
        lines.append(b"--" + BOUNDARY + b"\r\n" + head.encode() + b"\r\n\r\n" + content + b"\r\n")
    return b"".join(lines) + b"--" + BOUNDARY + b"--\r\n"


def asset(part: str) -> dict[str, Any]:
    return {"type": "image", "part": part}


def test_files_are_found_by_their_names() -> None:
    raw = form(("request", b"{}"), ("a", b"\r\n--b0\r\n"), ("b", b""))
    assert read_form(raw, BOUNDARY, 2) == (b"{}", {"a": b"\r\n--b0\r\n", "b": b""})


@pytest.mark.parametrize("raw", [
    b"", b"{}", form(), form(("a", b"")), form(("request", b"{}"), ("request", b"{}")),
    form(("request", b"{}"))[:-6], form(("request", b"{}")).replace(b"name=", b"nome="),
    b"--" + BOUNDARY + b"\r\n" + b"x" * 5000 + b'; name="request"\r\n\r\n{}\r\n--b0undary--',
])  # fmt: skip
def test_what_is_no_form_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read_form(raw, BOUNDARY, 4)
    assert caught.value.kind.type == "invalid_json"
    with pytest.raises(ApiError):
        read_form(raw, b"", 4)


def test_more_files_than_images_are_refused() -> None:
    with pytest.raises(ApiError) as caught:
        read_form(form(*((f"f{number}", b"") for number in range(9))), BOUNDARY, 4)
    assert caught.value.faults[0].message == "has more than 4 files"


def test_names_in_texts_become_the_places_of_the_images() -> None:
    body: dict[str, Any] = {
        "state": {"photo": "pic", "list": ["see pic and pic-2", 3, None], "pic": 1},
        "questions": {"pic": {"type": "noul", "instructions": "Is pic-2 red?"}},
        "assets": {"pic": asset("one"), "pic-2": {"data_base64": "eA=="}},
    }
    assert place_assets(body, {"one": b"1"}, 4) == [b"1", b"x"]
    assert body == {
        "state": {"photo": "[image 1]", "list": ["see [image 1] and [image 2]", 3, None], "pic": 1},
        "questions": {"pic": {"type": "noul", "instructions": "Is [image 2] red?"}},
    }


@pytest.mark.parametrize(
    ("assets", "files", "fault"),
    [
        ({"a": asset("x")}, {}, "there is no part 'x'"),
        ({"a": asset("x"), "b": asset("x")}, {"x": b""}, "belongs to another asset"),
        ({"a": {"type": "video", "part": "x"}}, {"x": b""}, "must be an object with"),
        ({"a": {"type": "image"}}, {}, "needs part or data_base64"),
        ({"a": {"data_base64": "#"}}, {}, "not valid base64"),
        ({}, {"x": b""}, "no asset names the part 'x'"),
        ({"": asset("x")}, {"x": b""}, "empty name"),
        ([], {}, "must be an object"),
        ("a", {}, "must be an object"),
        ({f"a{n}": asset("x") for n in range(5)}, {"x": b""}, "has 5 images, at most 4"),
    ],
)
def test_unsound_assets_are_refused(assets: Any, files: dict[str, bytes], fault: str) -> None:
    with pytest.raises(ApiError) as caught:
        place_assets({"state": "s", "assets": assets}, files, 4)
    assert any(fault in one.message for one in caught.value.faults)
    assert caught.value.kind.status == 422


def test_images_or_assets_but_not_both(asker: Asker) -> None:
    body = {**BODY, "images": [picture()], "assets": {"a": {"data_base64": picture()}}}
    assert error_of(asker(body)) == (400, "unsupported")


def test_a_form_is_answered(asker: Asker) -> None:
    value = {**BODY, "state": "look at photo", "assets": {"photo": asset("f")}}
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY.decode()}"}
    response = asker(form(("request", json.dumps(value).encode()), ("f", FILE)), headers=headers)
    assert response.status_code == 200, response.text
    same = asker({**BODY, "state": "look at [image 1]", "images": [picture()]})
    assert same.content == response.content
    broken = form(("request", json.dumps(value).encode()), ("f", b"no image"))
    response = asker(broken, headers=headers)
    assert response.json()["error"]["field"] == "images[0]"
