"""Records into prompts for the engine: the one way, for the offline API and the server alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from clefq.clef.encoding import Encoded, EncodeSpec, PromptTokenizer, encode_record
from clefq.errors import InputError, RecordError
from clefq.serving.escaping import EscapingTokenizer
from clefq.serving.image_tokens import ImageShapeError
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
        escape_special_tokens: Special tokens that a record spells out stay text.

    Raises:
        CheckpointError: The tokenizer is missing or lacks a special token.
    """

    def __init__(
        self, folder: Path, max_images: int, *, escape_special_tokens: bool = False
    ) -> None:
        self.folder = folder
        self.max_images = max_images
        kind = EscapingTokenizer if escape_special_tokens else PromptTokenizer
        self.tokenizer = kind.from_folder(folder)
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
        prompt = self.sized_prompt(record, [image.size for image in images], spec)
        if not images:
            return prompt
        fit = self.image_tokens().fit
        return replace(prompt, images=tuple(fit(image) for image in images))

    def sized_prompt(
        self, record: Record, sizes: Sequence[tuple[int, int]], spec: EncodeSpec
    ) -> Prompt:
        """As `prompt`, for images of which only the size is known; it has no images yet.

        Args:
            record: Names as many images as there are sizes.
            sizes: Width and height of each upright image.
            spec: Token limit, and what to do beyond it.

        Raises:
            RecordError: See `prompt`.
            ImageShapeError: The processor does not take an image.
            InputError: More images than the engine was started for, or videos.
        """
        if record.videos:
            raise InputError(f"record {record.id!r} has videos.", fix="use images.")
        if len(sizes) > self.max_images:
            raise InputError(
                f"record {record.id!r} has {len(sizes)} images, the engine takes "
                f"{self.max_images}.",
                fix=f"raise max_images to {len(sizes)}.",
            )
        counts = [self._tokens(number, size) for number, size in enumerate(sizes)]
        encoded = encode_record(self.tokenizer, record, spec, counts)
        return Prompt(encoded, (), self._engine_ids(record, encoded))

    def _tokens(self, number: int, size: tuple[int, int]) -> int:
        try:
            return self.image_tokens().tokens(size)
        except InputError as error:
            raise ImageShapeError(error, number) from error

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
