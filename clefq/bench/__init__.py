"""Measuring: records to measure with, timing, engines side by side, load on a server."""
