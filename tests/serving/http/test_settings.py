"""What a server can be told: limits, dialect, tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clefq.errors import InputError
from clefq.serving.http.settings import Limits, ServerSettings, limits_from, tokens_from


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
    assert tokens_from([], None, None) == ()
    assert tokens_from([], "padded\n", None) == ("padded",)
    with pytest.raises(InputError, match="set but empty"):
        tokens_from([], "", None)
    file = tmp_path / "tokens"
    file.write_text("one\n\n two\n")
    assert tokens_from(["zero", "one"], "three", file) == ("zero", "one", "three", "two")
    file.write_text("\n")
    with pytest.raises(InputError, match="holds no token"):
        tokens_from([], None, file)
    file.write_bytes(b"\xff")
    with pytest.raises(InputError, match="it is not UTF-8"):
        tokens_from([], None, file)
    with pytest.raises(InputError, match="cannot read --token-file"):
        tokens_from([], None, tmp_path / "none")
