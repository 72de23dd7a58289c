"""Calibration prompts: records encoded exactly as at inference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clefq.clef.encoding import EncodeSpec, PromptTokenizer, encode_record
from clefq.errors import InputError
from clefq.store.sets import open_set


@dataclass(frozen=True, slots=True)
class Calibration:
    """Encoded calibration prompts and where they come from.

    Attributes:
        prompts: Token ids, one tuple per record, in set order.
        set_name: Name of the set.
        set_sha256: Hash of the set.
        max_length: Token limit per record.
        truncated_records: Records whose state was cut to fit.
    """

    prompts: tuple[tuple[int, ...], ...]
    set_name: str
    set_sha256: str
    max_length: int
    truncated_records: int

    @property
    def tokens(self) -> int:
        """Tokens over all prompts."""
        return sum(len(ids) for ids in self.prompts)

    def to_json(self) -> dict[str, object]:
        """What `clefq.json` keeps."""
        return {
            "set": self.set_name,
            "sha256": self.set_sha256,
            "records": len(self.prompts),
            "tokens": self.tokens,
            "max_length": self.max_length,
            "truncated_records": self.truncated_records,
        }


def load_calibration(path: Path, model: Path, max_length: int) -> Calibration:
    """Encodes every record of a set with the model's own tokenizer.

    Args:
        path: Set folder.
        model: BF16 checkpoint.
        max_length: Longer records lose the end of their state, as in the release.

    Raises:
        InputError: The set is empty, or a record is malformed.
    """
    folder = open_set(path)
    tokenizer = PromptTokenizer.from_folder(model)
    spec = EncodeSpec(max_length=max_length, truncate_state=True)
    encoded = [encode_record(tokenizer, record, spec) for record in folder.records()]
    if not encoded:
        raise InputError(f"{path} holds no records.", fix="build a calibration set.")
    return Calibration(
        prompts=tuple(item.token_ids for item in encoded),
        set_name=folder.name,
        set_sha256=folder.sha256(),
        max_length=max_length,
        truncated_records=sum(item.truncated_tokens > 0 for item in encoded),
    )
