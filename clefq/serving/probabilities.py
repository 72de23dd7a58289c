"""Logits into probabilities: exact ones, and those that the release code would round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clefq.clef.answers import log_softmax

if TYPE_CHECKING:
    from clefq.clef.records import Question


def exact(question: Question, logits: NDArray[Any]) -> dict[str, float]:
    """Option id to probability in float64, options in prompt order.

    Args:
        question: Whose options they are.
        logits: [options], finite or −inf.

    Raises:
        ValueError: A logit is NaN or +inf, or all are −inf.
    """
    values = np.exp(log_softmax(logits)).tolist()
    return dict(zip(question.option_ids, values, strict=True))


def as_released(question: Question, logits: NDArray[Any]) -> dict[str, float]:
    """Option id to probability as the release computes it: torch's softmax in float32.

    Four decimals of these are the release's, digit for digit; four decimals of `exact` differ
    where a float32 probability lies on the other side of a rounding boundary.

    Raises:
        ValueError: A logit is NaN or +inf, or all are −inf.
    """
    import torch

    values = torch.from_numpy(np.array(logits, dtype=np.float32)).softmax(-1)
    if not bool(torch.isfinite(values).all()):
        raise ValueError("logits are not finite")
    return dict(zip(question.option_ids, values.tolist(), strict=True))
