"""Looks: verdicts on one set while it grows, and what they cost.

A report that is inconclusive advises to add records. Whoever judges, adds and judges again until
it passes takes several chances, and an interval made for one does not allow for that. A gate file
that plans N looks (`looks: N`) spends its error evenly: each look has the N-th part of it
(Bonferroni), so that all N together are wrong no more often than one was allowed to be, however
the looks depend on each other and whenever the records were added.

A look is counted when a report replaces one in the same place, by the same gate file (or one that
it supersedes), of the same candidate, on another state of the set. Reports that were deleted or
written elsewhere cannot be seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from clefq.store.predictions import PredictionsMeta
from clefq.store.reading import Count, Stored

LOOKS_BANNER = "looks"


@dataclass(frozen=True, slots=True)
class Look(Stored):
    """A verdict on one state of the set.

    Attributes:
        eval_set_sha256: Hash of the set.
        questions: Questions that it held.
    """

    eval_set_sha256: str
    questions: Count


@dataclass(frozen=True, slots=True)
class Looks(Stored):
    """The looks that were planned and those that were made.

    Attributes:
        planned: Looks that the gates' confidence allows for.
        made: States of the set that were judged, this one included, oldest first.
    """

    planned: Count = 1
    made: tuple[Look, ...] = field(default=())

    @property
    def banner(self) -> tuple[str, ...]:
        """What stands above the verdict where more looks were made than the gates allow for."""
        if len(self.made) <= self.planned:
            return ()
        sizes = " → ".join(f"{look.questions:,}" for look in self.made)
        return (
            f"{LOOKS_BANNER}: this is verdict {len(self.made)} on a set that grew ({sizes} "
            f"questions), and the gates allow for {self.planned}: each further one is another "
            "chance to pass wrongly (plan them with `looks` in the gate file)",
        )

    @property
    def doubt(self) -> tuple[str, ...]:
        """Why no gate passes: more looks than a file that plans them allows for."""
        if self.planned == 1 or len(self.made) <= self.planned:
            return ()
        return (f"{len(self.made)} looks were made, the gate file plans {self.planned}",)

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `parity.json`."""
        return asdict(self)


def with_look(planned: int, before: Sequence[Look], sha256: str, questions: int) -> Looks:
    """The looks after one more: a state of the set counts once, however often it is judged."""
    if any(look.eval_set_sha256 == sha256 for look in before):
        return Looks(planned, tuple(before))
    return Looks(planned, (*before, Look(sha256, questions)))


def looks_before(
    document: Mapping[str, Any], gates: Sequence[str | None], candidate: PredictionsMeta
) -> tuple[Look, ...]:
    """The looks that an earlier report in the same place tells of.

    Args:
        document: Its `parity.json` value.
        gates: Hashes of the gate file and of what it supersedes.
        candidate: The candidate now; another model starts anew.
    """
    if document["gate_file"]["sha256"] not in gates:
        return ()
    was = document["candidate"]["model_sha256"]
    if None not in (was, candidate.model_sha256) and was != candidate.model_sha256:
        return ()
    stored = document["gate_file"].get("looks")
    if stored is None:  # an older report counts none
        return (Look(document["eval_set"]["sha256"], document["coverage"]["expected"]),)
    return tuple(Look(**look) for look in stored["made"])
