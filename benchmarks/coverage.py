"""Simulated coverage of the intervals that gate, beside the plain percentile bootstrap.

    OMP_NUM_THREADS=1 python benchmarks/coverage.py [--simulations 2000]

prints the table of docs/statistics.md. Every cell draws many data sets from a known truth and says
how often (percent) a nominal 95% interval holds it, in brackets for the percentile bootstrap. A
gate's error is one-sided: the last columns say how often, at worst of the three designs, the
gating interval lies wholly below or above the truth; nominal is 2.5.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from clefq.parity.statistics.bootstrap import (
    percentile_job,
    quantiles,
    studentized_interval,
    studentized_job,
)
from clefq.parity.statistics.intervals import (
    Ratio,
    bounded_mean,
    korn_graubard,
    paired_tango,
    ratio,
)
from clefq.parity.statistics.resampling import run_jobs

RECORDS = (26, 64, 256, 1400)
RESAMPLES = 2000
BATCH = 200
DESIGNS = ((1, 1), (1, 4), (1, 10))  # questions per record, uniform
RHO = 0.2  # correlation of two questions of one record


@dataclass(frozen=True)
class Truth:
    """A metric with a known value.

    Attributes:
        name: Shown in the table.
        kind: `share`, `paired`, `mean`, or `bounded` for a mean of values in [0, 1].
        value: The true value.
        draw: (generator, questions per record [G]) → values per question, flat.
    """

    name: str
    kind: str
    value: float
    draw: Callable[[np.random.Generator, np.ndarray], np.ndarray]


def clustered_uniform(rng: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
    """Uniforms; with probability √ρ a question takes its record's own: correlation ρ of flags."""
    own = np.repeat(rng.random(len(sizes)), sizes)
    fresh = rng.random(int(sizes.sum()))
    return np.where(rng.random(len(fresh)) < np.sqrt(RHO), own, fresh)


def share(value: float) -> Truth:
    return Truth(
        f"agreement {value:g}", "share", value, lambda r, s: (clustered_uniform(r, s) < value) * 1.0
    )


def paired(gained: float, lost: float) -> Truth:
    def draw(rng: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
        u = clustered_uniform(rng, sizes)
        return (u < gained) * 1.0 - (u > 1 - lost) * 1.0

    name = f"accuracy difference {gained - lost:+.3f} (discordance {gained + lost:.3f})"
    return Truth(name, "paired", gained - lost, draw)


def gamma(name: str, shape: float, mean: float, kind: str = "mean") -> Truth:
    """Means of skewed values; a record's questions share a gamma-distributed scale in part."""

    def draw(rng: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
        own = np.repeat(rng.gamma(shape, mean / shape, len(sizes)), sizes)
        fresh = rng.gamma(shape, mean / shape, int(sizes.sum()))
        return np.where(rng.random(len(fresh)) < np.sqrt(RHO), own, fresh)

    return Truth(name, kind, mean, draw)


def lognormal(sigma: float) -> Truth:
    """Means of a heavy tail that a record's questions share."""
    mean = float(np.exp(-6 + sigma**2 / 2))

    def draw(rng: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
        return np.repeat(np.exp(-6 + sigma * rng.standard_normal(len(sizes))), sizes)

    return Truth(f"mean KL {mean:.3f} (log-normal, σ = {sigma:g})", "mean", mean, draw)


def outliers(share: float, times: float) -> Truth:
    """Means of which a share of the records has many times the others' values."""
    mean = 0.01 * (1 - share + share * times)

    def draw(rng: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
        scale = np.where(rng.random(len(sizes)) < share, times, 1.0)
        return np.repeat(scale, sizes) * rng.gamma(0.2, 0.05, int(sizes.sum()))

    return Truth(f"mean KL {mean:.3f} ({share:.0%} of records × {times:g})", "mean", mean, draw)


TRUTHS = (
    share(0.98),
    share(0.95),
    share(0.8),
    paired(0.026, 0.031),
    paired(0.01, 0.015),
    gamma("mean TV 0.04 (gamma, shape 0.7)", 0.7, 0.04, "bounded"),
    gamma("mean KL 0.01 (gamma, shape 0.2)", 0.2, 0.01),
    lognormal(2),
    outliers(0.01, 40),
)


def gating(truth: Truth, value: Ratio, t: np.ndarray | None, sides: tuple[Ratio, Ratio] | None):
    if truth.kind == "share":
        return korn_graubard(value)
    if sides is not None:
        return paired_tango(*sides)
    assert t is not None
    lower, upper = studentized_interval(value, t, 0.95).bounds
    return lower, bounded_mean(value, 1.0) if truth.kind == "bounded" else upper


def one_batch(truth: Truth, records: int, per: tuple[int, int], rng: np.random.Generator, n: int):
    """Bounds of the gating and of the percentile interval for n simulated data sets."""
    values, sides = [], []
    for _ in range(n):
        sizes = rng.integers(per[0], per[1] + 1, records)
        x = truth.draw(rng, sizes)
        at = np.repeat(np.arange(records), sizes)
        d = sizes.astype(float)

        def sums(flat: np.ndarray, at: np.ndarray = at, d: np.ndarray = d) -> Ratio:
            return ratio(np.bincount(at, flat, minlength=len(d)), d)

        values.append(sums(x))
        sides.append((sums((x > 0) * 1.0), sums((x < 0) * 1.0)) if truth.kind == "paired" else None)
    studentized = truth.kind in ("mean", "bounded")
    jobs = [studentized_job(v) if studentized else percentile_job([v]) for v in values]
    samples = run_jobs(jobs, int(rng.integers(2**62)), RESAMPLES)
    for value, side, sample in zip(values, sides, samples, strict=True):
        ends = quantiles(sample[:, 0], 0.95)
        yield (
            gating(truth, value, sample[:, 1] if studentized else None, side),
            (
                ends.lower,
                ends.upper,
            ),
        )


def simulate(truth: Truth, records: int, per: tuple[int, int], simulations: int) -> list[float]:
    """Coverage, misses below and above of the gating interval, then of the percentile one; %."""
    rng = np.random.default_rng([records, per[1], round(truth.value * 1e6) % 2**32])
    counts = np.zeros((2, 3))
    for start in range(0, simulations, BATCH):
        for bounds in one_batch(truth, records, per, rng, min(BATCH, simulations - start)):
            for row, (low, high) in enumerate(bounds):
                above = low is not None and low > truth.value + 1e-12
                below = high is not None and high < truth.value - 1e-12
                counts[row] += (not above and not below, below, above)
    return list((counts / simulations * 100).ravel())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulations", type=int, default=2000)
    simulations = parser.parse_args().simulations
    print("| truth | records | 1 question each | 1–4 | 1–10 | too low | too high |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for truth in TRUTHS:
        for records in RECORDS:
            got = np.array([simulate(truth, records, per, simulations) for per in DESIGNS])
            cells = " | ".join(f"{row[0]:.1f} ({row[3]:.1f})" for row in got)
            worst = f"{got[:, 1].max():.1f} | {got[:, 2].max():.1f}"
            print(f"| {truth.name} | {records:,} | {cells} | {worst} |", flush=True)


if __name__ == "__main__":
    main()
