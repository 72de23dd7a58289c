"""What a worker says of a model that loads and cannot answer, and of vLLM's errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clefq.errors import ClefqError
from clefq.serving.fleet.worker import _check_finite, _line


def test_a_model_that_answers_only_nan_is_not_ready() -> None:
    sound, broken = np.zeros(3, np.float32), np.full(3, np.nan, np.float32)
    _check_finite([(sound, 9)], Path("m"))
    _check_finite([(broken, 9), (sound, 9)], Path("m"))
    _check_finite([], Path("m"))
    with pytest.raises(ClefqError, match="not finite"):
        _check_finite([(broken, 9), (broken, 9)], Path("m"))


def test_pydantics_tail_is_left_out() -> None:
    error = ValueError(
        "1 validation error for VllmConfig\n  Value error, 4 heads for 3 ranks "
        "[type=value_error, input_value=ArgsKwargs((), {})]\n    For further information visit"
    )
    assert _line(error) == "Value error, 4 heads for 3 ranks"
