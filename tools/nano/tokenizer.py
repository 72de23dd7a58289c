"""The miniature's tokenizer: byte-level BPE with the special tokens of the real one.

Text is split as the real tokenizer splits it (single digits, words with one leading character,
runs of punctuation) and normalised to NFC; only the vocabulary is small. The result is data,
`weights/tokenizer.json`: training it again over the same texts gives the same bytes. The shipped
file is older than the last change of a task (`form`), so today's texts give a vocabulary that
differs from it in a few words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

VOCAB_SIZE = 2048
END_OF_TEXT = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"
IMAGE_PAD = "<|image_pad|>"
VIDEO_PAD = "<|video_pad|>"
VISION_START = "<|vision_start|>"
VISION_END = "<|vision_end|>"
# In the order of the real vocabulary; only the last eight are ordinary text to a decoder.
SPECIAL_TOKENS = (
    END_OF_TEXT,
    "<|im_start|>",
    END_OF_TURN,
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    VISION_START,
    VISION_END,
    "<|vision_pad|>",
    IMAGE_PAD,
    VIDEO_PAD,
)
ADDED_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Any:
    """Learns the merges from `texts` and adds the special tokens behind them.

    Args:
        texts: The corpus, in a fixed order.
        vocab_size: All tokens, special ones included.

    Returns:
        A `tokenizers.Tokenizer` with exactly `vocab_size` tokens.

    Raises:
        ValueError: The corpus is too small to fill the vocabulary.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    learned = vocab_size - len(SPECIAL_TOKENS) - len(ADDED_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=learned,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.add_tokens(list(ADDED_TOKENS))
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"{tokenizer.get_vocab_size()} tokens learned, not {vocab_size}")
    return tokenizer


def tokenizer_settings() -> dict[str, Any]:
    """What `tokenizer_config.json` holds, as transformers reads it."""
    return {
        "backend": "tokenizers",
        "eos_token": END_OF_TURN,
        "image_token": IMAGE_PAD,
        "model_max_length": 16384,
        "pad_token": END_OF_TEXT,
        "processor_class": "Qwen3VLProcessor",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "video_token": VIDEO_PAD,
        "vision_bos_token": VISION_START,
        "vision_eos_token": VISION_END,
    }
