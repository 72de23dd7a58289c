"""What a model takes of each calibration prompt, one prompt at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clefq.clef.images import ImageReader


def calibration_arguments(prompts: list[dict[str, Any]], source: str) -> dict[str, Any]:
    """Oneshot's data arguments: the prompts as they are, one by one, in order."""
    from torch.utils.data import DataLoader
    from transformers import AutoTokenizer

    rows: Any = _Rows(prompts, source)
    data = {
        "dataset": DataLoader(rows, batch_size=None, shuffle=False),
        "num_calibration_samples": len(prompts),
        "shuffle_calibration_samples": False,
        "batch_size": 1,
        "processor": AutoTokenizer.from_pretrained(source),
    }
    if any(prompt["images"] for prompt in prompts):
        # the sequential pipeline traces one prompt and would run all others as that one:
        # with or without images
        data["pipeline"] = "basic"
    return data


class _Rows:
    """Model inputs of one prompt at a time; images are read when their turn comes."""

    def __init__(self, prompts: list[dict[str, Any]], source: str) -> None:
        from transformers import AutoConfig

        self._prompts = prompts
        self._images = ImageReader(Path(source))
        self._pad = AutoConfig.from_pretrained(source).image_token_id

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        import torch

        prompt = self._prompts[index]
        ids = torch.tensor([prompt["ids"]])
        row = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if prompt["images"]:
            batch = self._images.read([Path(path) for path in prompt["images"]])
            row["pixel_values"] = batch.pixels
            row["image_grid_thw"] = batch.grids
            row["mm_token_type_ids"] = (ids == self._pad).long()
        return row
