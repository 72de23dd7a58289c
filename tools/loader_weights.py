"""Compares the weights that transformers dequantizes with those that clefq's simulation decodes.

    python tools/loader_weights.py CHECKPOINT…

For another version of transformers, install it beside:

    pip install --no-deps --target other transformers==5.15.0
    PYTHONPATH=other python tools/loader_weights.py CHECKPOINT…

Fails where a single weight of a single module differs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file

from clefq.clef.checkpoint import open_checkpoint
from clefq.engines.quantized import find_layers, read_layer, served_scales


def decoded(folder: Path) -> dict[str, torch.Tensor]:
    """Module to its weight in BF16, as the simulation decodes it."""
    layers = find_layers(open_checkpoint(folder))
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        tensors |= load_file(path)
    scales, _ = served_scales(layers, tensors.__getitem__)
    found = {}
    for module, kind in layers.items():
        weight = read_layer(module, kind, tensors.__getitem__, scales).weight
        found[module] = (weight.values() * weight.scale().reshape(-1, 1)).to(torch.bfloat16)
    return found


def loaded(folder: Path) -> torch.nn.Module:
    """The backbone as a model card loads it: `from_pretrained` with `dequantize=True`."""
    from transformers import CompressedTensorsConfig, Qwen3_5ForConditionalGeneration

    return Qwen3_5ForConditionalGeneration.from_pretrained(
        folder,
        dtype=torch.bfloat16,
        quantization_config=CompressedTensorsConfig(dequantize=True),
    )


def differing(folder: Path) -> tuple[list[str], int]:
    """Modules whose weights differ, and how many modules were compared."""
    model, ours = loaded(folder), decoded(folder)
    return [m for m, w in ours.items() if not w.equal(model.get_submodule(m).weight)], len(ours)


def main() -> None:
    """The command line."""
    import compressed_tensors
    import transformers

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoints", nargs="+", type=Path, metavar="CHECKPOINT")
    print(f"transformers {transformers.__version__}", end=", ")
    print(f"compressed-tensors {compressed_tensors.__version__}")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failed = False
    for folder in parser.parse_args().checkpoints:
        wrong, count = differing(folder)
        failed = failed or bool(wrong)
        print(f"{folder.name}: {count - len(wrong)} of {count} modules equal {wrong[:1] or ''}")
    raise SystemExit(int(failed))


if __name__ == "__main__":
    main()
