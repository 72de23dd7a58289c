"""Run as a script: quantizes in forked children that are killed, then lets one finish.

Arguments: source, output, scheme, method, calibration set, seconds until each kill. A clean
interpreter forks; nothing else runs in it, so forking is safe. Prints, per kill, whether the
output folder existed while it was not finished.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    source, out, scheme, method, calibration, *delays = sys.argv[1:]

    from clefq.console import Console
    from clefq.quantize.plan import make_plan
    from clefq.quantize.quiet import quiet_libraries
    from clefq.quantize.recipes import bundled_recipe
    from clefq.quantize.run import QuantizeSpec, quantize

    with quiet_libraries():  # everything that is imported later anyway
        make_plan(Path(source), bundled_recipe(scheme, 4))
    spec = QuantizeSpec(
        source, scheme, calibration=Path(calibration), method=method, max_shard_bytes=400_000
    )
    for delay in delays:
        child = os.fork()
        if child == 0:
            quantize(spec, Path(out), Console(quiet=True))
            os._exit(0)
        time.sleep(float(delay))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        whole = (Path(out) / "clefq.json").is_file()
        print("whole" if whole else "half" if Path(out).exists() else "absent", flush=True)
        if whole:
            return
    quantize(spec, Path(out), Console(quiet=True))


if __name__ == "__main__":
    main()
