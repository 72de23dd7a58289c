"""Images in every form callers have them in."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest

from clefq.errors import InputError
from clefq.nano import WEIGHTS
from clefq.serving.image_tokens import ImageTokens
from clefq.serving.media import contract_placeholders, load_image

Image = pytest.importorskip("PIL.Image")


def png(color: tuple[int, int, int] = (200, 10, 30)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 24), color).save(buffer, "PNG")
    return buffer.getvalue()


def test_all_forms_give_the_same_pixels(tmp_path: Path) -> None:
    data = png()
    (tmp_path / "a.png").write_bytes(data)
    text = base64.b64encode(data).decode()
    forms: list[Any] = [
        data,
        Image.open(io.BytesIO(data)),
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        text,
        f"data:image/png;base64,{text}",
    ]
    loaded = [load_image(form) for form in forms] + [load_image("a.png", tmp_path)]
    assert {image.tobytes() for image in loaded} == {loaded[0].tobytes()}
    assert all(image.mode == "RGB" and image.size == (40, 24) for image in loaded)


def test_a_turned_photograph_is_set_upright() -> None:
    image = Image.new("RGB", (40, 24))
    exif = image.getexif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", exif=exif)
    assert load_image(buffer.getvalue()).size == (24, 40)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("https://example.org/a.png", "remote URL"),
        ("missing.png", "cannot be read"),
        (b"no image", "cannot be read"),
        ("data:image/png;base64,@@", "base64"),
        (17, "int"),
    ],
)
def test_what_is_no_image(source: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_image(source)


def test_placeholders_shrink_to_one_pad_per_image() -> None:
    # 1 opens, 2 closes, 7 and 8 are pads; the 7s outside of the span stay
    ids = [7, 7, 1, 7, 7, 7, 2, 1, 7, 2, 1, 8, 8, 2, 9, 7, 7]
    assert contract_placeholders(ids, (2, 15), (7, 8)) == [7, 7, 1, 7, 2, 1, 7, 2, 1, 8, 2, 9, 7, 7]


@pytest.mark.parametrize(
    "size", [(64, 64), (40, 300), (300, 40), (1000, 700), (33, 65), (1, 150), (2500, 1700)]
)
def test_an_image_is_resized_as_the_processor_would(size: tuple[int, int]) -> None:
    """Resized before it travels, it gives the very pixels that the processor makes of it."""
    tokens = ImageTokens(WEIGHTS)
    image = Image.effect_noise(size, 80).convert("RGB").rotate(7)
    fitted = tokens.fit(image)
    assert fitted.size == tokens.fitted_size(size) == tokens.fitted_size(fitted.size)
    assert tokens.tokens(size) == tokens.tokens(fitted.size)
    assert tokens.tokens(size) == tokens.tokens((size[1], size[0]))
    expected, made = (tokens._processor([one], return_tensors="np") for one in (image, fitted))
    assert (expected["image_grid_thw"] == made["image_grid_thw"]).all()
    assert (expected["pixel_values"] == made["pixel_values"]).all()
