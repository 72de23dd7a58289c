"""Settings of the whole test run."""

import contextlib
import os
import signal

# Read when torch loads: threads that spin while they wait stall a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell that runs tests in the background has Ctrl-C ignored; so would all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

with contextlib.suppress(ImportError):  # the serving environment has none
    from hypothesis import settings

    # a busy machine is no failure
    settings.register_profile("clefq", deadline=None)
    settings.load_profile("clefq")
