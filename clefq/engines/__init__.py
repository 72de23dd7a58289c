"""Engines: a checkpoint and records in, option probabilities with provenance out."""
