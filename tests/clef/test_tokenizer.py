from __future__ import annotations

import json
import threading
from pathlib import Path

from clefq.clef.tokenizer import BoundedCache, PromptTokenizer
from tests.clef.generate import text


def test_cache_drops_the_least_recently_used_beyond_its_size() -> None:
    cache: BoundedCache[str] = BoundedCache(10)
    cache.put("a", "A", 4)
    cache.put("b", "B", 4)
    assert cache.get("a") == "A"
    cache.put("c", "C", 4)
    assert cache.get("b") is None
    assert (cache.get("a"), cache.get("c")) == ("A", "C")
    cache.put("a", "longer", 9)
    assert (cache.get("a"), cache.get("c")) == ("longer", None)
    cache.put("huge", "H", 11)
    assert cache.get("huge") is None
    cache.put("d", "D", 10)
    assert cache.get("d") == "D"


def test_cache_survives_threads() -> None:
    cache: BoundedCache[int] = BoundedCache(50)
    wrong: list[object] = []

    def work(start: int) -> None:
        try:
            for number in range(start, start + 3000):
                key = number % 97
                found = cache.get(key)
                if found is None:
                    cache.put(key, key, 1)
                elif found != key:
                    wrong.append((key, found))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i * 31,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_padding_and_truncation_of_the_file_are_switched_off(
    tokenizer_folder: Path, tokenizer: PromptTokenizer, tmp_path: Path
) -> None:
    value = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    value["truncation"] = {
        "direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    value["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!",
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    import random

    words = text(random.Random(1), 50)
    assert PromptTokenizer.from_folder(tmp_path).encode(words) == tokenizer.encode(words)
    assert len(tokenizer.encode(words)) > 5


def test_special_ids_are_those_of_their_strings(tokenizer: PromptTokenizer) -> None:
    special = tokenizer.special
    joined = "<|im_start|><|image_pad|></think>"
    assert tokenizer.encode(joined) == [special.im_start, special.image_pad, special.end_think]
    assert tokenizer.piece("") == ()
