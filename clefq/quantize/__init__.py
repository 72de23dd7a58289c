"""Quantizing, auditing and repairing checkpoints."""
