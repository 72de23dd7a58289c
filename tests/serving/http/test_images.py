"""Images: what is refused is refused before a pixel is decoded."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

import pytest
from PIL import Image

from clefq.serving.http import images as module
from clefq.serving.http.admission import Admission
from clefq.serving.http.errors import ApiError
from clefq.serving.http.images import load_picture, read_pictures
from clefq.serving.http.settings import Limits


def picture(width: int = 40, height: int = 30, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.radial_gradient("L").resize((width, height)).convert("RGB").save(file, form, **options)
    return file.getvalue()


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def read_images(sources: Any, limits: Limits) -> list[Image.Image]:
    """As the service does, without resizing."""
    ticket = Admission(1, 1 << 40).enter()
    pictures = read_pictures(sources, limits)
    return [load_picture(one, lambda image: image, ticket) for one in pictures]


def refusal(*sources: str, limits: Limits | None = None) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_images(sources, limits or Limits())
    return caught.value


@pytest.fixture
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(module, "load_image", fail)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_base64_and_data_urls_give_the_same_pixels(form: str) -> None:
    data = picture(form=form)
    wrapped = base64.encodebytes(data).decode()
    url = f"data:image/{form.lower()};base64,{text(data)}"
    read = read_images([text(data), wrapped, url, url.replace("data:", "DATA:")], Limits())
    expected = Image.open(io.BytesIO(data)).convert("RGB")
    for image in read:
        assert image.mode == "RGB"
        assert image.tobytes() == expected.tobytes()


def test_images_are_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (image,) = read_images([text(picture(40, 30, "JPEG", exif=exif.tobytes()))], Limits())
    assert image.size == (30, 40)


@pytest.mark.parametrize(
    "source",
    ["http://host/a.png", "https://host/a.png", "HTTPS://HOST", "file:///etc/passwd", "ftp://x/y"],
)
def test_remote_urls_are_refused(source: str) -> None:
    error = refusal(text(picture()), source)
    assert error.kind.type == "unsupported"
    assert error.faults[0].path == ("images", 1)


@pytest.mark.parametrize(
    "source",
    [
        "/etc/passwd", "a.png", "data:text/html;base64,AAAA", "data:image/png,AAAA", "data:,",
        "data:image/png;base64,", "!!!!", "AAA", "AAAA", text(b"GIF89a" + bytes(40)),
        text(b"\x89PNG\r\n\x1a\n"), text(b"%PDF-1.4 nothing"), text(b"RIFF\x10\0\0\0WEBPVP8 "),
        text(b"\xff\xd8\xff\xe0"), "\u0661" * 8, "data:image/svg+xml;base64," + text(b"<svg/>"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("no_decoding")
def test_what_is_no_image_is_refused_by_its_header(source: str) -> None:
    error = refusal(source)
    assert error.kind.type == "invalid_request"
    assert error.faults[0].path == ("images", 0)


@pytest.mark.usefixtures("no_decoding")
def test_no_file_of_the_server_is_read(tmp_path: Any) -> None:
    path = tmp_path / "secret.png"
    path.write_bytes(picture())
    assert refusal(str(path)).faults[0].message == "not valid base64"


def png_header(width: int, height: int) -> bytes:
    """A PNG that says it is huge, in a few bytes."""

    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    start = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(100_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", start) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def webp_header(width: int, height: int) -> bytes:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + (10).to_bytes(4, "little") + bytes(4) + size
    return b"RIFF" + len(body).to_bytes(4, "little") + body


@pytest.mark.usefixtures("no_decoding")
@pytest.mark.parametrize("make", [png_header, webp_header])
def test_decompression_bombs_are_refused_by_their_header(make: Any) -> None:
    error = refusal(text(make(16_000, 16_000)))
    assert "16000×16000 pixels" in error.faults[0].message
    edge = Limits(max_image_pixels=1200)
    assert refusal(text(picture(40, 31)), limits=edge)


def test_a_png_bomb_beyond_pillows_own_limit_raises_no_warning() -> None:
    for side in (10_000, 30_000, 2**31 - 1):
        assert refusal(text(png_header(side, side))).kind.type == "invalid_request"


def test_webp_sizes_are_read_from_all_three_forms() -> None:
    for options in ({"lossless": True}, {"quality": 50}, {"quality": 50, "exif": b"Exif\0\0MM\0*"}):
        data = picture(70, 50, "WEBP", **options)
        assert module._early_size(data) == (70, 50)


@pytest.mark.usefixtures("no_decoding")
def test_bytes_have_limits() -> None:
    data = picture()
    one = Limits(max_image_bytes=len(data) - 1)
    error = refusal(text(data), limits=one)
    assert (error.kind.status, error.faults[0].path) == (413, ("images", 0))
    # far too large: refused by its length, before base64 is undone
    assert refusal("A" * 100_000, limits=Limits(max_image_bytes=10)).kind.status == 413
    both = Limits(max_images_bytes=2 * len(data) - 1)
    error = refusal(text(data), text(data), limits=both)
    assert (error.kind.status, error.faults[0].path) == (413, ("images",))


@pytest.mark.usefixtures("no_decoding")
def test_animations_and_endless_scans_are_refused() -> None:
    frames = [Image.new("RGB", (8, 8), (i, 0, 0)) for i in range(0, 200, 50)]
    file = io.BytesIO()
    frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:], duration=50)
    assert "animated" in refusal(text(file.getvalue())).faults[0].message
    scans = picture(form="JPEG") + b"\xff\xda" * 65
    assert "scans" in refusal(text(scans)).faults[0].message


def test_damaged_images_are_the_callers_fault() -> None:
    for form in ("PNG", "JPEG", "WEBP"):
        data = picture(200, 200, form)
        error = refusal(text(data), text(data[: len(data) * 2 // 3]))
        assert error.kind.type == "invalid_request"
        assert error.faults[0].path == ("images", 1)


def test_memory_is_charged_before_decoding_and_given_back_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admission = Admission(4, 1 << 40)
    ticket = admission.enter()
    held: list[int] = []
    load = module.load_image

    def spy(data: bytes) -> Image.Image:
        held.append(ticket.held)
        return load(data)

    monkeypatch.setattr(module, "load_image", spy)
    (found,) = read_pictures([text(picture(100, 80))], Limits())
    image = load_picture(found, lambda image: image.resize((32, 32)), ticket)
    assert image.size == (32, 32)
    assert held == [12 * 8000]
    assert ticket.held == 7 * 32 * 32
    full = Admission(4, 50_000)
    other, crowded = full.enter(), full.enter()
    other.charge(10)
    with pytest.raises(ApiError) as caught:
        load_picture(found, lambda image: image, crowded)
    assert caught.value.kind.status == 429
    assert (len(held), crowded.held) == (1, 0)


def test_the_pixels_of_a_request_are_limited_together(no_decoding: None) -> None:
    limits = Limits(max_images_pixels=3000)
    message = refusal(text(picture()), text(picture()), text(picture()), limits=limits)
    assert message.faults[0].message == "the images have 3600 pixels together, at most 3000"
