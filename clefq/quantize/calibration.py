"""Calibration prompts: records encoded exactly as at inference."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from clefq.clef.encoding import EncodeSpec, PromptTokenizer, encode_record
from clefq.clef.images import ImageReader
from clefq.clef.records import Record
from clefq.errors import InputError
from clefq.store.sets import SetFolder, open_set


@dataclass(frozen=True, slots=True)
class CalibrationPrompt:
    """One encoded record.

    Attributes:
        token_ids: The whole prompt, image placeholders expanded.
        images: Its images, in prompt order.
    """

    token_ids: tuple[int, ...]
    images: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Encoded calibration prompts and where they come from.

    Attributes:
        prompts: One per record, in set order.
        set_name: Name of the set.
        set_sha256: Hash of the set.
        role: What the set was built for: `calibration` or `eval`.
        max_length: Token limit per record.
        truncated_records: Records whose state was cut to fit.
    """

    prompts: tuple[CalibrationPrompt, ...]
    set_name: str
    set_sha256: str
    role: str
    max_length: int
    truncated_records: int

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(len(prompt.token_ids) for prompt in self.prompts)

    @property
    def tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    def to_json(self) -> dict[str, object]:
        """What `clefq.json` keeps."""
        return {
            "set": self.set_name,
            "sha256": self.set_sha256,
            "records": len(self.prompts),
            "tokens": self.tokens,
            "images": sum(len(prompt.images) for prompt in self.prompts),
            "max_length": self.max_length,
            "truncated_records": self.truncated_records,
        }

    def to_job(self) -> str:
        """What the quantization process reads."""
        return json.dumps(
            [
                {"ids": prompt.token_ids, "images": [str(path) for path in prompt.images]}
                for prompt in self.prompts
            ]
        )


def load_calibration(path: Path, model: Path, max_length: int) -> Calibration:
    """Encodes every record of a set with the model's own tokenizer and image processor.

    Args:
        path: Set folder.
        model: BF16 checkpoint.
        max_length: Longer records lose the end of their state, as in the release.

    Raises:
        InputError: The set is empty, a record is malformed, or it has videos.
    """
    folder = open_set(path)
    encoder = _Encoder(folder, model, EncodeSpec(max_length=max_length, truncate_state=True))
    prompts = tuple(encoder.encode(record) for record in folder.records())
    if not prompts:
        raise InputError(f"{path} holds no records.", fix="build a calibration set.")
    return Calibration(
        prompts=prompts,
        set_name=folder.name,
        set_sha256=folder.sha256(),
        role=folder.manifest.role,
        max_length=max_length,
        truncated_records=encoder.truncated,
    )


class _Encoder:
    def __init__(self, folder: SetFolder, model: Path, spec: EncodeSpec) -> None:
        self._folder = folder
        self._spec = spec
        self._tokenizer = PromptTokenizer.from_folder(model)
        self._images = ImageReader(model)
        self.truncated = 0

    def encode(self, record: Record) -> CalibrationPrompt:
        if record.videos:
            raise InputError(
                f"record {record.id!r} of {self._folder.path} has videos.",
                fix="calibrate on records of text and images.",
            )
        paths = tuple(self._folder.media_path(name) for name in record.images)
        counts = [self._images.token_count(path) for path in paths]
        encoded = encode_record(self._tokenizer, record, self._spec, counts)
        self.truncated += encoded.truncated_tokens > 0
        return CalibrationPrompt(encoded.token_ids, paths)
