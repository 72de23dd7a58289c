"""The same bits on another processor: vector units of NumPy off, another BLAS kernel."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from clefq.parity.statistics.details import describe
from clefq.parity.statistics.pair_statistics import StatisticsSpec, compare
from clefq.parity.statistics.pairs import join
from tests.parity.factory import Design, make_pair


def fingerprint() -> str:
    """Hash of every figure of one comparison."""
    pairs = join(*make_pair(Design(records=60, seed=1)))
    statistics = compare(pairs, StatisticsSpec(resamples=500))
    scopes = {**statistics.slices, "overall": statistics.metrics}
    document = {
        "figures": {s: {n: m.to_json() for n, m in v.items()} for s, v in scopes.items()},
        "percentiles": describe(statistics)["percentiles"],
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def test_processor_and_blas_kernel_never_change_a_bit() -> None:
    other = {
        # names of NumPy 2.4, then of earlier ones; unknown ones only warn
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX2 FMA3 AVX512F AVX512_SKX",
        "OPENBLAS_CORETYPE": "Prescott",
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from tests.parity.statistics import test_determinism as t; print(t.fingerprint())",
        ],
        env={**os.environ, **other},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[-1] == fingerprint()
