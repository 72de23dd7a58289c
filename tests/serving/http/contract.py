"""Other people's clients against a running server, and what each makes of it.

    python -m tests.serving.http.contract --url http://127.0.0.1:8000 [--key KEY] [--json OUT]

The server should speak the typesafe dialect (`--dialect typesafe`). Prints one table: suite,
version, passed, failed, and every check that failed with its reason.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

TICKET = {"subject": "Charged twice", "body": "I was charged twice for March. Refund me, please."}
CHOICE = {"Billing": "Payments, invoices, refunds", "Technical": None, "Sales": {"owns": ["x"]}}
LEVELS = ["Calm", "Frustrated", "Very angry"]
DUMMY_KEY = "no-key-needed"


@dataclass
class Suite:
    """What one client made of the server.

    Attributes:
        name: Package name.
        version: Its version.
        passed: Checks that passed.
        failed: Checks that failed, with the reason.
        skipped: Checks that could not be judged, with the reason.
    """

    name: str
    version: str
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def check(self, name: str, run: Callable[[], None]) -> None:
        """Runs one check; whatever it raises is its failure."""
        try:
            run()
        except Exception as error:
            self.failed[name] = f"{type(error).__name__}: {error}"[:300]
        else:
            self.passed.append(name)


def run_all(url: str, key: str | None = None) -> list[Suite]:
    """Every suite against one server.

    Args:
        url: Base URL.
        key: Bearer token, where the server asks for one.
    """
    return [jevcompat(url, key), typesafe_sdk(url, key), systemone_client(url, key)]


def jevcompat(url: str, key: str | None) -> Suite:
    """The contract suite, one check per requirement."""
    from jevcompat.runner import run

    suite = Suite("jevcompat", version("jevcompat"))
    report = run(url, key=key)
    if report.aborted:
        suite.failed["preflight"] = report.aborted
    for result in report.results:
        name = f"{result.level} {result.id}"
        if result.status == "pass":
            suite.passed.append(name)
        elif result.status == "fail":
            suite.failed[name] = "; ".join(finding.message for finding in result.findings)
        else:
            suite.skipped[name] = result.reason
    return suite


def typesafe_sdk(url: str, key: str | None) -> Suite:
    """The hosted API's own SDK: answers, models, errors, both clients."""
    suite = Suite("typesafe-sdk", version("typesafe-sdk"))
    sdk = _Sdk(url, key)
    suite.check("answers of every type", sdk.answers)
    suite.check("async client, 8 at a time", sdk.asynchronous)
    suite.check("zstd-compressed body", sdk.compressed)
    suite.check("images as base64 (extra_body)", sdk.images)
    suite.check("models.list", sdk.models)
    suite.check("a malformed question raises its 422 error, field named", sdk.bad_question)
    suite.check("an unknown model raises its 404 error", sdk.bad_model)
    suite.check("images placed in texts, as multipart", sdk.assets)
    return suite


class _Sdk:
    """The checks with the hosted API's SDK; each raises what is wrong."""

    def __init__(self, url: str, key: str | None) -> None:
        import typesafe_sdk as sdk

        self.sdk: Any = sdk
        self.options = {"api_key": key or DUMMY_KEY, "base_url": url, "timeout": 60.0}
        self.options["retry"] = sdk.RetryPolicy(max_retries=0)
        self.questions = {
            "refund": sdk.Noul(instructions="Does the customer want money back?"),
            "team": sdk.Choice(instructions="Which team?", criteria=CHOICE),
            "anger": sdk.Score(instructions={"scale": "frustration"}, criteria=LEVELS),
        }

    def ask(self, **changes: Any) -> Any:
        with self.sdk.TypeSafeClient(**self.options) as client:
            return client.system_one(**{"state": TICKET, "questions": self.questions, **changes})

    def raised(self, kind: Any, **changes: Any) -> Any:
        try:
            self.ask(**changes)
        except kind as error:
            return error
        raise AssertionError(f"no {kind.__name__}")

    def answers(self) -> None:
        _check_sdk(self.ask())

    def asynchronous(self) -> None:
        async def ask() -> Any:
            async with self.sdk.AsyncTypeSafeClient(**self.options) as client:
                asked = [client.system_one(TICKET, self.questions) for _ in range(8)]
                return await asyncio.gather(*asked)

        for response in asyncio.run(ask()):
            _check_sdk(response)

    def compressed(self) -> None:
        with self.sdk.TypeSafeClient(**self.options, compression="zstd") as client:
            _check_sdk(client.system_one({**TICKET, "log": "x " * 1000}, self.questions))

    def images(self) -> None:
        _check_sdk(self.ask(extra_body={"images": [_picture()]}))

    def models(self) -> None:
        with self.sdk.TypeSafeClient(**self.options) as client:
            assert "jev-latest" in [model.name for model in client.models.list().models]

    def bad_question(self) -> None:
        questions = {"q": {"type": "choice", "criteria": {"only": None}}}
        error = self.raised(self.sdk.TypeSafeUnprocessableEntityError, questions=questions)
        assert "questions.q.criteria" in str(error)

    def bad_model(self) -> None:
        error = self.raised(self.sdk.TypeSafeNotFoundError, model="no-such-model")
        assert "no-such-model" in str(error)

    def assets(self) -> None:
        pictures = [self.sdk.Image.from_base64(_picture()) for _ in range(2)]
        state = {"photo": pictures[0], "text": "the second is photo-two"}
        _check_sdk(self.ask(state=state, assets={"photo-two": pictures[1]}))
        _check_sdk(self.ask(state=pictures[0]))
        error = self.raised(
            self.sdk.TypeSafeAPIError, state=[self.sdk.Image(b"no image") for _ in range(2)]
        )
        assert error.status == 422
        assert "images" in str(error)


def systemone_client(url: str, key: str | None) -> Suite:
    """A client of another SystemOne server; it needs no model name."""
    import systemone

    suite = Suite("systemone-client", version("systemone-client"))
    questions = {
        "refund": systemone.Noul("Does the customer want money back?", {"true": "They do"}),
        "team": systemone.Choice("Which team?", CHOICE),
        "anger": systemone.Score("How angry?", LEVELS),
    }

    def answers() -> None:
        with systemone.Client(url, key, timeout=60) as one:
            _check_systemone(one.system_one(TICKET, questions))

    def named() -> None:
        with systemone.Client(url, key, timeout=60, model="jev-latest") as one:
            _check_systemone(one.system_one("text", questions))

    def asynchronous() -> None:
        async def ask() -> Any:
            async with systemone.AsyncClient(url, key, timeout=60) as one:
                return await asyncio.gather(*(one.system_one(TICKET, questions) for _ in range(8)))

        for response in asyncio.run(ask()):
            _check_systemone(response)

    def bad_question() -> None:
        with systemone.Client(url, key, timeout=60) as one:
            try:
                one.system_one(TICKET, {"q": {"type": "other"}})
            except systemone.SystemOneError as error:
                assert error.status == 422
                assert "noul, choice, score" in error.detail
            else:
                raise AssertionError("a malformed question was answered")

    suite.check("answers of every type, without a model name", answers)
    suite.check("answers with a model name", named)
    suite.check("async client, 8 at a time", asynchronous)
    suite.check("a malformed question raises its error", bad_question)
    return suite


def _check_sdk(response: Any) -> None:
    assert response.request_id
    assert response.usage.input_tokens > 0
    assert 0 <= response.nouls["refund"].noul <= 1
    choice = response.choices["team"]
    assert list(choice.probabilities) == list(CHOICE)
    assert choice.probabilities[choice.choice] == max(choice.probabilities.values())
    score = response.scores["anger"]
    assert score.legend == dict(enumerate(LEVELS))
    expected = sum(level * share for level, share in score.probabilities.items())
    assert abs(score.score - expected) < 1e-9


def _check_systemone(response: Any) -> None:
    assert response.usage.input_tokens > 0
    assert 0 <= response.nouls["refund"].noul <= 1
    assert set(response.choices["team"].probabilities) == set(CHOICE)
    assert abs(sum(response.scores["anger"].probabilities.values()) - 1) < 1e-6


def _picture() -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.radial_gradient("L").resize((96, 64)).convert("RGB").save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def table(suites: list[Suite]) -> Iterator[str]:
    """The suites as Markdown lines."""
    yield "| suite | version | passed | failed | not judged |"
    yield "|---|---|---|---|---|"
    for suite in suites:
        counts = " | ".join(str(len(part)) for part in (suite.passed, suite.failed, suite.skipped))
        yield f"| {suite.name} | {suite.version} | {counts} |"
    for suite in suites:
        for what, checks in (("failed", suite.failed), ("not judged", suite.skipped)):
            for name, why in checks.items():
                yield f"- {suite.name}, {what}: {name}: {why}"


def main() -> None:
    """Prints the table; exits 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("--url", required=True)
    parser.add_argument("--key")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    suites = run_all(options.url, options.key)
    print("\n".join(table(suites)))
    if options.json:
        options.json.write_text(json.dumps([vars(suite) for suite in suites], indent=1))
    raise SystemExit(any(suite.failed for suite in suites))


class _Raw(argparse.RawDescriptionHelpFormatter):
    pass


if __name__ == "__main__":
    main()
