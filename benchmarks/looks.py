"""False passes of a set that grows until it passes, with and without looks that are planned.

    python benchmarks/looks.py [--trials 2000]

A candidate whose truth is exactly at the limit is judged at 200, 400, … records; the first pass
ends it. The aim is at most the nominal error, 2.5%, over all looks together. One row a design:
records of one question, of one to seven, and of one to seven where some records are wholly broken.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from clefq.parity.statistics.intervals import korn_graubard, paired_tango, ratio

ERROR = 0.025
FLOOR, MARGIN = 0.98, 0.02
SIZES = (200, 400, 800, 1600, 3200)
DESIGNS = ("one question", "one to seven", "broken records")


def drawn(design: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Questions and lost answers of every record; 2% of the answers are lost in the mean."""
    records = SIZES[-1]
    if design == "one question":
        size = np.ones(records)
    else:
        size = rng.integers(1, 8, records).astype(float)
    if design == "broken records":
        return size, size * (rng.random(records) < 1 - FLOOR)
    return size, rng.binomial(size.astype(int), 1 - FLOOR).astype(float)


def first_pass(size: np.ndarray, lost: np.ndarray, looks: int, spend: int) -> tuple[bool, bool]:
    """Whether agreement and accuracy pass at any of the looks, each with error ERROR/spend."""
    confidence = 1 - 2 * ERROR / spend
    agreement = accuracy = False
    none = np.zeros_like(size)
    for records in SIZES[:looks]:
        d, n = size[:records], lost[:records]
        low = korn_graubard(ratio(d - n, d), confidence)[0]
        agreement |= low is not None and low >= FLOOR
        low = paired_tango(ratio(none[:records], d), ratio(n, d), confidence)[0]
        accuracy |= low is not None and low >= -MARGIN
    return agreement, accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000)
    trials = parser.parse_args().trials
    print(
        "| records | looks | agreement, not planned | planned | accuracy, not planned | planned |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    for design in DESIGNS:
        for looks in (1, 2, 3, 5):
            rng = np.random.default_rng([looks, DESIGNS.index(design)])
            passes = np.zeros(4)
            for _ in range(trials):
                size, lost = drawn(design, rng)
                alone = first_pass(size, lost, looks, 1)
                spent = first_pass(size, lost, looks, looks)
                passes += (alone[0], spent[0], alone[1], spent[1])
            shares = " | ".join(f"{100 * share:.1f}%" for share in passes / trials)
            print(f"| {design} | {looks} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
