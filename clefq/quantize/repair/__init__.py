"""Mending a published checkpoint, in a copy."""

from clefq.quantize.repair.mend import repair_checkpoint
from clefq.quantize.repair.refusals import RepairError

__all__ = ["RepairError", "repair_checkpoint"]
