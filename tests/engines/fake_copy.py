"""A vLLM engine's process without vLLM; FAKE_COPY (JSON) tells which window kills it."""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from clefq.clef.records import parse_record
from clefq.engines.base import EngineInfo, result_from_logits
from clefq.engines.journal import result_to_json

FAKE = json.loads(os.environ.get("FAKE_COPY", "{}"))


def logits(record_id: str, question: str, count: int) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(f"{record_id} {question}".encode())).normal(size=count)


def main() -> None:
    job = json.loads(sys.stdin.readline())
    assert job["spec"]["copies"] == 1
    if "error" in FAKE:
        reply = {"error": FAKE["error"], "fix": "less", "faults": [], "exit_code": 2}
        print(json.dumps(reply), flush=True)
        sys.exit(2)
    once = FAKE.get("mark")  # only the first process dies that finds no such file
    died = once is not None and Path(once).exists()
    again = FAKE.get("again", {}) if died else {}  # what is otherwise after that
    info = replace(EngineInfo("vllm", "9.9", "real", "bf16", "bfloat16", "fake"), **again)
    print(json.dumps({"result": {"info": asdict(info), "window": 4}}), flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        records = [parse_record(value, "x") for value in work["records"]]
        doomed = FAKE.get("die_on") in [record.id for record in records]
        if doomed and (once is None or not Path(once).exists()):
            if once is not None:
                Path(once).touch()
            sys.exit(9)
        # so that every copy gets some, and windows end out of order
        time.sleep(0.05 if int(os.environ["VLLM_CPU_OMP_THREADS_BIND"].split(",")[0]) else 0.02)
        results = [
            result_from_logits(
                record,
                {q.id: logits(record.id, q.id, len(q.option_ids)) for q in record.questions},
                os.getpid(),
            )
            for record in records
        ]
        print(json.dumps({"result": [result_to_json(one) for one in results]}), flush=True)


if __name__ == "__main__":
    main()
