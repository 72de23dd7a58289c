"""One of several vLLM engines: `python -m clefq.engines.vllm_copy`, started by `vllm_copies`.

Its devices are in its environment. The first job says what to load; every further one is a
window of records, answered by their results. It ends with its stdin.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clefq.child import serve_parent
from clefq.clef.records import parse_record
from clefq.engines.base import EngineSpec
from clefq.engines.journal import result_to_json


def serve(job: Any, answer: Callable[[Any], None]) -> None:
    """Loads the model and runs windows until stdin ends."""
    from clefq.engines.vllm_engine import VllmEngine

    engine = VllmEngine(Path(job["folder"]), EngineSpec(**job["spec"]))
    try:
        answer({"info": asdict(engine.info), "window": engine.window})
        for line in sys.stdin:
            work = json.loads(line)
            records = [parse_record(value, "a window") for value in work["records"]]
            root = None if work["root"] is None else Path(work["root"])
            groups = engine.predict(records, root)
            answer([result_to_json(one) for group in groups for one in group])
    finally:
        engine.close()


if __name__ == "__main__":
    sys.exit(serve_parent(serve))
