"""What a repair did."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clefq.quantize.audit.report import AuditReport


@dataclass(frozen=True, slots=True)
class Mended:
    """One member of a mended group.

    Attributes:
        module: Module name.
        method: `kept`, `rescaled` or `requantized`.
        shrink: By which factor an engine shrank it before.
        before: Relative weight error as an engine ran it before.
        after: Relative weight error now. Against the source where it is given, else against
            the weights that the checkpoint stored.
    """

    module: str
    method: str
    shrink: float
    before: float
    after: float


@dataclass
class RepairReport:
    """Outcome of a repair.

    Attributes:
        folder: The new checkpoint, or None when there was nothing to mend.
        against: What errors are measured against: `source` or `stored weights`.
        members: Every member of every group whose weight scales were unequal.
        inputs: Groups whose input scales were unequal.
        restored: Unquantized tensors that were brought back from the source.
        remade: Modules whose damaged numbers were made anew from the source.
        audit: Audit of the result.
    """

    folder: Path | None
    against: str
    members: list[Mended] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    remade: list[str] = field(default_factory=list)
    audit: AuditReport | None = None

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {
            "folder": None if self.folder is None else str(self.folder),
            "against": self.against,
            "members": [
                {
                    "module": m.module,
                    "method": m.method,
                    "shrink": m.shrink,
                    "error_before": m.before,
                    "error_after": m.after,
                }
                for m in self.members
            ],
            "input_scales": self.inputs,
            "restored": self.restored,
            "remade": self.remade,
            "audit": None if self.audit is None else self.audit.to_json(),
        }
