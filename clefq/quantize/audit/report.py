"""What an audit found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clefq.quantize.audit.tallies import Comparison

# check -> what it looks at, in the order of the table
CHECKS: dict[str, str] = {
    "files": "index and shards agree, nothing is there twice",
    "config": "quantization_config agrees with the tensors",
    "coverage": "every tensor of the model is there, in its shape",
    "protected": "lm_head, vision tower, norms and the rest are not quantized",
    "formats": "fused projections share one format",
    "weight scales": "weight global scales are finite, positive and shared",
    "input scales": "input global scales are finite, positive and shared",
    "group scales": "scales of groups and channels are in range",
    "values": "no NaN or infinity among the stored values",
    "head": "joint head and tokenizer are there (and the source's)",
    "manifest": "files are those that clefq.json recorded",
    "untouched": "unquantized tensors are bit-equal to the source",
    "quantized": "quantized weights belong to the source",
}


@dataclass(frozen=True, slots=True)
class Breach:
    """One broken rule.

    Attributes:
        check: A key of `CHECKS`.
        subject: Module, tensor or file.
        message: What is wrong.
        effect: What a serving engine does with it, or an empty string.
    """

    check: str
    subject: str
    message: str
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Cause:
    """Breaches of one check that say the same.

    Attributes:
        check: A key of `CHECKS`.
        message: What is wrong.
        effect: What a serving engine does with it, or an empty string.
        subjects: Modules, tensors or files of which it is true.
    """

    check: str
    message: str
    effect: str
    subjects: tuple[str, ...]

    @property
    def subject(self) -> str:
        """The first of the subjects, and how many there are."""
        more = f" and {len(self.subjects) - 1} more" if len(self.subjects) > 1 else ""
        return self.subjects[0] + more


# what is wrong with these explains much of the rest
_DECIDING = {"config.json": 0, "the source": 0, "index": 1}


@dataclass
class AuditReport:
    """Outcome of an audit.

    Attributes:
        folder: The checkpoint.
        scheme: Summary of formats, for example `25 × w4a4`.
        counts: Per check that ran, how many subjects it looked at.
        breaches: Every broken rule.
        notes: What was not checked and why, and facts worth knowing.
        unproven: What nobody could see with what was given, one line each.
        facts: Hashes and sizes.
        against_source: Whether a source was compared with.
        recomputed: Modules whose numbers are known to come from the source, and how.
    """

    folder: str
    scheme: str = "unknown"
    counts: dict[str, int] = field(default_factory=dict)
    breaches: list[Breach] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    against_source: bool = False
    recomputed: dict[str, Comparison] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether no rule is broken."""
        return not self.breaches

    @property
    def word(self) -> str:
        """`sound`: every weight is proven against a source. `consistent`: nothing contradicts.

        `broken` otherwise. What a source does not prove either (input scales) does not make a
        checkpoint less than sound; `unproven` lists it.
        """
        if self.breaches:
            return "broken"
        compared = self.against_source and not self.facts.get("uncompared")
        return "sound" if compared else "consistent"

    def looked_at(self, check: str, count: int = 1) -> None:
        """Counts subjects of a check."""
        self.counts[check] = self.counts.get(check, 0) + count

    def breach(self, check: str, subject: str, message: str, effect: str = "") -> None:
        """Records a broken rule."""
        self.breaches.append(Breach(check, subject, message, effect))

    def cannot_see(self, line: str) -> None:
        """Records what stays unproven."""
        self.unproven.append(line)

    def proved(self, means: str) -> None:
        """Takes back what stayed unproven for want of some means, now that it was given."""
        self.unproven = [line for line in self.unproven if means not in line]

    def of(self, check: str) -> list[Breach]:
        """The breaches of one check."""
        return [breach for breach in self.breaches if breach.check == check]

    def causes(self) -> list[Cause]:
        """The breaches with one cause each, those first that explain others.

        Breaches of one check with one message are one cause, however many tensors have it.
        """
        found: dict[tuple[str, str, str], list[str]] = {}
        for breach in self.breaches:
            key = (breach.check, breach.message, breach.effect)
            found.setdefault(key, []).append(breach.subject)
        causes = [Cause(*key, tuple(subjects)) for key, subjects in found.items()]
        return sorted(causes, key=lambda cause: _DECIDING.get(cause.subjects[0], 2))

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {
            "folder": self.folder,
            "passed": self.passed,
            "verdict": self.word,
            "scheme": self.scheme,
            "checks": {
                name: {"looked_at": self.counts[name], "breaches": len(self.of(name))}
                for name in CHECKS
                if name in self.counts
            },
            "breaches": [
                {
                    "check": b.check,
                    "subject": b.subject,
                    "message": b.message,
                    "effect": b.effect,
                }
                for b in self.breaches
            ],
            "causes": [
                {
                    "check": c.check,
                    "message": c.message,
                    "effect": c.effect,
                    "subjects": len(c.subjects),
                    "first": c.subjects[0],
                }
                for c in self.causes()
            ],
            "notes": self.notes,
            "unproven": self.unproven,
            **self.facts,
        }
