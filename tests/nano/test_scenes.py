"""Images: our PNG writer against PIL, our patches against the image processor."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from clefq.clef.tokenizer import PromptTokenizer
from clefq.nano import WEIGHTS
from clefq.nano.lexicon import SHADES, SHAPES
from clefq.nano.scenes import CELL, Scene, pixels, png
from clefq.nano.tasks import RecordKey, record_of, scene_of
from tools.nano.batches import encode_example, make_batch, patchify

KEYS = [RecordKey("scenes", "train", 1, index) for index in range(12)]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.record_id)
def test_pil_reads_the_same_pixels(key: RecordKey) -> None:
    image = pixels(scene_of(key))
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png(image)))), image)


def test_patches_are_those_of_the_image_processor() -> None:
    from transformers import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil.from_pretrained(str(WEIGHTS))
    for key in KEYS:
        scene = scene_of(key)
        image = pixels(scene)
        theirs = processor(images=[Image.fromarray(image)], return_tensors="pt")
        assert theirs["image_grid_thw"].tolist() == [[1, scene.rows * 2, scene.columns * 2]]
        # one level of 255 is 0.0078
        np.testing.assert_allclose(patchify(image), theirs["pixel_values"], atol=1e-5)


def test_positions_are_those_of_the_model(tokenizer: PromptTokenizer) -> None:
    import torch
    from transformers import Qwen3_5ForConditionalGeneration

    from tools.nano.build import nano_config, token_ids_of

    config = nano_config(token_ids_of(WEIGHTS / "tokenizer.json"))
    with torch.device("meta"):
        model = Qwen3_5ForConditionalGeneration(config)
    examples = [encode_example(tokenizer, record_of(key), scene_of(key)) for key in KEYS]
    batch = make_batch(examples, tokenizer.special.im_end)
    assert batch.media is not None
    kinds = (batch.tokens == tokenizer.special.image_pad).int()
    theirs, _ = model.model.get_rope_index(
        batch.tokens, image_grid_thw=batch.media.grids, mm_token_type_ids=kinds
    )
    torch.testing.assert_close(theirs, batch.media.positions)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_shows_its_colour_within_its_cell(shape: str) -> None:
    scene = Scene(2, 2, (228, 228, 220), ((1, 0, shape, "red"),), noise=0, seed=0)
    marked = (pixels(scene) == SHADES["red"]).all(-1)
    assert 100 < marked.sum() < CELL * CELL / 2
    assert marked[CELL:, :CELL].sum() == marked.sum()
