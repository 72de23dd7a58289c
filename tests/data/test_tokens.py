"""Token counts: text by the prompt encoder, images by the processor's rule."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest

from clefq.clef.encoding import EncodeSpec, encode_record
from clefq.clef.records import Question, Record
from clefq.clef.tokenizer import PromptTokenizer
from clefq.data.tokens import ImageRule, PromptCounter, image_rule, image_size
from clefq.errors import DefinitionError
from clefq.nano import WEIGHTS

EXIF = b"Exif\0\0MM\0*\0\0\0\x08\0\0"
RECORD = Record("r", "c", "state", (Question("q", "noul"),))


def test_text_as_the_encoder_counts() -> None:
    expected = encode_record(PromptTokenizer.from_folder(WEIGHTS), RECORD, EncodeSpec())
    counter = PromptCounter(WEIGHTS)
    assert counter.count(RECORD, {}) == len(expected.token_ids)
    assert counter.name == "nano"
    assert len(counter.sha256) == 64


def test_videos_cannot_be_counted() -> None:
    record = Record("r", "c", "s", (Question("q", "noul"),), videos=("videos/a.mp4",))
    with pytest.raises(DefinitionError, match="has a video"):
        PromptCounter(WEIGHTS).count(record, {"videos/a.mp4": Path("a.mp4")})


@pytest.mark.parametrize("limits", [(56 * 56, 28 * 28 * 1280), (65536, 16777216), (1024, 4096)])
def test_image_rule_is_the_processors(limits: tuple[int, int], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    low, high = limits
    config = {"patch_size": 16, "merge_size": 2, "image_processor_type": "Qwen2VLImageProcessor",
              "size": {"shortest_edge": low, "longest_edge": high}}  # fmt: skip
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    processor = transformers.Qwen2VLImageProcessorPil.from_pretrained(str(tmp_path))
    rule = image_rule(tmp_path)
    assert rule == ImageRule(32, low, high)
    rng = random.Random(0)
    for _ in range(300):
        width, height = rng.randint(4, 2000), rng.randint(4, 2000)
        if max(width, height) / min(width, height) > 200:
            with pytest.raises(DefinitionError, match="ratios up to 200"):
                rule.tokens(width, height)
            continue
        patches = processor.get_number_of_image_patches(height, width, {})
        assert rule.tokens(width, height) == patches // 4, (width, height)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
@pytest.mark.parametrize("size", [(1, 1), (300, 17), (33, 1000)])
def test_image_size_as_pillow_reads_it(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    variants: list[dict[str, object]] = [{}]
    if kind == "WEBP":
        variants = [
            {"lossless": True},
            {"lossless": False},
            {"exif": EXIF},
        ]
    if kind == "JPEG":
        variants = [{}, {"progressive": True}, {"comment": b"x" * 500}]
    for number, options in enumerate(variants):
        data = io.BytesIO()
        image.new("RGB", size, (10, 200, 30)).save(data, kind, **options)
        path = tmp_path / f"{number}.img"
        path.write_bytes(data.getvalue())
        assert image_size(path) == size


@pytest.mark.parametrize("data", [b"", b"text", b"\x89PNG\r\n\x1a\n123", b"\xff\xd8\xff\xe0\0"])
def test_what_is_no_image(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(data)
    with pytest.raises(DefinitionError, match=r"x\.png"):
        image_size(path)
    with pytest.raises(DefinitionError, match="no image"):
        image_size(tmp_path / "gone.png")


def test_images_need_a_processor(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="has no processor_config"):
        image_rule(tmp_path)
    (tmp_path / "processor_config.json").write_text('{"patch_size": 16, "merge_size": 2}')
    with pytest.raises(DefinitionError, match="has no min_pixels"):
        image_rule(tmp_path)
