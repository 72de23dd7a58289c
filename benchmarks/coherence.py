"""How often the 95% intervals of coherence differences miss the truth.

    OMP_NUM_THREADS=1 python benchmarks/coherence.py --simulations 400

Records hold one to four questions that share a latent steadiness; under a variant each model's own
answer moves by a distance drawn around it, and flips where it moves far. A share of the records
goes to pieces in the candidate alone. Printed are, in percent, simulations whose lower and upper
bound miss the true difference (nominal 2.5 each), of the mean movement and of the share of flips.
"""

from __future__ import annotations

import argparse

import numpy as np

from clefq.parity.statistics.figures import Sampling, pending_figure, resolve_at
from clefq.parity.statistics.measures import MEAN, PAIRED, Measure

# name → records, how much of the steadiness is the record's, records that break, extra movement
DESIGNS = {
    "even, 100": (100, 0.0, 0.0, 0.0),
    "clustered, 100": (100, 1.0, 0.0, 0.02),
    "clustered, 400": (400, 1.0, 0.0, 0.02),
    "2% break, 100": (100, 1.0, 0.02, 0.0),
    "2% break, 400": (400, 1.0, 0.02, 0.0),
}


def draw(
    rng: np.random.Generator, records: int, design: tuple[int, float, float, float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Record of each question, and both differences per question."""
    _, shared, breaks, more = design
    index = np.repeat(np.arange(records), rng.integers(1, 5, size=records))
    n = len(index)
    steady = shared * rng.normal(size=records)[index] + rng.normal(size=n)

    def moved(extra: float) -> np.ndarray:
        own = steady + rng.normal(size=n)
        return np.clip(1 / (1 + np.exp(3.0 - own)) + extra * rng.random(n), 0, 1)

    before, after = moved(0.0), moved(2 * more)
    broken = (rng.random(records) < breaks)[index]
    after = np.where(broken, rng.random(n), after)
    flips = (after > 0.3).astype(float) - (before > 0.3).astype(float)
    return index, after - before, flips


def main() -> None:
    """Prints one row per design."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=400)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("design            movement lower upper   flips lower upper   (percent missed)")
    for name, design in DESIGNS.items():
        rng = np.random.default_rng(options.seed)
        _, *whole = draw(rng, 400_000, design)
        truth = [float(values.mean()) for values in whole]
        missed = np.zeros((2, 2))
        for number in range(options.simulations):
            index, *values = draw(rng, design[0], design)
            domain = np.ones(len(index), dtype=np.bool_)
            for row, (value, kind) in enumerate(zip(values, (MEAN, PAIRED), strict=True)):
                measure = Measure("x", kind, value, domain, "difference", limits=(-1, 1))
                item = pending_figure(measure, np.arange(len(index)), index, 0.95)
                found = resolve_at(item, Sampling(number, options.resamples, 1), None)
                low = -1.0 if found.lower is None else found.lower
                high = 1.0 if found.upper is None else found.upper
                missed[row] += (low > truth[row], high < truth[row])
        shown = 100 * missed / options.simulations
        print(f"{name:<18}{'':9}{shown[0, 0]:5.1f} {shown[0, 1]:5.1f}"
              f"{'':9}{shown[1, 0]:5.1f} {shown[1, 1]:5.1f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
