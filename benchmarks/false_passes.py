"""How often a release gate file passes a candidate that it must refuse, whole verdicts counted.

    OMP_NUM_THREADS=1 python benchmarks/false_passes.py [--simulations 4000] [--check]

An independent second implementation: the bounds are written here from the text of
docs/statistics.md alone, in vectorised form and without the package's functions; only `--check`
calls those, to compare the two on random sets. Every design breaks exactly one of the limits of
`release.yaml`: accuracy −2 points, confident agreement 0.98, total variation 0.05 (all one-sided
97.5%, at least 200 questions). A verdict is a false pass where all three gates pass.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, ndtri, stdtrit

RECORDS = (26, 64, 156, 250, 400, 700, 1400)
LEVEL = 0.975
Z = float(ndtri(LEVEL))
MARGIN, FLOOR, CEILING, LEAST = 0.02, 0.98, 0.05, 200
GOOD = 0.003


def worst_kind(columns: tuple[np.ndarray, ...], sizes: np.ndarray, bound: Callable) -> np.ndarray:
    """The largest of the bounds of all records and, of long-tailed sizes, of the longest ones."""
    found = bound(*columns, sizes)
    largest = sizes.max(1)
    uneven = largest * (sizes**2).sum(1) / (sizes**3).sum(1) > 2.25
    for halvings in range(1, 12):
        least = largest / 2**halvings
        rows = np.flatnonzero(uneven & (least > sizes.min(1)))
        if not len(rows):
            break
        inside = sizes[rows] >= least[rows, None]
        part = np.where(inside, sizes[rows], 0)
        own = [np.where(inside, column[rows], 0) for column in columns]
        rest = [
            column[rows].sum(1) - mine.sum(1) for column, mine in zip(columns, own, strict=True)
        ]
        known = rest[0] - sum(rest[1:])
        whole = (known + part.sum(1) * bound(*own, part)) / sizes[rows].sum(1)
        found[rows] = np.maximum(found[rows], whole)
    return found


def upper_share(events: np.ndarray, sizes: np.ndarray, *, mean: bool = False) -> np.ndarray:
    """Upper bound of Σevents/Σsizes of every row, [sets, records] → [sets]."""
    return worst_kind((events,), sizes, lambda e, d: _upper_share(e, d, mean))


def _upper_share(events: np.ndarray, sizes: np.ndarray, mean: bool) -> np.ndarray:
    """The same for those with a size; `t` has the degrees of freedom of all."""
    records = (sizes > 0).sum(1)
    n = sizes.sum(1)
    p = events.sum(1) / n
    residual = events - p[:, None] * sizes
    variance = records / np.maximum(records - 1, 1) * (residual**2).sum(1) / n**2
    spread = p * (1 - p)
    deff = np.where(spread > 0, variance * (n - 1) / np.where(spread > 0, spread, 1), 1.0)
    deff = deff if mean else np.maximum(1.0, deff)
    lump = lump_of(events, sizes)
    n_s = n / lump * (Z / stdtrit(sizes.shape[1] - 1, LEVEL)) ** 2
    v = spread * deff / lump
    x = (1 - np.sqrt(np.maximum(0, 1 - 4 * v))) / 2
    successes, failures = x * n_s, n_s - x * n_s
    return np.minimum(1, p - x + betaincinv(successes + 1, np.maximum(failures, 1e-12), LEVEL))


def lump_of(events: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    whole = (sizes**3).sum(1) / (sizes**2).sum(1)
    return ((events**3).sum(1) + whole**3) / ((events**2).sum(1) + whole**2)


def lower_difference(gained: np.ndarray, lost: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Lower bound of (Σgained − Σlost)/Σsizes of every row."""
    return -worst_kind((lost, gained), sizes, lambda lo, ga, d: -_lower_difference(ga, lo, d))


def _lower_difference(gained: np.ndarray, lost: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    records = (sizes > 0).sum(1)
    n = sizes.sum(1)
    net = gained - lost
    delta, psi = net.sum(1) / n, (gained + lost).sum(1) / n
    residual = net - delta[:, None] * sizes
    variance = records / np.maximum(records - 1, 1) * (residual**2).sum(1) / n**2
    spread = psi - delta**2
    deff = np.where(spread > 0, variance * (n - 1) / np.where(spread > 0, spread, 1), 1.0)
    lump = lump_of(np.maximum(-net, 0), sizes)
    part = np.minimum(np.maximum(1.0, deff) / lump, 1 / np.maximum(psi, 1e-300))
    n_s = n / lump * (Z / stdtrit(sizes.shape[1] - 1, LEVEL)) ** 2
    b, c = gained.sum(1) / n * part * n_s, lost.sum(1) / n * part * n_s
    return (1 - part) * delta + tango_lower(b, c, n_s)


def tango_lower(b: np.ndarray, c: np.ndarray, n: np.ndarray) -> np.ndarray:
    """The δ below (b − c)/n at which Tango's score statistic is z, by bisection."""
    low, high = -np.ones_like(n), (b - c) / n
    for _ in range(60):
        delta = (low + high) / 2
        # the lost share q at its restricted maximum of likelihood: 2n·q² + B·q − c·δ'·(1 − δ') = 0,
        # for the difference written as lost − gained, δ' = −δ
        d = -delta
        linear = -(b + c) + (2 * n - c + b) * d
        q = (np.sqrt(np.maximum(0, linear**2 + 8 * n * b * d * (1 - d))) - linear) / (4 * n)
        scale = np.sqrt(np.maximum(n * (2 * q + d * (1 - d)), 1e-300))
        beyond = (c - b - n * d) / scale > -Z
        high = np.where(beyond, delta, high)
        low = np.where(beyond, low, delta)
    return np.where((b == 0) & (c == 0), -(Z**2) / (n + Z**2), low)


@dataclass(frozen=True)
class Fault:
    """One way to be bad, exactly at one limit of the gate file.

    Attributes:
        name: Shown in the table.
        sizes: (generator, [sets, records]) → questions.
        rates: (generator, sizes, level) → flip probability of a question, per record.
        limit: `confident` (flips at 2%), `accuracy` (losses at 2%) or `tv` (distance at 0.05).
    """

    name: str
    sizes: Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
    rates: Callable[[np.random.Generator, np.ndarray, float], np.ndarray]
    limit: str


def whole(rng: np.random.Generator, d: np.ndarray, level: float) -> np.ndarray:
    return np.where(rng.random(d.shape) < level, 1.0, 0.0)


def most_of(rng: np.random.Generator, d: np.ndarray, level: float) -> np.ndarray:
    """Broken to four fifths, the other half of the flips spread over all records."""
    return np.where(rng.random(d.shape) < level * 0.5 / 0.8, 0.8, level / 2)


def skewed(rng: np.random.Generator, d: np.ndarray, level: float) -> np.ndarray:
    """A power law of rates: most records none, few very many."""
    return np.minimum(1.0, level * 0.25 * rng.random(d.shape) ** -0.75 * 1.0)


def long_ones(rng: np.random.Generator, d: np.ndarray, level: float) -> np.ndarray:
    """Records of more than eight questions break, others do not."""
    return np.where((d > 8) & (rng.random(d.shape) < 4 * level), 1.0, level / 4)


def two_kinds(rng: np.random.Generator, d: np.ndarray, level: float) -> np.ndarray:
    """A tenth of the records at ten times the rate of the others."""
    return np.where(rng.random(d.shape) < 0.1, 5.0, 0.5) * level


def chats(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Poisson lengths, 1 at least."""
    return 1 + rng.poisson(6, shape)


def forms(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Two kinds of record: 2 or 24 questions."""
    return np.where(rng.random(shape) < 0.2, 24, 2)


def tickets(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Negative binomial lengths."""
    return 1 + rng.negative_binomial(1, 0.2, shape)


def tail(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """A power law of lengths, exponent 2.5: no largest one is typical."""
    return np.minimum(2 * rng.random(shape) ** -0.4, 1000).astype(int)


def fixed(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return np.full(shape, 25)


def single(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return np.full(shape, 1)


FAULTS = tuple(
    Fault(f"{rates.__name__.replace('_', ' ')}, {sizes.__name__}, {limit}", sizes, rates, limit)
    for rates in (whole, most_of, skewed, long_ones, two_kinds)
    for sizes in (chats, forms, tickets, fixed)
    for limit in ("confident", "accuracy", "tv")
    if not (rates is long_ones and sizes is fixed)
)


def calibrate(fault: Fault, target: float) -> float:
    """The level at which flips over questions is the target, by bisection on a large population."""
    low, high = target / 50, 0.8
    for _ in range(30):
        level = np.sqrt(low * high)
        rng = np.random.default_rng(5)
        d = fault.sizes(rng, (1, 400_000))
        share = float((d * np.minimum(1, fault.rates(rng, d, level))).sum() / d.sum())
        low, high = (level, high) if share < target else (low, level)
    return float(np.sqrt(low * high))


def verdicts(fault: Fault, level: float, records: int, sets: int) -> tuple[float, float]:
    """False passes and sets in which anything could be judged, in %."""
    rng = np.random.default_rng([records, 77])
    d = fault.sizes(rng, (sets, records)).astype(float)
    rates = np.minimum(1, fault.rates(rng, d, level))
    events = rng.binomial(d.astype(int), rates).astype(float)
    nothing = np.zeros_like(d)
    flips = events if fault.limit == "confident" else nothing
    lost = events if fault.limit == "accuracy" else nothing
    moved = events * rng.uniform(0.9, 1.0, d.shape) if fault.limit == "tv" else nothing
    if fault.limit == "accuracy":
        # a lost answer is a flip; half as many questions are confident, and none of these flips
        flips, base = nothing, np.maximum(1, np.round(d / 2))
    else:
        base = d
    passes = (
        (lower_difference(nothing, lost, d) >= -MARGIN)
        & (1 - upper_share(flips, base) >= FLOOR)
        & (upper_share(moved, d, mean=True) <= CEILING)
    )
    enough = (d.sum(1) >= LEAST) & (d.sum(1) ** 2 / (d**2).sum(1) >= 10)
    return 100 * float((passes & enough).mean()), 100 * float(enough.mean())


def good(sizes: Callable[..., np.ndarray], records: int, sets: int) -> float:
    """How often a good candidate passes, in %: 0.3% independent flips, all lost, distance 0.013."""
    rng = np.random.default_rng([records, 78])
    d = sizes(rng, (sets, records)).astype(float)
    flips = rng.binomial(d.astype(int), GOOD).astype(float)
    passes = (
        (lower_difference(np.zeros_like(d), flips, d) >= -MARGIN)
        & (1 - upper_share(flips, d) >= FLOOR)
        & (upper_share(flips + 0.01 * (d - flips), d, mean=True) <= CEILING)
        & (d.sum(1) >= LEAST)
        & (d.sum(1) ** 2 / (d**2).sum(1) >= 10)
    )
    return 100 * float(passes.mean())


def check(sets: int = 300) -> float:
    """The largest difference between these bounds and the package's, on random sets."""
    from clefq.parity.statistics.intervals import bounded_mean, korn_graubard, paired_tango, ratio

    rng = np.random.default_rng(1)
    worst = 0.0
    for turn in range(sets):
        kind = (chats, tickets, tail)[turn % 3]
        d = kind(rng, (1, int(rng.integers(20, 200)))).astype(float)
        if d.sum() ** 2 / (d**2).sum() < 10:
            continue
        flips = rng.binomial(d.astype(int), rng.beta(0.1, 2, d.shape)).astype(float)
        gained = rng.binomial((d - flips).astype(int), 0.03).astype(float)
        mine = (upper_share(flips, d)[0], lower_difference(gained, flips, d)[0])
        mean = upper_share(flips * 0.7, d, mean=True)[0]
        share = korn_graubard(ratio(d[0] - flips[0], d[0]))[0]
        paired = paired_tango(ratio(gained[0], d[0]), ratio(flips[0], d[0]))[0]
        bounded = bounded_mean(ratio(flips[0] * 0.7, d[0]), 1.0)
        assert share is not None and paired is not None and bounded is not None
        pairs = ((mine[0], 1 - share), (mine[1], paired), (mean, bounded))
        worst = max(worst, *(abs(a - b) for a, b in pairs))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulations", type=int, default=4000)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        print(f"largest difference from the package: {check():.1e}")
        return
    for sizes in (chats, forms, tickets, fixed, single):
        cells = [good(sizes, r, options.simulations // 4) for r in RECORDS]
        print(f"| good, {sizes.__name__} | " + " | ".join(f"{c:.0f}" for c in cells) + " |")
    print("| fault, sizes, limit | " + " | ".join(f"{r:,}" for r in RECORDS) + " |")
    print("|---|" + "---:|" * len(RECORDS))
    for fault in FAULTS:
        target = CEILING / 0.95 if fault.limit == "tv" else MARGIN
        level = calibrate(fault, target)
        cells = [verdicts(fault, level, r, options.simulations)[0] for r in RECORDS]
        print(f"| {fault.name} | " + " | ".join(f"{c:.1f}" for c in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
