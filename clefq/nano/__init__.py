"""The bundled miniature: its weights and sets, and the generator of its tasks.

What built and trained it is `tools/nano` in the repository.
"""

from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"
SETS = Path(__file__).parent / "sets"
