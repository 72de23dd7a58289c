"""Records into prompts for the engine: the one way, for the offline API and the server alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from clefq.clef.encoding import Encoded, EncodeSpec, PromptTokenizer, encode_record
from clefq.errors import InputError, RecordError
from clefq.serving.media import contract_placeholders
from clefq.serving.runtime import Prompt

if TYPE_CHECKING:
    from PIL.Image import Image

    from clefq.clef.records import Record
    from clefq.serving.image_tokens import ImageTokens


class PromptMaker:
    """Encodes records with a checkpoint's tokenizer; safe to share between threads.

    Args:
        folder: The checkpoint.
        max_images: Most images of a record that the engine was started for.

    Raises:
        CheckpointError: The tokenizer is missing or lacks a special token.
    """

    def __init__(self, folder: Path, max_images: int) -> None:
        self.folder = folder
        self.max_images = max_images
        self.tokenizer = PromptTokenizer.from_folder(folder)
        self._images: ImageTokens | None = None
        self._lock = Lock()

    def prompt(self, record: Record, images: Sequence[Image], spec: EncodeSpec) -> Prompt:
        """Encodes a record.

        Args:
            record: Names as many images as are given.
            images: Upright RGB images, in prompt order.
            spec: Token limit, and what to do beyond it.

        Raises:
            RecordTooLongError: It does not fit and `spec.truncate_state` is off.
            RecordError: With images, its text contains an image placeholder token.
            InputError: More images than the engine was started for, an image that the processor
                does not take, or videos.
        """
        if record.videos:
            raise InputError(f"record {record.id!r} has videos.", fix="use images.")
        if len(images) > self.max_images:
            raise InputError(
                f"record {record.id!r} has {len(images)} images, the engine takes "
                f"{self.max_images}.",
                fix=f"raise max_images to {len(images)}.",
            )
        counts = [self.image_tokens().size_tokens(image) for image in images]
        encoded = encode_record(self.tokenizer, record, spec, counts)
        return Prompt(encoded, tuple(images), self._engine_ids(record, encoded))

    def image_tokens(self) -> ImageTokens:
        """What counts the tokens of images; the first call loads the processor's settings.

        Raises:
            CheckpointError: The folder has no processor settings.
        """
        with self._lock:
            if self._images is None:
                from clefq.serving.image_tokens import ImageTokens

                self._images = ImageTokens(self.folder)
            return self._images

    def _engine_ids(self, record: Record, encoded: Encoded) -> tuple[int, ...]:
        if not record.images and encoded.media_span[0] == encoded.media_span[1]:
            return encoded.token_ids
        special = self.tokenizer.special
        pads = (special.image_pad, special.video_pad)
        start, end = encoded.media_span
        if any(token in pads for token in (*encoded.token_ids[:start], *encoded.token_ids[end:])):
            raise RecordError(
                f"record {record.id!r}: its text contains an image placeholder token.",
                fix="remove it, or ask without images.",
            )
        return tuple(contract_placeholders(encoded.token_ids, encoded.media_span, pads))
