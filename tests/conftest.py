"""Settings of the whole test run."""

import contextlib
import os

# Read when torch loads: threads that spin while they wait stall a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

with contextlib.suppress(ImportError):  # the serving environment has none
    from hypothesis import settings

    # a busy machine is no failure
    settings.register_profile("clefq", deadline=None)
    settings.load_profile("clefq")
