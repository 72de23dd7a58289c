"""How many prompt tokens an image takes, from the checkpoint's processor settings alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clefq.errors import CheckpointError, InputError

if TYPE_CHECKING:
    from PIL.Image import Image


class ImageShapeError(InputError):
    """An image of a shape that the model cannot see.

    Args:
        error: What is wrong with it.
        number: Which image of its record, from 0.
    """

    def __init__(self, error: InputError, number: int) -> None:
        super().__init__(error.message)
        self.number = number


class ImageTokens:
    """Counts pad tokens as the checkpoint's image processor would make them.

    Args:
        folder: The checkpoint.

    Raises:
        CheckpointError: The folder has no processor settings.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._processor: Any = _processor_class().from_pretrained(str(folder))
        except OSError as error:
            raise CheckpointError(
                f"{folder} has no processor_config.json, which images need.",
                fix="copy the processor files of the release into the folder.",
            ) from error

    def tokens(self, size: tuple[int, int]) -> int:
        """Pad tokens of an image.

        Args:
            size: Width and height.

        Raises:
            InputError: The processor does not take an image of this shape.
        """
        width, height = size
        try:
            patches = self._processor.get_number_of_image_patches(height, width, {})
        except ValueError as error:
            shape = f"{width}×{height} pixels"
            raise InputError(f"an image of {shape} cannot be used: {error}.") from error
        return int(patches) // int(self._processor.merge_size) ** 2

    def fitted_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height to which the processor resizes an image; its own is never touched."""
        processor = self._processor
        resize = getattr(sys.modules[type(processor).__module__], "smart_resize")  # noqa: B009
        width, height = size
        rows, columns = resize(
            height,
            width,
            factor=processor.patch_size * processor.merge_size,
            min_pixels=processor.size["shortest_edge"],
            max_pixels=processor.size["longest_edge"],
        )
        return int(columns), int(rows)

    def fit(self, image: Image) -> Image:
        """An image as large as the model sees it, resized as the processor would.

        What follows is cheap: the processor leaves an image of this size alone.

        Args:
            image: Upright RGB, of a shape that `tokens` takes.
        """
        size = self.fitted_size(image.size)
        return image if size == image.size else image.resize(size, self._processor.resample)


def _processor_class() -> Any:
    """The processor that needs no torchvision; its name changed within transformers 5."""
    import transformers

    name = "Qwen2VLImageProcessorPil"
    return getattr(transformers, name, None) or transformers.Qwen2VLImageProcessor
