"""The modules that no recipe may quantize."""

from __future__ import annotations

import re

# pattern of module names that no recipe may quantize -> why
PROTECTED: dict[str, str] = {
    r"(^|\.)lm_head$": "the joint head reads its rows as they are",
    r"(^|\.)visual\.": "the vision tower stays BF16",
    r"\.in_proj_[ab]$": "the DeltaNet gates stay BF16",
    r"(^|\.)embed_tokens$|(^|\.)pos_embed$": "embeddings stay BF16",
    r"norm\d?$": "norms stay BF16",
    r"conv1d$|\.patch_embed\.": "convolutions stay BF16",
    r"(^|\.)(clef_head|joint_head)(\.|$)": "the joint head stays as it is",
    r"^mtp\.": "the draft layers stay BF16",
}


def protected_reason(module: str) -> str | None:
    """Why a module must not be quantized, or None."""
    return next((why for pattern, why in PROTECTED.items() if re.search(pattern, module)), None)
