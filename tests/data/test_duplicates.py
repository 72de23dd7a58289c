"""Duplicates against a brute-force reference; MinHash against the true similarity."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clefq.clef.records import Question, Record
from clefq.data.content import (
    NOTHING,
    PERMUTATIONS,
    CommonShingles,
    SchemaTexts,
    fingerprint,
    jaccard,
    minhash,
    normalise,
    own_texts,
    shingles,
    without,
)
from clefq.data.duplicates import Fingerprints, find_duplicates

WORDS = (
    *("the", "a", "grey", "parcel", "kettle", "arrived", "broken"),
    *("late", "early", "case", "number", "seven", "eight", "nine"),
)


def record(state: object, instructions: str = "Which?", **options: str | None) -> Record:
    criteria = options or {"a": None, "b": None}
    question = Question("q", "choice", instructions, criteria)
    return Record("id", "c", state, (question,))


def prints(texts: list[str], fixed: int = 0, within: bool = True) -> Fingerprints:
    marks = [fingerprint((text,)) for text in texts]
    signatures = [mark.signature for mark in marks]
    return Fingerprints(
        exact=np.array([np.frombuffer(m.exact, np.uint64) for m in marks]),
        normalised=np.array([np.frombuffer(m.normalised, np.uint64) for m in marks]),
        signatures=np.array(signatures),
        rank=np.arange(len(texts), dtype=np.int64),
        fixed=np.arange(len(texts)) < fixed,
        within=within,
    )


def similarity(texts: list[str]) -> object:
    def of(left: int, right: int) -> float:
        sets = [set(_grams(normalise(texts[i]))) for i in (left, right)]
        return len(sets[0] & sets[1]) / len(sets[0] | sets[1])

    return of


def _grams(text: str) -> list[str]:
    return [text[i : i + 5] for i in range(max(1, len(text) - 4))]


def brute_force(texts: list[str], threshold: float) -> set[int]:
    """Greedy by position: the definition, without hashing."""
    gone: set[int] = set()
    near = similarity(texts)
    for test in (
        lambda a, b: texts[a] == texts[b],
        lambda a, b: normalise(texts[a]) == normalise(texts[b]),
        lambda a, b: near(a, b) >= threshold,  # type: ignore[operator]
    ):
        for b in range(len(texts)):
            if b not in gone and any(test(a, b) for a in range(b) if a not in gone):
                gone.add(b)
    return gone


sentences = st.lists(st.sampled_from(WORDS), min_size=6, max_size=14).map(" ".join)


@given(st.lists(sentences, min_size=2, max_size=12), st.data())
@settings(max_examples=60, deadline=None)
def test_agrees_with_brute_force(texts: list[str], data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(0, 4))):
        victim = data.draw(st.sampled_from(texts))
        edit = data.draw(st.sampled_from(["same", "case", "word"]))
        texts.append({"same": victim, "case": victim.upper() + "!", "word": victim + " x"}[edit])
    found = find_duplicates(prints(texts), similarity(texts), 0.8)  # type: ignore[arg-type]
    assert {removal.index for removal in found} == brute_force(texts, 0.8)
    assert all(removal.kept < removal.index for removal in found)
    assert len({removal.index for removal in found}) == len(found)


def test_kinds_and_similarity() -> None:
    texts = ["A grey parcel, broken.", "a GREY parcel broken", "A grey parcel, broken.", "a kettle"]
    found = find_duplicates(prints(texts), similarity(texts), 0.8)  # type: ignore[arg-type]
    assert [(r.index, r.kept, r.kind) for r in found] == [
        (1, 0, "normalised"),
        (2, 0, "exact"),
    ]


def test_fixed_records_are_never_removed() -> None:
    texts = ["same text here"] * 4
    found = find_duplicates(prints(texts, fixed=2), similarity(texts), 0.8)  # type: ignore[arg-type]
    assert [removal.index for removal in found] == [2, 3]
    assert {removal.kept for removal in found} == {0}


def test_without_within_only_fixed_ones_count() -> None:
    texts = ["one text here now", "other words there", "other words there", "one text here now!"]
    found = find_duplicates(
        prints(texts, fixed=1, within=False),
        similarity(texts),  # type: ignore[arg-type]
        0.8,
    )
    assert [(removal.index, removal.kept) for removal in found] == [(3, 0)]


def test_a_chain_removes_only_what_is_near_a_kept_one() -> None:
    """b is near a, c is near b but not near a: c stays, because b is gone."""
    base = " ".join(f"word{i}" for i in range(40))
    texts = [base, base.replace("word0 ", "").replace("word1 ", "").replace("word2 ", "")]
    texts.append(texts[1].replace(" word39", "").replace(" word38", "").replace(" word37", ""))
    of = similarity(texts)
    threshold = (of(0, 1) + of(0, 2)) / 2  # type: ignore[operator]
    found = find_duplicates(prints(texts), of, threshold)  # type: ignore[arg-type]
    assert [removal.index for removal in found] == [1]


@given(st.integers(0, 100), st.integers(20, 400))
@settings(max_examples=40, deadline=None)
def test_minhash_estimates_jaccard(shared: int, size: int) -> None:
    rng = np.random.default_rng(shared * 1000 + size)
    pool = np.unique(rng.integers(0, 2**63, 3 * size, dtype=np.int64).astype(np.uint64))
    cut = len(pool) * shared // 300
    left = np.concatenate([pool[:cut], pool[cut : len(pool) // 2]])
    right = np.concatenate([pool[:cut], pool[len(pool) // 2 :]])
    truth = jaccard(np.sort(left), np.sort(right))
    estimate = float((minhash(left) == minhash(right)).mean())
    deviation = np.sqrt(max(truth * (1 - truth), 1 / PERMUTATIONS) / PERMUTATIONS)
    assert abs(estimate - truth) <= 5 * deviation + 1e-9


def test_shingles_are_the_character_runs() -> None:
    text = "abcdefabcde"
    assert len(shingles([text], 5)) == len({text[i : i + 5] for i in range(len(text) - 4)})
    assert len(shingles(["ab"], 5)) == len(shingles([""], 5)) == 1
    both = shingles(["abcdef", "uvwxyz"], 5)
    assert set(both) == set(shingles(["abcdef"], 5)) | set(shingles(["uvwxyz"], 5))


def test_minhash_is_independent_of_chunks() -> None:
    hashes = np.arange(1, 20_001, dtype=np.uint64)
    assert (minhash(hashes) == minhash(hashes[::-1])).all()
    assert (minhash(hashes) != minhash(hashes, seed=9)).mean() > 0.9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello,   WORLD!", "hello world"),
        ("ｆｕｌｌ　ｗｉｄｔｈ", "full width"),
        ("Straße", "strasse"),
        ("مرحبا، بالعالم", "مرحبا بالعالم"),
        ("🙂🙂", "🙂🙂"),
        ("a-b_c", "a b c"),
    ],
)
def test_normalise(text: str, expected: str) -> None:
    assert normalise(text) == expected


def test_common_shingles_are_learned() -> None:
    common = CommonShingles(5)
    for number in range(40):
        common.learn((f"amount: {number * 7919}; country of the order", "seldom" * (number < 5)))
    found = set(common.found().tolist())
    assert set(shingles([normalise("country of the order")], 5).tolist()) <= found
    assert not set(shingles(["seldom"], 5).tolist()) & found
    assert common.found().tolist() == sorted(found)
    assert len(CommonShingles(5).found()) == 0


def test_records_of_one_template_are_no_duplicates() -> None:
    texts = [f"amount {n * 7919} country of the order is {n % 7} customer since {n * 31}"
             for n in range(1, 60)]  # fmt: skip
    common = CommonShingles(5)
    for text in texts:
        common.learn((text,))
    plain, rare = (
        [fingerprint((text,), (), 5, shared).signature for text in texts]
        for shared in (NOTHING, common.found())
    )

    def alike(signatures: list[np.ndarray | None]) -> float:
        pairs = itertools.combinations(signatures, 2)
        return float(np.mean([(a == b).mean() for a, b in pairs]))  # type: ignore[union-attr]

    assert alike(plain) > 0.4
    assert alike(rare) < 0.1


@given(st.sets(st.integers(0, 50)), st.sets(st.integers(0, 50)))
def test_without(left: set[int], common: set[int]) -> None:
    arrays = [np.array(sorted(values), dtype=np.uint64) for values in (left, common)]
    assert set(without(*arrays).tolist()) == left - common


def test_nothing_own_is_like_nothing() -> None:
    """A record of common shingles alone is only like its exact duplicate."""
    common = shingles([normalise("hello there")], 5)
    marks = [fingerprint((text,), (), 5, common) for text in ("Hello there", "hello, there!")]
    assert (marks[0].signature == marks[1].signature).mean() < 0.2  # type: ignore[union-attr]
    assert marks[0].normalised == marks[1].normalised


def test_shared_schema_is_not_compared() -> None:
    texts = SchemaTexts()
    for state in ("one", "two"):
        texts.learn(record(state, "Which intent?", refund=None, other=None))
    assert own_texts(record("three", "Which intent?", refund=None, other=None), texts.shared) == (
        "three",
    )


def test_a_sampled_schema_is_schema_as_a_whole() -> None:
    """One option that no other record offers does not make a question a record's own."""
    texts = SchemaTexts()
    for state, third in (("one", "x"), ("two", "y")):
        texts.learn(record(state, "Which intent?", **{"refund": None, "other": None, third: None}))
    seen = record("three", "Which intent?", refund=None, other=None, x=None)
    assert own_texts(seen, texts.shared) == ("three",)
    quiz = record("four", "Which intent?", other=None, p=None, q=None)
    assert own_texts(quiz, texts.shared) == ("four", "p", "q")


def test_own_questions_are_compared() -> None:
    """Exact duplicates do not turn their texts into schema: the context is the same."""
    texts = SchemaTexts()
    same = record("one", "How heavy?", a="1 kg", b="2 kg")
    for _ in range(3):
        texts.learn(same)
    assert own_texts(same, texts.shared) == ("one", "How heavy?", "1 kg", "2 kg")


def test_options_without_description_count_by_their_key() -> None:
    plain = record("s", "Which?", oxygen=None, iron=None)
    lettered = record("s", "Which?", A="oxygen", B="iron")
    assert set(own_texts(plain, set())) == set(own_texts(lettered, set()))
    marks = [fingerprint(own_texts(r, set())) for r in (plain, lettered)]
    assert marks[0].normalised == marks[1].normalised
    assert marks[0].exact != marks[1].exact


def test_other_media_are_other_records() -> None:
    marks = [fingerprint(("look",), media) for media in (("a" * 64,), ("b" * 64,), ())]
    for one, other in itertools.combinations(marks, 2):
        assert one.exact != other.exact
        assert one.normalised != other.normalised
        assert (one.signature == other.signature).mean() < 0.2
