"""Other people's clients end to end, over a backend without a model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clefq.serving.http.app import create_app
from clefq.serving.http.settings import ServerSettings
from clefq.serving.prompts import PromptMaker
from tests.serving.http import contract
from tests.serving.http.client import listening
from tests.serving.http.fake import FakeBackend

KEY = "the-servers-key"


@pytest.fixture(scope="module", params=[None, KEY], ids=["open", "with key"])
def server(prompts: PromptMaker, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    tokens = (request.param,) if request.param else ()
    settings = ServerSettings(dialect="typesafe", bearer_tokens=tokens, access_log=False)
    with listening(create_app(FakeBackend(), prompts, settings)) as port:
        yield f"http://127.0.0.1:{port}", request.param


def test_the_contract_suite_passes_whole(server: tuple[str, str]) -> None:
    suite = contract.jevcompat(*server)
    assert suite.failed == {}
    # one of the two ways to be asked for a key, and the checks of the other
    assert len(suite.passed) + len(suite.skipped) == 48
    assert set(suite.skipped) == (
        {"MUST auth.ignored-when-off"}
        if server[1]
        else {"MUST auth.bearer", "SHOULD auth.missing", "SHOULD auth.invalid"}
    )


def test_the_sdks_work(server: tuple[str, str]) -> None:
    for suite in (contract.typesafe_sdk(*server), contract.systemone_client(*server)):
        assert suite.failed == {}
        assert suite.passed


def test_the_table_names_what_failed() -> None:
    suite = contract.Suite("x", "1", ["a"], {"b": "broke"}, {"c": "not tried"})
    lines = list(contract.table([suite]))
    assert "| x | 1 | 1 | 1 | 1 |" in lines
    assert "- x, failed: b: broke" in lines
