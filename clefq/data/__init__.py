"""Calibration and eval sets: sources, sampling, decontamination, building."""
