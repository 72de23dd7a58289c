"""The audit of a quantized checkpoint: one file per kind of evidence."""

from clefq.quantize.audit.checkpoint import Audited, audit_checkpoint, open_audited, summary

__all__ = ["Audited", "audit_checkpoint", "open_audited", "summary"]
