"""The checkpoint's tokenizer, read from `tokenizer.json`, with caches for what repeats."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

from clefq.clef.long_text import PIECE, may_cut, pieces
from clefq.errors import CheckpointError

_T = TypeVar("_T")

# A cached token takes about 40 bytes: at most 80 MB per cache, however long a server runs.
_CACHE_TOKENS = 1 << 21
# What an entry's key and place cost, in tokens.
_ENTRY_TOKENS = 8
# From so many characters on a text is tokenized in pieces.
_LONG = 2 * PIECE

_SPECIAL_TEXT = {
    "im_start": "<|im_start|>",
    "im_end": "<|im_end|>",
    "think": "<think>",
    "end_think": "</think>",
    "vision_start": "<|vision_start|>",
    "vision_end": "<|vision_end|>",
    "image_pad": "<|image_pad|>",
    "video_pad": "<|video_pad|>",
}


class BoundedCache(Generic[_T]):
    """Keeps the most recently used entries within a total size; safe to share between threads.

    Args:
        max_size: Sum of the entries' sizes to keep, in tokens.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._size = 0
        self._entries: OrderedDict[Hashable, tuple[_T, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> _T | None:
        """The entry, or None."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, entry: _T, size: int) -> None:
        """Keeps an entry, dropping the least recently used ones beyond the limit."""
        with self._lock:
            _, old = self._entries.pop(key, (None, 0))
            self._entries[key] = (entry, size)
            self._size += size - old
            while self._size > self._max_size:
                _, (_, dropped) = self._entries.popitem(last=False)
                self._size -= dropped


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids of the special tokens that a Clef prompt uses."""

    im_start: int
    im_end: int
    think: int
    end_think: int
    vision_start: int
    vision_end: int
    image_pad: int
    video_pad: int


class PromptTokenizer:
    """Tokenizes the pieces of a prompt, without adding special tokens.

    Special-token strings inside a state become the special tokens, as in the release.

    Args:
        tokenizer: A `tokenizers.Tokenizer` with padding and truncation off.
        special: Ids of the special tokens.
    """

    def __init__(self, tokenizer: Any, special: SpecialIds) -> None:
        self._tokenizer = tokenizer
        self.special = special
        self._pieces: BoundedCache[tuple[int, ...]] = BoundedCache(_CACHE_TOKENS)
        self.bodies: BoundedCache[Any] = BoundedCache(_CACHE_TOKENS)

    @classmethod
    def from_folder(cls, folder: Path) -> PromptTokenizer:
        """Reads `tokenizer.json`.

        Raises:
            CheckpointError: The file is missing, malformed, or lacks a special token.
        """
        from tokenizers import Tokenizer

        path = folder / "tokenizer.json"
        fix = "copy the tokenizer files of the release into the folder."
        if not path.is_file():
            raise CheckpointError(f"{path} is missing.", fix=fix)
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises bare Exception
            raise CheckpointError(f"{path} is not a tokenizer: {error}.", fix=fix) from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        ids = {}
        missing = []
        for name, text in _SPECIAL_TEXT.items():
            encoded = tokenizer.encode(text, add_special_tokens=False).ids
            if len(encoded) != 1:
                missing.append(text)
            ids[name] = encoded[0] if encoded else -1
        if missing:
            raise CheckpointError(
                f"{path} lacks the special token(s) {', '.join(missing)}.", fix=fix
            )
        assert set(ids) == {field.name for field in fields(SpecialIds)}
        return cls(tokenizer, SpecialIds(**ids))

    @cached_property
    def _may_cut(self) -> bool:
        return may_cut(self._tokenizer)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, uncached: for states."""
        if len(text) < _LONG or not self._may_cut:
            return self._encode_whole(text)
        return [token for piece in pieces(text) for token in self._encode_whole(piece)]

    def _encode_whole(self, text: str) -> list[int]:
        # The fast form computes no offsets, which nothing here needs.
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def piece(self, text: str) -> tuple[int, ...]:
        """Token ids of a text that recurs: fixed pieces, headers, options."""
        ids = self._pieces.get(text)
        if ids is None:
            ids = tuple(self.encode(text))
            self._pieces.put(text, ids, len(ids) + _ENTRY_TOKENS)
        return ids
