"""The API's description holds for what the server does; schemathesis tests it at length by hand:

    schemathesis run http://127.0.0.1:8000/openapi.json --exclude-checks positive_data_acceptance

(that one check cannot pass: no schema says that base64 text is an image, or counts tokens).
"""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from clefq.serving.http import errors
from clefq.serving.http.openapi import EXAMPLE
from clefq.serving.http.settings import Limits, ServerSettings
from clefq.serving.prompts import PromptMaker
from tests.clef.generate import record
from tests.serving.http.client import ASK, BODY, TYPESAFE, Asker
from tests.serving.http.fake import FakeBackend


@pytest.fixture
def page(prompts: PromptMaker) -> dict[str, Any]:
    value: dict[str, Any] = Asker(prompts).get("/openapi.json").json()
    return value


def validator(page: dict[str, Any], schema: Any) -> Draft202012Validator:
    """For a schema of the page, which may refer to others of it."""
    return Draft202012Validator({**schema, "components": page["components"]})


def body_of(page: dict[str, Any]) -> Draft202012Validator:
    content = page["paths"][ASK]["post"]["requestBody"]["content"]
    return validator(page, content["application/json"]["schema"])


def answer_of(page: dict[str, Any], status: int, path: str = ASK) -> Draft202012Validator:
    operation = page["paths"][path]["post" if path == ASK else "get"]
    content = operation["responses"][str(status)]["content"]
    return validator(page, content["application/json"]["schema"])


def test_the_page_describes_every_route_and_every_error(page: dict[str, Any]) -> None:
    assert set(page["paths"]) == {ASK, "/v1/models", "/health", "/readyz", "/livez", "/metrics"}
    operation = page["paths"][ASK]["post"]
    answered = {str(kind.status) for kind in errors.ASK_KINDS}
    assert set(operation["responses"]) == {"200", *answered}
    stated = " ".join(response["description"] for response in operation["responses"].values())
    for kind in errors.ASK_KINDS:
        assert f"`{kind.type}`" in stated
    names = {parameter["name"] for parameter in operation["parameters"]}
    assert names == {"x-clefq-dialect", "x-clefq-precision", "x-request-id", "traceparent"}


def test_the_schemas_are_named_schemas(page: dict[str, Any]) -> None:
    named = page["components"]["schemas"]
    for schema in named.values():
        Draft202012Validator.check_schema(schema)
    assert {"SystemOneRequest", "SystemOneResponse", "ModelList", "ReleaseError"} <= set(named)
    assert page["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    for path, verb in ((ASK, "post"), ("/v1/models", "get")):
        assert page["paths"][path][verb]["security"] == [{"HTTPBearer": []}]
    forms = page["paths"][ASK]["post"]["requestBody"]["content"]
    assert set(forms) == {"application/json", "multipart/form-data"}


def test_limits_are_stated(prompts: PromptMaker) -> None:
    limits = Limits(max_questions=7, max_options=11, max_levels=6, max_images=2, max_id_chars=33)
    asker = Asker(prompts, ServerSettings(limits=limits))
    named = asker.get("/openapi.json").json()["components"]["schemas"]
    fields = named["SystemOneRequest"]["properties"]
    assert fields["questions"]["maxProperties"] == 7
    assert fields["questions"]["propertyNames"]["maxLength"] == 33
    assert fields["images"]["anyOf"][0]["maxItems"] == 2
    assert named["ChoiceQuestion"]["properties"]["criteria"]["maxProperties"] == 11
    assert named["ScoreQuestion"]["properties"]["criteria"]["maxItems"] == 6


def test_the_example_is_answered(prompts: PromptMaker) -> None:
    response = Asker(prompts)(EXAMPLE)
    assert response.status_code == 200
    assert set(response.json()["answers"]) == set(EXAMPLE["questions"])


def test_what_is_answered_fits_and_what_fits_is_answered(prompts: PromptMaker) -> None:
    limits = Limits(max_levels=12)
    asker = Asker(prompts, ServerSettings(limits=limits), FakeBackend(max_length=200_000))
    page = asker.get("/openapi.json").json()
    asked, answered, refused = body_of(page), answer_of(page, 200), answer_of(page, 422)
    statuses = set()
    for seed in range(150):
        raw = record(seed)
        body = {"state": raw["state"], "questions": raw["questions"]}
        for headers in (None, TYPESAFE):
            response = asker(body, headers=headers)
            statuses.add(response.status_code)
            if response.status_code == 200:
                answered.validate(response.json())
                asked.validate(body)
            else:
                refused.validate(response.json())
                assert headers or not asked.is_valid(body)
    assert statuses == {200, 422}


@pytest.mark.parametrize(
    "change",
    [
        {"questions": {}},
        {"questions": {"q": {"type": "other"}}},
        {"questions": {"": {"type": "noul"}}},
        {"questions": {"q": {"type": "noul", "more": 1}}},
        {"questions": {"q": {"type": "noul", "criteria": {"maybe": 1}}}},
        {"questions": {"q": {"type": "choice", "criteria": {"a": 1}}}},
        {"questions": {"q": {"type": "score", "criteria": {"0": 1, "1": 2}}}},
        {"questions": {"q": {"type": "score"}}},
        {"model": 3},
        {"images": ["a"] * 5},
        {"images": [1]},
        {"videos": ["v"]},
        {"assets": {"a": 1}},
        {"media_kwargs": False},
    ],
)
def test_what_the_schema_forbids_is_refused(prompts: PromptMaker, change: dict[str, Any]) -> None:
    body = {**BODY, **change}
    asker = Asker(prompts)
    assert not body_of(asker.get("/openapi.json").json()).is_valid(body)
    assert asker(body).status_code in (400, 422)


def test_other_routes_answer_what_is_said(asker: Asker, page: dict[str, Any]) -> None:
    for path in ("/v1/models", "/readyz", "/livez", "/health"):
        answer_of(page, 200, path).validate(asker.get(path).json())
    asker.backend.state = "starting"
    for path in ("/v1/models", "/readyz", "/health"):
        answer_of(page, 503, path).validate(asker.get(path).json())


def test_the_page_needs_nothing_from_elsewhere(prompts: PromptMaker) -> None:
    response = Asker(prompts).get("/docs")
    assert response.headers["content-type"].startswith("text/html")
    text = response.text
    assert "<script" not in text
    assert "http://" not in text
    assert "https://" not in text
    for name in (ASK, "/v1/models", "x-clefq-dialect", "questions", "429", "server-timing"):
        assert name in text
