"""Images of a record: token counts from their sizes, pixels when their batch runs.

Uses the PIL image processor of transformers with the checkpoint's own settings: it needs no
torchvision and gives the pixel values of the release's processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clefq.errors import CheckpointError, InputError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor


# where a checkpoint keeps the settings of its image processor
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")


@dataclass(frozen=True, slots=True)
class ImageBatch:
    """Images of a batch, in prompt order.

    Attributes:
        pixels: float32 [patches of all images, patch dimension].
        grids: int64 [images, 3]: time, height and width in patches.
    """

    pixels: Tensor
    grids: Tensor


class ImageReader:
    """Reads images as the checkpoint's processor settings say.

    Args:
        folder: The checkpoint, for `processor_config.json` or `preprocessor_config.json`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded: Any = None

    def token_count(self, path: Path) -> int:
        """Pad tokens that the image takes in the prompt.

        Raises:
            InputError: No such file, or not an image.
        """
        image = _open_image(path)
        processor = self._processor()
        try:
            patches = processor.get_number_of_image_patches(image.height, image.width, {})
        except ValueError as error:
            raise InputError(f"image {path.name}: {error}.") from error
        return int(patches) // int(processor.merge_size) ** 2

    def read(self, paths: Sequence[Path]) -> ImageBatch:
        """Pixel values of images, in the given order.

        Raises:
            InputError: No such file, or not an image.
        """
        images = [_open_image(path) for path in paths]
        features = self._processor()(images=images, return_tensors="pt")
        return ImageBatch(features["pixel_values"], features["image_grid_thw"])

    def _processor(self) -> Any:
        if self._loaded is None:
            from transformers import Qwen2VLImageProcessorPil

            try:
                self._loaded = Qwen2VLImageProcessorPil.from_pretrained(str(self._folder))
            except OSError as error:
                raise CheckpointError(
                    f"{self._folder} has no processor_config.json, which images need.",
                    fix="copy the processor files of the release into the folder.",
                ) from error
        return self._loaded


def _open_image(path: Path) -> Image:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            image.load()
            upright = ImageOps.exif_transpose(image)
            return upright.convert("RGB")
    except FileNotFoundError as error:
        raise InputError(f"no image {path}.") from error
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise InputError(f"image {path.name} cannot be read: {error}.") from error
