"""Feeds llm-compressor's own tables of shared scales, which lack the Gated DeltaNet pair."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from clefq.clef.family import FUSED


@contextmanager
def shared_scale_tables() -> Iterator[None]:
    """Makes llm-compressor share the global scales of every group of `FUSED` inside the block.

    Its two tables are mutable module state read at call time: the list that oneshot's observers
    are linked by, and the pair that its model-free path reads. Both are restored afterwards.
    """
    from llmcompressor.entrypoints.model_free import microscale
    from llmcompressor.observers import helpers

    names = helpers.FUSED_LAYER_NAMES
    patterns = microscale.DEFAULT_FUSED_MAPPINGS
    lists = microscale._DEFAULT_FUSED_MAPPINGS_LIST
    saved = list(names), dict(patterns), list(lists)
    known = {frozenset(group) for group in names}
    for leaves in FUSED.values():
        if frozenset(leaves) in known:
            continue
        first, *rest = leaves
        names.append(leaves)
        patterns[rf"^(?P<prefix>.+?)\.{first}\.weight$"] = [
            f"{{prefix}}.{leaf}.weight" for leaf in rest
        ]
        lists.append([rf"re:.*\.{leaf}\.weight$" for leaf in leaves])
    try:
        yield
    finally:
        names[:] = saved[0]
        patterns.clear()
        patterns.update(saved[1])
        lists[:] = saved[2]
