"""How many prompt tokens an image takes, from the checkpoint's processor settings alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from clefq.errors import CheckpointError

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
        from transformers import Qwen2VLImageProcessorPil

        try:
            self._processor: Any = Qwen2VLImageProcessorPil.from_pretrained(str(folder))
        except OSError as error:
            raise CheckpointError(
                f"{folder} has no processor_config.json, which images need.",
                fix="copy the processor files of the release into the folder.",
            ) from error

    def size_tokens(self, image: Image) -> int:
        """Pad tokens of an image."""
        patches = self._processor.get_number_of_image_patches(image.height, image.width, {})
        return int(patches) // int(self._processor.merge_size) ** 2
