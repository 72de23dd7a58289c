"""Joins a baseline's and a candidate's predictions by record, question and option id.

Variants of records (`clefq.store.variant_links`) are set apart: a `PairedSet` is about the
originals, and keeps the whole for `clefq.parity.statistics.coherence`.

Rows of a `PairedSet` lie in one canonical order, whatever the order of the files: records,
questions within a record and options within a question each by a hash of their id. Every later
sum runs in this order, so that no number depends on how a file was written. The prompt order of
the options is kept apart (`position`): it breaks ties and counts levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from clefq.errors import ExitCode, PredictionsError
from clefq.parity.statistics.alignment import Alignment, SortedOptions, align, gather, sort_options
from clefq.parity.statistics.arrays import BoolArray, FloatArray, IntArray, ObjectArray
from clefq.parity.statistics.flatten import FlatRows, flatten, known
from clefq.store.predictions import Predictions, PredictionsMeta, read_cohorts
from clefq.store.variant_links import parse_variant_id

MISSING = "no answer: the file lacks this question"


class PairingError(PredictionsError):
    """Two predictions files that cannot be compared: the comparison is invalid (exit 4).

    Args:
        names: Both files, as the user knows them.
        difference: What they differ in, and where.
    """

    exit_code = ExitCode.INVALID

    def __init__(self, names: tuple[str, str], difference: str) -> None:
        super().__init__(
            f"{names[0]} and {names[1]} differ in {difference}.",
            fix="predict both on the same set.",
        )
        self.difference = difference


@dataclass(frozen=True, slots=True)
class PairedSide:
    """One model's answers, aligned with the questions of a `PairedSet`.

    Attributes:
        logprobs: Natural logs, flat, float64 [total options]; NaN where the question failed.
        failed: Whether the question has no valid answer, bool [n].
        truncated_tokens: int64 [n].
        error: Why it failed, object [n]: str or None.
        meta: Provenance.
    """

    logprobs: FloatArray
    failed: BoolArray
    truncated_tokens: IntArray
    error: ObjectArray
    meta: PredictionsMeta


@dataclass(frozen=True, slots=True)
class PairedSet:
    """Joined predictions: n questions of G records, in canonical order.

    Attributes:
        record_ids: Record ids, object [G], in hash order.
        record_start: First question of each record, int64 [G + 1].
        record_index: Record of each question, int64 [n].
        question_ids: object [n].
        cohort: object [n].
        question_type: object [n]: `noul`, `choice` or `score`.
        option_start: First option of each question in the flat arrays, int64 [n + 1].
        option_code: Index into `option_names`, int64 [total options].
        option_names: Every option id of the set, object [vocabulary].
        position: Prompt position of each option within its question, int64 [total options].
        gold: Flat index of the gold option, int64 [n]; −1 where there is none.
        input_tokens: int64 [n], the baseline's where it counted them; 0 where neither did.
        other_prompt: Both have a row, but not of the same prompt, bool [n]: another number of
            tokens (where both count them), another cut of the state, or another order of options.
        baseline: The baseline's answers.
        candidate: The candidate's answers.
        variants: The same questions in other forms, or None where the set has no variants.
        cohorts: Name of each further cohort, sorted → its values, object [n]: str or None.
    """

    record_ids: ObjectArray
    record_start: IntArray
    record_index: IntArray
    question_ids: ObjectArray
    cohort: ObjectArray
    question_type: ObjectArray
    option_start: IntArray
    option_code: IntArray
    option_names: ObjectArray
    position: IntArray
    gold: IntArray
    input_tokens: IntArray
    other_prompt: BoolArray
    baseline: PairedSide
    candidate: PairedSide
    variants: Variants | None = None

    @property
    def whole(self) -> PairedSet:
        """Every question of both files, those of variants too."""
        return self if self.variants is None else self.variants.whole

    cohorts: Mapping[str, ObjectArray] = field(default_factory=dict)

    @property
    def n_questions(self) -> int:
        """Number of questions n, failed ones included."""
        return len(self.question_ids)

    @property
    def n_records(self) -> int:
        """Number of records G."""
        return len(self.record_ids)

    @property
    def by_label(self) -> bool:
        """Whether a side knows only the chosen options, without probabilities."""
        return self.baseline.meta.labels or self.candidate.meta.labels

    @property
    def option_counts(self) -> IntArray:
        """Options of each question, int64 [n]."""
        return np.diff(self.option_start)

    def options(self, question: int) -> list[str]:
        """Option ids of a question, in prompt order."""
        part = slice(int(self.option_start[question]), int(self.option_start[question + 1]))
        order = np.argsort(self.position[part])
        return [str(name) for name in self.option_names[self.option_code[part]][order]]

    def probabilities(self, side: PairedSide, question: int) -> list[float]:
        """One side's probabilities of a question's options, in prompt order; NaN where failed."""
        part = slice(int(self.option_start[question]), int(self.option_start[question + 1]))
        order = np.argsort(self.position[part])
        return [float(value) for value in np.exp(side.logprobs[part][order])]


@dataclass(frozen=True, slots=True)
class Variants:
    """What a set holds beside its original records.

    Attributes:
        whole: All questions, the originals' too.
        memo: What is computed of them once.
    """

    whole: PairedSet
    memo: dict[str, Any] = field(default_factory=dict)


def join(baseline: Predictions, candidate: Predictions) -> PairedSet:
    """Joins two predictions files by record, question and option id.

    A question that one side lacks is kept and counts as failed there. Variants of records are not
    among the questions; `whole` has them.

    Raises:
        PredictionsError: The files were made on different sets, hold no questions or one twice,
            or a gold that is no option (exit 2).
        PairingError: Their option ids, gold, cohorts or question types differ (exit 4).
    """
    names = (_name(baseline), _name(candidate))
    if baseline.meta.eval_set_sha256 != candidate.meta.eval_set_sha256:
        raise PredictionsError(
            f"{names[0]} and {names[1]} were made on different sets "
            f"({baseline.meta.eval_set} {baseline.meta.eval_set_sha256[:12]}, "
            f"{candidate.meta.eval_set} {candidate.meta.eval_set_sha256[:12]}).",
            fix="predict both on the same set.",
        )
    sides = (flatten(baseline), flatten(candidate))
    if not len(sides[0].record_id) + len(sides[1].record_id):
        raise PredictionsError(f"{names[0]} and {names[1]} hold no questions.")
    aligned = align(sides)
    for side, row, name in zip(sides, aligned.doubled, names, strict=True):
        if row is not None:
            where = f"{side.record_id[row]}/{side.question_id[row]}"
            raise PredictionsError(f"{name}: {where} appears more than once.")
    return _originals(_Joined(sides, aligned, names).paired((baseline.meta, candidate.meta)))


def _originals(whole: PairedSet) -> PairedSet:
    """The questions of records that are no variants of others in the set."""
    known = set(whole.record_ids.tolist())
    refs = [parse_variant_id(record) for record in whole.record_ids.tolist()]
    kept = np.array([ref is None or ref.original not in known for ref in refs], dtype=np.bool_)
    if bool(kept.all()):
        return whole
    return replace(_subset(whole, kept), variants=Variants(whole))


def _subset(pairs: PairedSet, records: BoolArray) -> PairedSet:
    """The questions of some records, bool [G], in the same order."""
    kept = records[pairs.record_index]
    options = np.repeat(kept, pairs.option_counts)
    index = np.cumsum(records)[pairs.record_index[kept]] - 1
    place = np.cumsum(options) - 1
    gold = pairs.gold[kept]

    def side(whole: PairedSide) -> PairedSide:
        return PairedSide(
            logprobs=whole.logprobs[options],
            failed=whole.failed[kept],
            truncated_tokens=whole.truncated_tokens[kept],
            error=whole.error[kept],
            meta=whole.meta,
        )

    return PairedSet(
        record_ids=pairs.record_ids[records],
        record_start=np.searchsorted(index, np.arange(int(records.sum()) + 1)),
        record_index=index,
        question_ids=pairs.question_ids[kept],
        cohort=pairs.cohort[kept],
        cohorts={name: column[kept] for name, column in pairs.cohorts.items()},
        question_type=pairs.question_type[kept],
        option_start=np.concatenate([[0], np.cumsum(pairs.option_counts[kept])]),
        option_code=pairs.option_code[options],
        option_names=pairs.option_names,
        position=pairs.position[options],
        gold=np.where(gold >= 0, place[np.maximum(gold, 0)], -1),
        input_tokens=pairs.input_tokens[kept],
        other_prompt=pairs.other_prompt[kept],
        baseline=side(pairs.baseline),
        candidate=side(pairs.candidate),
    )


class _Joined:
    """Both sides' rows with their alignment: checks what must be equal and builds the set."""

    def __init__(
        self, sides: tuple[FlatRows, FlatRows], aligned: Alignment, names: tuple[str, str]
    ) -> None:
        self.sides = sides
        self.aligned = aligned
        self.names = names
        self.both = (aligned.rows[0] >= 0) & (aligned.rows[1] >= 0)
        self.question_ids = aligned.question_ids

    def paired(self, metas: tuple[PredictionsMeta, PredictionsMeta]) -> PairedSet:
        """Checks and builds."""
        for column, word in (("cohort", "cohort"), ("question_type", "question type")):
            self._check_equal(self._of_both(column), word)
        *options, vocabulary = sort_options(self.sides)
        counts = self._counts(options[0], options[1])
        start = np.concatenate([[0], np.cumsum(counts)])
        code, position, reordered = self._options(options, counts)
        record_index = self.aligned.record_index
        n_records = len(self.aligned.record_ids)
        built = [self._side(which, options[which], counts, metas[which]) for which in range(2)]
        return PairedSet(
            record_ids=self.aligned.record_ids,
            record_start=np.searchsorted(record_index, np.arange(n_records + 1)),
            record_index=record_index,
            question_ids=self.question_ids,
            cohort=self._field("cohort"),
            question_type=self._field("question_type"),
            option_start=start,
            option_code=code,
            option_names=vocabulary,
            position=position,
            gold=self._gold(code, start, vocabulary),
            input_tokens=self._input_tokens(),
            other_prompt=self._other_prompt() | reordered,
            baseline=built[0],
            candidate=built[1],
            cohorts=self._cohorts(),
        )

    def _cohorts(self) -> dict[str, ObjectArray]:
        """The further cohorts; a file that was made without them says nothing against them."""
        texts = self._raw("cohorts")
        has = [known(text) for text in texts]
        self._check_equal(has[0] & has[1] & (texts[0] != texts[1]), "further cohorts")
        codes, distinct = pd.factorize(np.where(has[0], texts[0], texts[1]), use_na_sentinel=True)
        rows = [read_cohorts(text) or {} for text in distinct]
        found = {}
        for name in sorted({name for row in rows for name in row}):
            # −1, of a question without any, is the last
            values = np.array([*(row.get(name) for row in rows), None], dtype=object)
            found[name] = values[codes]
        return found

    def _field(self, name: str) -> ObjectArray:
        first, second = self._raw(name)
        return np.where(self.aligned.rows[0] >= 0, first, second)

    def _raw(self, name: str) -> tuple[ObjectArray, ObjectArray]:
        """Both sides' values per question; where a side lacks it, None, or 0 of numbers."""
        values = []
        for side, rows in zip(self.sides, self.aligned.rows, strict=True):
            column = getattr(side, name)
            empty = None if column.dtype == object else 0
            filled = np.full(len(rows), empty, dtype=column.dtype)
            filled[rows >= 0] = column[rows[rows >= 0]]
            values.append(filled)
        return values[0], values[1]

    def _of_both(self, name: str) -> BoolArray:
        first, second = self._raw(name)
        return np.asarray(self.both & (first != second), dtype=np.bool_)

    def _check_equal(self, differs: BoolArray, what: str) -> None:
        if bool(differs.any()):
            at = int(np.flatnonzero(differs)[0])
            record = self.aligned.record_ids[self.aligned.record_index[at]]
            where = f"{record}/{self.question_ids[at]}"
            count = f"{int(differs.sum())} questions in all"
            raise PairingError(self.names, f"the {what} of {where} ({count})")

    def _counts(self, first: SortedOptions, second: SortedOptions) -> IntArray:
        rows = self.aligned.rows
        counts = [
            np.append(np.diff(side.start), 0)[row]
            for side, row in zip((first, second), rows, strict=True)
        ]
        self._check_equal(self.both & (counts[0] != counts[1]), "option ids")
        return np.where(rows[0] >= 0, counts[0], counts[1])

    def _input_tokens(self) -> IntArray:
        first, second = (
            np.where(rows >= 0, side, 0).astype(np.int64)
            for rows, side in zip(self.aligned.rows, self._raw("input_tokens"), strict=True)
        )
        return np.where(first > 0, first, second)

    def _other_prompt(self) -> BoolArray:
        """Questions whose prompts had other lengths or were cut otherwise, bool [n]."""
        lengths = [np.where(self.both, side, 0) for side in self._raw("input_tokens")]
        counted = (lengths[0] > 0) & (lengths[1] > 0)
        other_length = counted & (lengths[0] != lengths[1])
        return np.asarray(other_length | self._of_both("truncated_tokens"), dtype=np.bool_)

    def _options(
        self, options: list[SortedOptions], counts: IntArray
    ) -> tuple[IntArray, IntArray, BoolArray]:
        """Codes and prompt positions, and the questions whose options lie in another order."""
        total = int(counts.sum())
        code, position = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
        codes, positions = [], []
        # the baseline last: its prompt order is the canonical one wherever it has the question
        for side, rows in zip(reversed(options), reversed(self.aligned.rows), strict=True):
            source, destination = gather(side.start, rows, counts)
            code[destination] = side.code[source]
            position[destination] = side.position[source]
            codes.append(code.copy())
            positions.append(position.copy())
        both = np.repeat(self.both, counts)
        question = np.repeat(np.arange(len(counts)), counts)

        def somewhere(differs: BoolArray) -> BoolArray:
            return np.bincount(question[differs & both], minlength=len(counts)) > 0

        self._check_equal(somewhere(codes[0] != codes[1]), "option ids")
        return code, position, somewhere(positions[0] != positions[1])

    def _gold(self, code: IntArray, start: IntArray, vocabulary: ObjectArray) -> IntArray:
        first, second = self._raw("gold")
        has_first = known(first)
        has_second = known(second)
        self._check_equal(has_first & has_second & (first != second), "gold")
        merged = np.where(has_first, first, second)
        has_gold = has_first | has_second
        wanted = np.full(len(merged), -1, dtype=np.int64)
        wanted[has_gold] = pd.Index(vocabulary).get_indexer(pd.Index(merged[has_gold]))
        question = np.repeat(np.arange(len(merged)), np.diff(start))
        hits = np.flatnonzero(code == wanted[question])
        gold = np.full(len(merged), -1, dtype=np.int64)
        gold[question[hits]] = hits
        lost = np.flatnonzero(has_gold & (gold < 0))
        if len(lost):
            at = int(lost[0])
            record = self.aligned.record_ids[self.aligned.record_index[at]]
            raise PredictionsError(
                f"{self.names[0]}: gold {merged[at]!r} of {record}/{self.question_ids[at]} "
                "is none of its options."
            )
        return gold

    def _side(
        self, which: int, options: SortedOptions, counts: IntArray, meta: PredictionsMeta
    ) -> PairedSide:
        rows = self.aligned.rows[which]
        source, destination = gather(options.start, rows, counts)
        logprobs: FloatArray = np.full(int(counts.sum()), np.nan)
        logprobs[destination] = options.logprobs[source]
        error = np.full(len(rows), MISSING, dtype=object)
        truncated = np.zeros(len(rows), dtype=np.int64)
        present = rows >= 0
        error[present] = self.sides[which].error[rows[present]]
        truncated[present] = self.sides[which].truncated_tokens[rows[present]]
        return PairedSide(
            logprobs=logprobs,
            failed=known(error),
            truncated_tokens=truncated,
            error=error,
            meta=meta,
        )


def _name(predictions: Predictions) -> str:
    return (
        str(predictions.path) if predictions.path else f"predictions of {predictions.meta.variant}"
    )
