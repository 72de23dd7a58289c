"""What a server can be told: limits, dialect, tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clefq.errors import InputError
from clefq.serving.http.settings import ConnectionLimits, Limits, ServerSettings, limits_from
from clefq.serving.http.tokens import Rate, Token, tokens_from


@pytest.mark.parametrize(
    "wrong",
    [{"dialect": "other"}, {"bearer_tokens": ("",)}, {"bearer_tokens": ("ö",)}, {"max_pending": 0},
     {"body_seconds": float("nan")}],
)  # fmt: skip
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ServerSettings(**wrong)


def test_limits_from_options() -> None:
    limits = limits_from(["max_questions=128", "max-image-bytes = 10"])
    assert (limits.max_questions, limits.max_image_bytes) == (128, 10)
    assert limits.max_options == Limits().max_options
    with pytest.raises(InputError) as caught:
        limits_from(["max_question=1", "max_levels=x", "image_formats=PNG"])
    assert len(caught.value.faults) == 2
    with pytest.raises(InputError, match="max_options is 1"):
        limits_from(["max_options=1"])


def test_limits_are_checked_and_tokens_are_not_shown() -> None:
    with pytest.raises(InputError) as caught:
        Limits(max_questions=0, max_options=1)
    assert len(caught.value.faults) == 1
    assert "hush" not in repr(ServerSettings(bearer_tokens=("hush",)))


def test_tokens(tmp_path: Path) -> None:
    def secrets(*given: Any) -> tuple[str, ...]:
        return tuple(token.secret for token in tokens_from(*given))

    assert secrets([], None, None) == ()
    assert secrets([], "padded\n", None) == ("padded",)
    with pytest.raises(InputError, match="set but empty"):
        tokens_from([], "", None)
    file = tmp_path / "tokens"
    file.write_text("one\n\n two\n")
    assert secrets(["zero", "one"], "three", file) == ("zero", "one", "three", "two")
    file.write_text("\n# nothing\n")
    with pytest.raises(InputError, match="holds no token"):
        tokens_from([], None, file)
    file.write_bytes(b"\xff")
    with pytest.raises(InputError, match="it is not UTF-8"):
        tokens_from([], None, file)
    with pytest.raises(InputError, match="cannot read --token-file"):
        tokens_from([], None, tmp_path / "none")


def test_tokens_have_names_and_rates(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("team-a: s3cret 20/s  # the first\nteam-b: other 600/min\nplain\n")
    assert tokens_from(["given"], "env", file) == (
        Token("option-1", "given"),
        Token("environment", "env"),
        Token("team-a", "s3cret", Rate(20, 1.0)),
        Token("team-b", "other", Rate(600, 60.0)),
        Token("line-3", "plain"),
    )
    assert "s3cret" not in repr(tokens_from([], None, file))
    file.write_text("a: x 20\nb c:\nd/e: y\nf: z 1/s more\nok: 1\nok: 2\n")
    with pytest.raises(InputError) as caught:
        tokens_from([], None, file)
    told = " ".join([caught.value.message, *caught.value.faults])
    for line in ("line 1: a rate", "line 3: a name", "line 4: a name", "two tokens are called ok"):
        assert line in told


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_pending": 0}, "--max-queue is 0"),
        ({"answer_seconds": 0.0}, "--request-timeout is 0.0"),
    ],
)
def test_faults_name_the_option(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        ServerSettings(**settings)
    with pytest.raises(InputError, match="--max-connections is 0"):
        ConnectionLimits(max_connections=0)
