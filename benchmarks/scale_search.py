"""What searching NVFP4 group scales costs the streaming method, in turns with amax / 6.

    python benchmarks/scale_search.py

One random 4096 × 4096 weight, one thread, CPU seconds per GB of BF16; the least of three turns.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch
from compressed_tensors.quantization import preset_name_to_scheme
from safetensors.torch import save_file

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from clefq.clef.formats import SEARCH_OBSERVER  # noqa: E402
from clefq.clef.weight_files import open_tensors  # noqa: E402
from clefq.quantize.layout import plan_units  # noqa: E402
from clefq.quantize.stream import Stream, stream_outputs  # noqa: E402
from clefq.quantize.tensors import ShardFile  # noqa: E402

MODULE = "model.language_model.layers.0.mlp.down_proj"
SIZE = 4096


def main() -> None:
    torch.set_num_threads(1)
    weight = (torch.randn(SIZE, SIZE) * 0.02).bfloat16()
    taken: dict[str, list[float]] = {"nearest": [], "search": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        save_file({f"{MODULE}.weight": weight}, folder / "model.safetensors")
        refs = open_tensors(folder)
        for _ in range(3):
            for name, observer in (("nearest", None), ("search", SEARCH_OBSERVER)):
                scheme = preset_name_to_scheme("NVFP4A16", ["Linear"])
                scheme.weights.observer = observer
                schemes = {MODULE: scheme}
                (unit,) = plan_units(refs, stream_outputs(schemes, refs, "BF16"))
                started = time.process_time()
                with ShardFile(folder / "out.safetensors", unit.tensors) as file:
                    Stream(schemes, refs, "BF16", "cpu").write_unit(file, unit)
                taken[name].append(time.process_time() - started)
    gigabytes = weight.numel() * 2 / 1e9
    best = {name: min(seconds) / gigabytes for name, seconds in taken.items()}
    for name, seconds in best.items():
        print(f"{name:8} {seconds:5.1f} CPU s/GB, {seconds / best['nearest']:.2f}×")


if __name__ == "__main__":
    main()
