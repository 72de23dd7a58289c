"""Probabilities of records under tensor parallelism, as JSON; started by the test."""

import json
import sys
from pathlib import Path

from clefq.clef.records import iter_records
from clefq.serving import Clef, ServeSettings


def main() -> None:
    folder, records, ranks = sys.argv[1:]
    settings = ServeSettings(
        tensor_parallel=int(ranks), max_images=0, max_length=4096, step_tokens=1024
    )
    with Clef(folder, settings) as clef:
        print(json.dumps(clef.probabilities(list(iter_records(Path(records))))))


if __name__ == "__main__":  # the ranks are spawned
    main()
