"""One of several vLLM engines: `python -m clefq.engines.vllm_copy`, started by `vllm_copies`.

Its devices are in its environment. The first line on stdin says what to load; every further one
is a window of records, answered by a line of results on stdout. It ends with its stdin.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clefq.clef.records import parse_record
from clefq.engines.base import EngineSpec
from clefq.engines.child import error_to_json, take_stdout
from clefq.engines.journal import result_to_json
from clefq.errors import ClefqError


def main() -> int:
    """Runs until stdin ends; gives the exit code."""
    answers = take_stdout()

    def answer(value: Any) -> None:
        print(json.dumps(value), file=answers, flush=True)

    job = json.loads(sys.stdin.readline())
    try:
        _serve(job, answer)
    except ClefqError as error:
        answer(error_to_json(error))
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 130
    return 0


def _serve(job: Any, answer: Any) -> None:
    from clefq.engines.vllm_engine import VllmEngine

    engine = VllmEngine(Path(job["folder"]), EngineSpec(**job["spec"]))
    try:
        answer({"info": asdict(engine.info), "window": engine.window})
        for line in sys.stdin:
            work = json.loads(line)
            records = [parse_record(value, "a window") for value in work["records"]]
            root = None if work["root"] is None else Path(work["root"])
            groups = engine.predict(records, root)
            answer({"results": [result_to_json(one) for group in groups for one in group]})
    finally:
        engine.close()


if __name__ == "__main__":
    sys.exit(main())
