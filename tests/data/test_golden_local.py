"""The public sets in their original layouts: rows, refused rows, and the bytes of every record.

Needs CLEFQ_DATA_DIR. A changed hash means changed wording, options, order or encoding: every
number that was ever measured on the set would change its meaning.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from clefq.clef.encoding import EncodeSpec, encode_record
from clefq.clef.records import record_to_json
from clefq.clef.tokenizer import PromptTokenizer
from clefq.console import Console
from clefq.data.build import BuildSpec, build_set
from clefq.data.definition import definition_path, load_definition
from clefq.data.loading import SplitPass
from clefq.data.sources import SOURCES
from clefq.nano import WEIGHTS
from clefq.plain_files import compact_json

pytestmark = pytest.mark.data

# source, split, options, rows, records, first digits of the records' hash
GOLDEN: list[tuple[str, str, dict[str, Any], int, int, str]] = [
    ("arc_challenge", "train", {}, 1056, 1056, "96a3d0a52a896552"),
    ("arc_challenge", "dev", {}, 299, 299, "5489ff71f2bd7a39"),
    ("arc_challenge", "test", {}, 1172, 1172, "c1547cbded285081"),
    ("banking77", "train", {}, 10003, 10003, "e478052e3634abeb"),
    ("banking77", "test", {}, 3080, 3080, "663816e0bf6b4181"),
    ("banking77", "test", {"schema": "ten"}, 3080, 3080, "c759724bbc56bdde"),
    ("bfcl", "simple_python", {}, 400, 400, "ce21798e9f50ef05"),
    ("bfcl", "multiple", {}, 200, 200, "19dcaf2746176f75"),
    ("bfcl", "live_simple", {}, 258, 258, "bcedea342d019178"),
    ("bfcl", "irrelevance", {}, 240, 240, "31b899afd700b6d9"),
    ("bfcl", "live_relevance", {}, 16, 16, "577018f28cf093fb"),
    ("boolq", "dev", {}, 3270, 3270, "375587ac651fa00c"),
    ("captioned_images", "all", {"folder": "images_skimage"}, 15, 8, "a57b207b4cca658d"),
    ("clinc150", "train", {}, 15100, 15100, "2efaa2062bc214a8"),
    ("clinc150", "val", {}, 3100, 3100, "ef81822e7bfbd05a"),
    ("clinc150", "test", {}, 5500, 5500, "ba5c5cd5e6800cc6"),
    ("clinc150", "test", {"schema": "full"}, 5500, 5500, "62b7e149ed41706b"),
    ("contractnli", "dev", {}, 61, 61, "845393c92876288c"),
    ("contractnli", "test", {}, 123, 123, "757fd53a91f68b50"),
    ("contractnli", "dev", {"questions": "one"}, 61, 1037, "acdfd828dc63c839"),
    ("emobank", "train", {}, 8062, 8062, "1055f701d9dcabc7"),
    ("emobank", "dev", {}, 1000, 1000, "052d74c0b33c28cc"),
    ("emobank", "test", {}, 1000, 1000, "01a96b650056b2cb"),
    ("hellaswag", "val", {}, 1000, 1000, "1838781184546190"),
    ("labelled_images", "all", {"folder": "images_openmoji"}, 270, 270, "02d6a3d5ddf00e7f"),
    ("ledgar", "test", {}, 1000, 1000, "b2cd11f23593b22b"),
    ("mmlu", "dev", {}, 285, 285, "b1f31de63a1cb9cd"),
    ("mmlu", "val", {}, 1542, 1542, "d7066f0ac2c08140"),
    ("mmlu", "test", {}, 2117, 2117, "0f59f41e1d6c44fd"),
    ("winogrande", "train_xs", {}, 160, 160, "5b23ebab2b679d75"),
    ("winogrande", "train_m", {}, 2558, 2558, "f4bc1648bf3ff62b"),
    ("winogrande", "dev", {}, 1267, 1267, "6475e724bd5ebb58"),
]


@pytest.mark.parametrize(
    ("source", "split", "options", "rows", "records", "digest"),
    GOLDEN,
    ids=["-".join([g[0], g[1], *map(str, g[2].values())]) for g in GOLDEN],
)
def test_source(
    source: str,
    split: str,
    options: dict[str, Any],
    rows: int,
    records: int,
    digest: str,
    public_data: Path,
) -> None:
    kind = SOURCES[source]
    reading = SplitPass(
        kind, split, kind.options(**options), public_data / options.get("folder", source)
    )
    found = hashlib.sha256()
    count = 0
    for example in reading.examples():
        count += 1
        found.update(compact_json(record_to_json(example.record)).encode() + b"\n")
    assert (reading.rows_read, count) == (rows, records)
    assert found.hexdigest()[:16] == digest
    # every refused row is one whose photo was left out of the copy
    assert {row.reason[:8] for row in reading.malformed} <= {"no image"}


# definition, records, duplicates removed, first digits of the set's hash (no token limits)
SETS = [
    ("arc-challenge", 1170, 2, "d76932078d36e9d5"),
    ("banking77", 3052, 28, "7188816dc834c670"),
    ("banking77-ten", 3052, 28, "574319fd956312ec"),
    ("boolq", 3266, 4, "09b7cc5d77b3ae0c"),
    ("clinc150", 5444, 56, "28e627e34fa880aa"),
    ("emobank", 997, 3, "4d2c64da558379df"),
    ("hellaswag", 1000, 0, "1838781184546190"),
    ("index-format", 1000, 86, "e3ca101d66d20f89"),
    ("openmoji", 270, 0, "1273008081e065b5"),
    ("six-tasks", 240, 15, "91062b2eae7cd5e3"),
    ("winogrande", 1267, 0, "6475e724bd5ebb58"),
]


@pytest.mark.parametrize(("name", "records", "removed", "digest"), SETS)
def test_set(
    name: str, records: int, removed: int, digest: str, public_data: Path, tmp_path: Path
) -> None:
    definition = load_definition(definition_path("eval", name), "eval")
    spec = BuildSpec(definition, tmp_path, tmp_path / name, public_data)
    built = build_set(spec, Console(quiet=True))
    assert built.folder.manifest.records == records
    assert len(built.removed) == removed
    assert built.folder.manifest.sha256[:16] == digest
    tokenizer = PromptTokenizer.from_folder(WEIGHTS)
    spec_of = EncodeSpec(max_length=16384)
    for record in built.folder.records():
        encoded = encode_record(tokenizer, record, spec_of, [1] * len(record.images))
        assert encoded.truncated_tokens == 0
        for question in record.questions:
            if question.id in record.gold:
                assert record.gold[question.id] in question.option_ids


def test_mmlu_duplicates(public_data: Path, tmp_path: Path) -> None:
    """The pre-release test files repeat questions; exact repeats are found and listed."""
    definition = load_definition(definition_path("eval", "mmlu"), "eval")
    spec = BuildSpec(definition, tmp_path, tmp_path / "mmlu", public_data)
    built = build_set(spec, Console(quiet=True))
    states: dict[str, int] = {}
    kind = SOURCES["mmlu"]
    for example in SplitPass(kind, "test", kind.options(), public_data / "mmlu").examples():
        record = example.record
        body = compact_json(record_to_json(record)["questions"])
        key = compact_json([record.state, body])
        states[key] = states.get(key, 0) + 1
    repeats = sum(count - 1 for count in states.values())
    assert sum(row.kind == "exact" for row in built.removed) == repeats > 0
