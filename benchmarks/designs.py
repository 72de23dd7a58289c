"""One-sided errors of the bounds that gate, on sets whose records break in every way we know.

    OMP_NUM_THREADS=1 python benchmarks/designs.py [--simulations 2000] [--kl 400]

prints the second table of docs/statistics.md: how often (percent, nominal 2.5) the lower bound of
an agreement or of an accuracy difference, or the upper bound of a mean distance, lies on the wrong
side of the truth. That is also how often a gate passes whose limit is the truth. The last column
is the mean distance of the agreement's lower bound from the truth, in points, and in brackets that
of Korn and Graubard's bound at the design effect alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from clefq.parity.statistics.bootstrap import studentized_interval, studentized_job
from clefq.parity.statistics.intervals import (
    bounded_mean,
    clopper_pearson,
    effective_size,
    korn_graubard,
    paired_tango,
    ratio,
)
from clefq.parity.statistics.resampling import run_jobs

RECORDS = (26, 64, 156, 400, 1400)
RESAMPLES = 1000
TRUTH_RECORDS = 2_000_000
MOVED = 0.8  # distance per flip
GAINED = 0.005  # answers that the candidate gains, independent of everything

Sizes = Callable[[np.random.Generator, int], np.ndarray]
Rates = Callable[[np.random.Generator, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Design:
    """How large records are, and how likely a question of each flips.

    Attributes:
        name: Shown in the table.
        sizes: (generator, G) → questions per record, int [G].
        rates: (generator, sizes) → flip probability per record, float [G]; also the record's part
            of the mean distance.
    """

    name: str
    sizes: Sizes
    rates: Rates


def constant(size: int) -> Sizes:
    return lambda rng, records: np.full(records, size)


def uniform(low: int, high: int) -> Sizes:
    return lambda rng, records: rng.integers(low, high + 1, records)


def mixed(share: float, large: int) -> Sizes:
    """A share of large records, the others of 1–3 questions."""
    return lambda rng, records: np.where(
        rng.random(records) < share, large, rng.integers(1, 4, records)
    )


def geometric(mean: float) -> Sizes:
    return lambda rng, records: np.minimum(rng.geometric(1 / mean, records), 200)


def power_law(exponent: float) -> Sizes:
    """P(size > x) falls as x^−exponent: no sample holds the largest ones."""
    return lambda rng, records: np.minimum(2 * rng.random(records) ** (-1 / exponent), 1000).astype(
        int
    )


def lognormal(sigma: float) -> Sizes:
    return lambda rng, records: np.clip(
        np.rint(np.exp(1.2 + sigma * rng.standard_normal(records))), 1, 60
    ).astype(int)


def expit(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -500, 500)))


def heavy(centre: float, scale: float) -> Rates:
    """Latent difficulty with two degrees of freedom."""
    return lambda rng, d: expit(centre + scale * rng.standard_t(2, len(d)))


def broken(share: float, background: float = 0.0, depth: float = 1.0) -> Rates:
    """A share of records broken (each question flips with `depth`), independent flips elsewhere."""
    return lambda rng, d: np.where(rng.random(len(d)) < share, depth, background)


def by_length(slope: float, background: float) -> Rates:
    """The more questions, the likelier a record is wholly broken."""
    return lambda rng, d: np.where(rng.random(len(d)) < slope * d, 1.0, background)


def longest(share: float, least: int, background: float) -> Rates:
    """A share of the records from a length on is wholly broken, and few others."""
    return lambda rng, d: np.where(
        rng.random(len(d)) < np.where(d >= least, share, background), 1.0, 0.0
    )


def correlated(share: float, correlation: float) -> Rates:
    """Beta-binomial flips."""
    scale = (1 - correlation) / correlation
    return lambda rng, d: rng.beta(share * scale, (1 - share) * scale, len(d))


def informative(centre: float, slope: float, scale: float) -> Rates:
    """Harder where records are longer."""
    return lambda rng, d: expit(centre + slope * np.log(d) + scale * rng.standard_normal(len(d)))


def flat(share: float) -> Rates:
    return lambda rng, d: np.full(len(d), share)


# the first nine are those on which the bounds before failed; the others were made afterwards
DESIGNS = (
    Design("independent, 1–12", uniform(1, 12), flat(0.02)),
    Design("t₂ difficulty, 1–12", uniform(1, 12), heavy(-5.2, 0.9)),
    Design("t₂, 8% of records hold 40", mixed(0.08, 40), heavy(-5.2, 0.9)),
    Design("t₂, 3% hold 40", mixed(0.03, 40), heavy(-5.2, 0.9)),
    Design("1% broken, 1–12", uniform(1, 12), broken(0.01, 0.005)),
    Design("1.8% broken, 40 each", constant(40), broken(0.018)),
    Design("1.8% broken, 10 each", constant(10), broken(0.018)),
    Design("near 1, 1–12", uniform(1, 12), informative(-7, 0, 1.5)),
    Design("longer is harder, 1–12", uniform(1, 12), informative(-6.5, 1.2, 1.0)),
    Design("2% broken and 2% flips, 40 each", constant(40), broken(0.02, 0.02)),
    Design("4% half broken, 1–8", uniform(1, 8), broken(0.04, 0.004, 0.5)),
    Design("4% broken, 3% hold 40", mixed(0.03, 40), broken(0.04, 0.01)),
    Design("longer breaks, geometric 5", geometric(5), by_length(0.002, 0.003)),
    Design("longer breaks, log-normal", lognormal(0.9), by_length(0.004, 0.003)),
    Design("correlated 0.4, log-normal", lognormal(0.9), correlated(0.03, 0.4)),
    Design("correlated 0.1, 10% flips, 1–12", uniform(1, 12), correlated(0.1, 0.1)),
    Design("longer breaks, power law 2", power_law(2), by_length(0.0009, 0.0)),
    Design("longer breaks, power law 2.5", power_law(2.5), by_length(0.0024, 0.0)),
    Design("the longest break, power law 3", power_law(3), longest(0.4, 10, 0.002)),
    Design("one question, 1.8% flips", constant(1), flat(0.018)),
)  # fmt: skip


def truth(design: Design) -> float:
    """Expected flips over expected questions."""
    rng = np.random.default_rng(99)
    sizes = design.sizes(rng, TRUTH_RECORDS)
    return float((sizes * design.rates(rng, sizes)).sum() / sizes.sum())


def draw(design: Design, records: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Sizes, flips, answers gained, and summed distances per record, float [G] each."""
    sizes = design.sizes(rng, records)
    rates = design.rates(rng, sizes)
    flips = rng.binomial(sizes, rates)
    gained = rng.binomial(sizes - flips, GAINED)
    # a question of rate r moves by 0.8 r on average
    distance = sizes * rates * rng.uniform(0.6, 1.0, records)
    return sizes.astype(float), flips.astype(float), gained.astype(float), distance


def errors(design: Design, records: int, simulations: int, with_kl: int) -> list[float]:
    """Misses of agreement, accuracy, TV and KL in %, and the two mean distances in points.

    Sets without a bound (fewer than ten records in effect) count as no miss.
    """
    share = truth(design)
    # gained answers come from questions that did not flip
    delta = -share + GAINED * (1 - share)
    rng = np.random.default_rng([records, 20])
    misses, gaps, bounded = np.zeros(3), np.zeros(2), 0
    jobs = []
    for index in range(simulations):
        d, flips, gained, distance = draw(design, records, rng)
        value = ratio(d - flips, d)
        lower = korn_graubard(value)[0]
        if lower is None:
            continue
        bounded += 1
        paired = paired_tango(ratio(gained, d), ratio(flips, d))[0]
        upper = bounded_mean(ratio(distance, d), 1.0)
        assert paired is not None and upper is not None
        misses += (lower > 1 - share, paired > delta, upper < MOVED * share)
        size = effective_size(value, value.estimate * (1 - value.estimate), 0.95)
        classic = clopper_pearson(value.estimate * size, size)[0]
        gaps += (1 - share - lower, 1 - share - classic)
        if index < with_kl:
            jobs.append(ratio(distance, d))
    kl = 0
    if jobs:
        samples = run_jobs([studentized_job(value) for value in jobs], records, RESAMPLES, 1)
        for value, sample in zip(jobs, samples, strict=True):
            end = studentized_interval(value, sample[:, 1], 0.95).bounds[1]
            kl += end is not None and end < MOVED * share
    return [
        *(100 * misses / simulations),
        100 * kl / max(1, min(with_kl, simulations)),
        *(100 * gaps / max(1, bounded)),
        bounded / simulations,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--kl", type=int, default=400, help="sets for the resampled upper bound")
    parser.add_argument("--only", default="", help="designs whose name holds this")
    options = parser.parse_args()
    print("| design | records | agreement | accuracy | TV | resampled | gap, pt |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for design in (one for one in DESIGNS if options.only in one.name):
        for records in RECORDS:
            *got, new, old, bounded = errors(design, records, options.simulations, options.kl)
            cells = " | ".join(f"{value:.1f}" for value in got)
            note = "" if bounded > 0.99 else f"; bounds in {bounded:.0%}"
            print(
                f"| {design.name} | {records:,} | {cells} | {new:.2f} ({old:.2f}){note} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
