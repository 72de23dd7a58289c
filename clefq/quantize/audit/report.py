"""What an audit found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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


@dataclass
class AuditReport:
    """Outcome of an audit.

    Attributes:
        folder: The checkpoint.
        scheme: Summary of formats, for example `25 × w4a4`.
        counts: Per check that ran, how many subjects it looked at.
        breaches: Every broken rule.
        notes: What was not checked and why, and facts worth knowing.
        facts: Hashes and sizes.
    """

    folder: str
    scheme: str = "unknown"
    counts: dict[str, int] = field(default_factory=dict)
    breaches: list[Breach] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether no rule is broken."""
        return not self.breaches

    def looked_at(self, check: str, count: int = 1) -> None:
        """Counts subjects of a check."""
        self.counts[check] = self.counts.get(check, 0) + count

    def breach(self, check: str, subject: str, message: str, effect: str = "") -> None:
        """Records a broken rule."""
        self.breaches.append(Breach(check, subject, message, effect))

    def of(self, check: str) -> list[Breach]:
        """The breaches of one check."""
        return [breach for breach in self.breaches if breach.check == check]

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {
            "folder": self.folder,
            "passed": self.passed,
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
            "notes": self.notes,
            **self.facts,
        }
