"""How many prompt tokens an image takes, from the checkpoint's processor settings alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from clefq.errors import CheckpointError, InputError

if TYPE_CHECKING:
    from PIL.Image import Image


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

    def size_tokens(self, image: Image) -> int:
        """Pad tokens of an image.

        Raises:
            InputError: The processor does not take an image of this shape.
        """
        try:
            patches = self._processor.get_number_of_image_patches(image.height, image.width, {})
        except ValueError as error:
            size = f"{image.width}×{image.height} pixels"
            raise InputError(f"an image of {size} cannot be used: {error}.") from error
        return int(patches) // int(self._processor.merge_size) ** 2


def _processor_class() -> Any:
    """The processor that needs no torchvision; its name changed within transformers 5."""
    import transformers

    name = "Qwen2VLImageProcessorPil"
    return getattr(transformers, name, None) or transformers.Qwen2VLImageProcessor
