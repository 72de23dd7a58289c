"""Special tokens that a request spells out stay text.

The release turns `<|im_start|>` in a state into the real token, so that who writes a state can end
the user's turn and begin another one. Here only the fixed pieces of a prompt have special tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clefq.clef.encoding import FIXED_PIECES
from clefq.clef.tokenizer import PromptTokenizer


class EscapingTokenizer(PromptTokenizer):
    """Tokenizes what a request decides without any special token.

    Args:
        whole: The checkpoint's tokenizer, for the fixed pieces.
        plain: The same without special tokens, a `tokenizers.Tokenizer`.
    """

    def __init__(self, whole: PromptTokenizer, plain: Any) -> None:
        super().__init__(plain, whole.special)
        self._whole = whole

    @classmethod
    def from_folder(cls, folder: Path) -> EscapingTokenizer:
        """Reads `tokenizer.json`.

        Raises:
            CheckpointError: See `PromptTokenizer.from_folder`.
        """
        from tokenizers import Tokenizer

        whole = PromptTokenizer.from_folder(folder)
        description = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        for token in description["added_tokens"]:
            # <think> is an added token that is not special, and would be found all the same
            token["special"] = True
        plain = Tokenizer.from_str(json.dumps(description))
        plain.no_padding()
        plain.no_truncation()
        plain.encode_special_tokens = True
        return cls(whole, plain)

    def piece(self, text: str) -> tuple[int, ...]:
        """Token ids of a text that recurs."""
        return self._whole.piece(text) if text in FIXED_PIECES else super().piece(text)
