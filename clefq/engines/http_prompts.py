"""Prompts that were cut on the other side: found by the `input_tokens` that a server reports.

Some APIs read only the beginning of a long state and say nothing (Workers AI until October 2026;
vLLM and SGLang beyond 16,384 tokens, as the release does). With a tokenizer at hand every prompt is
counted here and the server's count held against it. Without one, a count that many records of
different lengths share is taken for the limit, and what is missing is estimated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal

from clefq.engines.base import RecordResult
from clefq.errors import CheckpointError

if TYPE_CHECKING:
    from clefq.clef.records import Record

Checked = Literal["counted", "estimated"]

# tokens by which a server's template may differ from the release's, for every record alike
TEMPLATE_TOKENS = 64
# what else two counts of one prompt may differ by: tokens, or this share of the prompt
SLACK_TOKENS, SLACK_SHARE = 8, 0.01
# this many records of one token count, and whose texts differ in length by that share, are cut
LEAST_ALIKE, LEAST_SPREAD = 3, 1.05


def count_prompts(records: Sequence[Record], folder: Path) -> dict[str, int]:
    """Tokens of each record's prompt by a checkpoint's tokenizer; records with media left out.

    Args:
        records: The records.
        folder: A folder with `tokenizer.json`.

    Raises:
        CheckpointError: There is no tokenizer in it.
    """
    from clefq.clef.encoding import EncodeSpec, encode_record
    from clefq.clef.tokenizer import PromptTokenizer

    if not (folder / "tokenizer.json").is_file():
        raise CheckpointError(
            f"{folder} has no tokenizer.json to count prompts with.",
            fix="give --count-with the folder of the model that the server runs.",
        )
    tokenizer = PromptTokenizer.from_folder(folder)
    no_limit = EncodeSpec(max_length=1 << 40)
    return {
        record.id: len(encode_record(tokenizer, record, no_limit).token_ids)
        for record in records
        if not record.images and not record.videos
    }


def mark_cut(
    records: Sequence[Record],
    results: Sequence[RecordResult],
    counted: Mapping[str, int] | None,
    cuts_at: int | None = None,
) -> tuple[list[RecordResult], Checked]:
    """Sets `truncated_tokens` of the results whose prompts were cut without a word.

    What a server itself says that it cut stays. Records without a count of the server's, or with
    media, are left as they are.

    Args:
        records: What was asked.
        results: One result per record, in the same order.
        counted: Record id → tokens of the whole prompt, or None where nobody could count.
        cuts_at: Prompt tokens at which the server's API is known to cut, or None.

    Returns:
        The results, and how it was looked for.
    """
    told = {
        r.record_id: r.input_tokens for r in results if r.input_tokens and not r.truncated_tokens
    }
    if counted is None:
        lengths = {r.id: _length(r) for r in records if r.id in told}
        missing = estimated_cuts(lengths, told, cuts_at)
    else:
        missing = counted_cuts({key: counted[key] for key in told if key in counted}, told)
    marked = [
        replace(result, truncated_tokens=missing[result.record_id])
        if result.record_id in missing
        else result
        for result in results
    ]
    return marked, "estimated" if counted is None else "counted"


def counted_cuts(ours: Mapping[str, int], theirs: Mapping[str, int]) -> dict[str, int]:
    """Tokens that a server's prompts lack, of those that lack some.

    A server whose template has a few tokens less has them in every prompt: the median of the
    shorter half is allowed for, up to 64.

    Args:
        ours: Record id → tokens of the whole prompt.
        theirs: Record id → what the server says.
    """
    if not ours:
        return {}
    apart = {key: count - theirs[key] for key, count in ours.items()}
    shorter = sorted(ours, key=ours.__getitem__)[: (len(ours) + 1) // 2]
    template = median(apart[key] for key in shorter)
    offset = template if 0 < template <= TEMPLATE_TOKENS else 0
    return {
        key: round(lack - offset)
        for key, lack in apart.items()
        if lack - offset > max(SLACK_TOKENS, SLACK_SHARE * ours[key])
    }


def estimated_cuts(
    lengths: Mapping[str, int], theirs: Mapping[str, int], cuts_at: int | None = None
) -> dict[str, int]:
    """The same without a tokenizer: the largest count, where texts of several lengths share it.

    Args:
        lengths: Record id → characters of the prompt's text.
        theirs: Record id → what the server says.
        cuts_at: A count that is known to be a limit, which one record is enough to show.
    """
    if not lengths:
        return {}
    most, alike = max(Counter(theirs[key] for key in lengths if key in theirs).items())
    group = [key for key in lengths if theirs[key] == most]
    sizes = [lengths[key] for key in group]
    shared = alike >= LEAST_ALIKE and max(sizes) >= LEAST_SPREAD * min(sizes)
    if not shared and (cuts_at is None or most < cuts_at):
        return {}
    others = [theirs[key] / lengths[key] for key in lengths if theirs[key] < most]
    rate = median(others) if others else most / min(sizes)
    return {key: max(1, round(rate * lengths[key]) - most) for key in group}


def _length(record: Record) -> int:
    from clefq.clef.records import record_to_json
    from clefq.plain_files import compact_json

    body = record_to_json(record)
    return len(compact_json([body["state"], body["questions"]]))
