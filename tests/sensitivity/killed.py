"""Run as a script, to be killed: a sweep without activations. Arguments: model, set, output."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    model, eval_set, out = map(Path, sys.argv[1:])
    from clefq.console import Console
    from clefq.sensitivity.cost import DEFAULT_SPEEDS
    from clefq.sensitivity.session import SweepSpec
    from clefq.sensitivity.workflow import SearchSpec, run_sensitivity
    from tests.sensitivity.conftest import ENGINE

    spec = SweepSpec(model, eval_set, None, ("fp8",), out, "tiny", engine=ENGINE)
    run_sensitivity(spec, SearchSpec(None, DEFAULT_SPEEDS, False, False), Console(quiet=True))


if __name__ == "__main__":
    main()
