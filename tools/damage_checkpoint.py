"""Makes a damaged copy of a quantized checkpoint, to see that a gate fails.

    python tools/damage_checkpoint.py CHECKPOINT OUT

The packed weights of every MLP projection are replaced by random bytes. The copy loads and
answers, wrongly: what a bug in a packing routine would give. Only FP4 weights (NVFP4, NVFP4A16)
can be damaged so, because there every byte is two valid codes.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

SUFFIX = ".weight_packed"


def main(source: Path, out: Path) -> None:
    """Copies and damages."""
    shutil.copytree(source, out)
    count = sum(_damage(path) for path in sorted(out.glob("*.safetensors")))
    if count == 0:
        raise SystemExit(f"{source} holds no FP4 weights of an MLP")
    print(f"{out}: {count} weights replaced by random bytes")


def _damage(path: Path) -> int:
    """Overwrites the weights of one safetensors file; gives their number."""
    source = random.Random(path.name)
    count = 0
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        for name, entry in header.items():
            if not name.endswith(SUFFIX) or ".mlp." not in name:
                continue
            start, end = entry["data_offsets"]
            file.seek(8 + length + start)
            file.write(source.randbytes(end - start))
            count += 1
    return count


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("use: python tools/damage_checkpoint.py CHECKPOINT OUT")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
