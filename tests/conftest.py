"""Settings of the whole test run."""

import os

# Read when torch loads: threads that spin while they wait stall a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
