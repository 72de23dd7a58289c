"""Building: selection, decontamination, accounting, resuming, and identical results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from clefq.clef.encoding import EncodeSpec, encode_record
from clefq.clef.tokenizer import PromptTokenizer
from clefq.console import Console
from clefq.data import build as build_module
from clefq.data.build import BuildSpec, build_set, limited
from clefq.data.definition import definition_path, load_definition
from clefq.data.sources import SOURCES
from clefq.data.tokens import PromptCounter
from clefq.errors import DefinitionError, InputError
from clefq.nano import WEIGHTS
from clefq.store.sets import open_set
from tests.data.conftest import FIXTURES, Build, define
from tests.data.test_definition import SHIPPED

BANKING: dict[str, Any] = {"source": "banking77", "split": "test", "options": {"schema": "ten"}}
TRAIN: dict[str, Any] = {"source": "banking77", "split": "train", "options": {"schema": "ten"}}


PRIMES = (104729, 15485863, 32452843, 49979687, 67867967, 86028121)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("role", "name"), sorted(SHIPPED))
def test_every_shipped_definition_builds_from_the_fixtures(
    role: Any, name: str, tmp_path: Path
) -> None:
    """From synthetic rows; every record fits its limit and has its gold among its options."""
    definition = limited(load_definition(definition_path(role, name), role), 4, None)
    out = tmp_path / definition.name
    tokenizer = _with_processor(tmp_path)
    spec = BuildSpec(definition, tmp_path, out, FIXTURES, (), tokenizer, 1.0)
    built = build_set(spec, Console(quiet=True)).folder
    assert open_set(out).manifest == built.manifest
    counter = PromptCounter(tokenizer)
    assert built.manifest.records > 0
    for info in built.manifest.sources:
        assert info.taken > 0, info.source
    for record in built.records():
        media = {name: built.media_path(name) for name in record.images}
        assert counter.count(record, media) <= (definition.max_tokens or 10**9)
        for question in record.questions:
            if question.id in record.gold:
                assert record.gold[question.id] in question.option_ids


def _with_processor(tmp_path: Path) -> Path:
    """The miniature's tokenizer beside a processor configuration of the release's kind."""
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copyfile(WEIGHTS / "tokenizer.json", folder / "tokenizer.json")
    size = {"shortest_edge": 1024, "longest_edge": 65536}
    config = {"image_processor": {"patch_size": 16, "merge_size": 2, "size": size}}
    (folder / "processor_config.json").write_text(json.dumps(config))
    return folder


def test_accounting_adds_up(build: Build) -> None:
    built = build({"sources": [BANKING]})
    [info] = built.folder.manifest.sources
    assert info.rows_read == 31
    assert info.rows_malformed == 5
    assert info.duplicates == 2
    assert info.taken == 24
    assert info.rows_read == info.rows_malformed + info.duplicates + info.taken
    assert built.folder.manifest.cohorts == {"banking77": 24}
    assert built.folder.manifest.questions == {"choice": 24}
    malformed = lines(built.folder.path / "malformed.jsonl")
    assert malformed[0] == {
        "source": "banking77",
        "file": "test.csv",
        "row": 25,
        "reason": "category is empty",
    }
    assert len(malformed) == 5
    removed = lines(built.folder.path / "removed.jsonl")
    assert {(row["kind"], row["scope"]) for row in removed} == {("conflict", "within")}
    ids = {"banking77-test-00001", "banking77-test-00029"}
    assert {row["id"] for row in removed} == {row["of"] for row in removed} == ids
    conflicts = {row["id"]: row for row in lines(built.folder.path / "conflicts.jsonl")}
    first = conflicts["banking77-test-00001"]
    assert first["of_answers"] == conflicts["banking77-test-00029"]["answers"] != first["answers"]


def test_two_machines_build_the_same_bytes(build: Build) -> None:
    value = {"sources": [{**BANKING, "count": 12}], "seed": "other"}
    one, two = build(value).folder, build(value).folder
    for name in ("records.jsonl", "manifest.json", "removed.jsonl", "malformed.jsonl"):
        assert (one.path / name).read_bytes() == (two.path / name).read_bytes()


def test_golden_hash(build: Build) -> None:
    """Pins the bytes of a set: wording, order, sampling and encoding of the file."""
    built = build({"sources": [{**BANKING, "count": 12}]}, tokenizer=None)
    assert built.folder.manifest.sha256 == GOLDEN


GOLDEN = "679e4ba6caa32392a64aa2936567ed0987a86c29aba63564406fbf7a3423c941"


def test_another_seed_is_another_sample(build: Build) -> None:
    ids = []
    for seed in ("one", "two"):
        built = build({"sources": [{**BANKING, "count": 10}], "seed": seed})
        ids.append([record.id for record in built.folder.records()])
    assert ids[0] != ids[1]
    assert all(found == sorted(found) for found in ids), "file order is the source's order"


def test_smaller_counts_are_subsets(build: Build) -> None:
    small, large = (
        {r.id for r in build({"sources": [{**BANKING, "count": n}]}).folder.records()}
        for n in (6, 15)
    )
    assert small < large


def test_two_entries_of_one_split_share_no_row(build: Build) -> None:
    full = {**TRAIN, "count": 20, "options": {"schema": "full"}}
    built = build({"sources": [full, {**TRAIN, "count": 20}]})
    ids = [record.id for record in built.folder.records()]
    assert len(ids) == len(set(ids)) == 40
    assert built.removed == []


def test_calibration_is_held_against_held_out_splits(build: Build) -> None:
    """The test split holds a near copy of the first training row."""
    built = build({"role": "calibration", "sources": [TRAIN]})
    [row] = built.removed
    assert (row.id, row.of) == ("banking77-train-00001", "banking77-test-00030")
    assert (row.kind, row.where, row.scope) == ("near", "banking77/test", "against")
    assert 0.8 <= row.similarity < 1
    found = built.folder.manifest.decontamination
    assert found is not None
    assert found.removed == {"near-against": 1}
    assert set(found.against) == {"banking77/test"}
    off = {"role": "calibration", "sources": [TRAIN], "decontaminate": {"held_out": False}}
    assert build(off).removed == []


def test_missing_held_out_split_is_said(build: Build, tmp_path: Path) -> None:
    (tmp_path / "data/banking77").mkdir(parents=True)
    shutil.copyfile(FIXTURES / "banking77/train.csv", tmp_path / "data/banking77/train.csv")
    built = build({"role": "calibration", "sources": [TRAIN]}, data_dir=tmp_path / "data")
    assert built.skipped_references == ["banking77 test"]


def test_against_a_set(build: Build) -> None:
    evaluated = build({"sources": [{**BANKING, "count": 10}], "name": "judged"}).folder
    built = build({"sources": [BANKING], "name": "rest"}, against=(evaluated.path,))
    assert {row.where for row in built.removed if row.scope == "against"} == {"judged"}
    taken = {record.id for record in built.folder.records()}
    assert taken.isdisjoint(record.id for record in evaluated.records())
    found = built.folder.manifest.decontamination
    assert found is not None
    assert found.against == {"judged": evaluated.manifest.sha256}


def test_against_the_same_rows_in_another_form(build: Build) -> None:
    other = {**BANKING, "keys": "opaque", "order": "shuffled", "options": {"schema": "full"}}
    evaluated = build({"sources": [other], "name": "judged"}).folder
    with pytest.raises(InputError, match="no record"):
        build({"sources": [BANKING], "name": "rest"}, against=(evaluated.path,))


def test_against_a_list_of_texts(build: Build, tmp_path: Path) -> None:
    texts = [record.state for record in build({"sources": [BANKING]}).folder.records()]
    known = tmp_path / "known.txt"
    known.write_text(f"\n{texts[3].upper()}\nnothing like it\n{texts[7]}\n", encoding="utf-8")
    built = build({"sources": [BANKING]}, against=(known,))
    kinds = sorted(row.kind for row in built.removed if row.where == "known.txt")
    assert kinds == ["exact", "normalised"]


def test_against_a_file_of_records(build: Build, tmp_path: Path) -> None:
    one = build({"sources": [{**BANKING, "count": 5}]}).folder
    copy = tmp_path / "five.jsonl"
    shutil.copyfile(one.path / "records.jsonl", copy)
    built = build({"sources": [BANKING]}, against=(copy,))
    assert sum(row.where == "five.jsonl" for row in built.removed) == 5


def test_against_nothing(build: Build, tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="no such set or file"):
        build({"sources": [BANKING]}, against=(tmp_path / "gone",))
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9\n")
    with pytest.raises(DefinitionError, match="is not UTF-8 text"):
        build({"sources": [BANKING]}, against=(latin,))


def test_switches_of_decontamination(build: Build) -> None:
    assert build({"sources": [BANKING], "decontaminate": {"within": False}}).removed == []
    winogrande = {"source": "winogrande", "split": "dev"}
    tuned = {"sources": [winogrande], "role": "calibration"}
    assert len(build({**tuned, "decontaminate": {"held_out": False}}).removed) > 0
    none = {"held_out": False, "near": False}
    assert build({**tuned, "decontaminate": none}).removed == []


def test_minimal_pairs_stay_in_an_eval_set(build: Build) -> None:
    """Two records that differ in one word and in the right answer are what an eval set is for."""
    winogrande = {"source": "winogrande", "split": "dev"}
    assert build({"sources": [winogrande]}).removed == []


CASES = [("The kettle is broken", "a"), ("the kettle is  BROKEN", "b"),
         ("The kettle is broken", "a"),
         ("A ladder was lost", "a"), ("A ladder was lost", "a"), ("Wagons roll", None),
         ("Wagons roll", "b")]  # fmt: skip


@pytest.mark.parametrize(
    ("role", "kept", "kinds"),
    [
        ("eval", 2, {"conflict-within": 3, "exact-within": 2}),
        ("calibration", 3, {"exact-within": 3, "normalised-within": 1}),
    ],
)
def test_none_of_a_conflict_is_kept_by_chance(
    build: Build, tmp_path: Path, role: str, kept: int, kinds: dict[str, int]
) -> None:
    rows = [
        {"id": f"r{i}", "cohort": "c", "state": text,
         "questions": {"q": {"type": "choice", "criteria": {"a": None, "b": None}}},
         **({"gold": {"q": gold}} if gold else {})}
        for i, (text, gold) in enumerate(CASES)
    ]  # fmt: skip
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "r.jsonl").write_text(text)
    value = {"role": role, "sources": [{"source": "records", "options": {"file": "r.jsonl"}}]}
    made = build(value, tokenizer=None, data_dir=None)
    manifest = made.folder.manifest
    assert manifest.records == kept
    assert manifest.decontamination is not None
    assert manifest.decontamination.removed == kinds
    assert (made.folder.path / "conflicts.jsonl").is_file() == (role == "eval")
    if role == "eval":
        assert set(manifest.classes["q"]) >= {"a", "b"}
        assert sum(manifest.classes["q"].values()) == kept


def test_templates_are_no_duplicates(build: Build, tmp_path: Path) -> None:
    """Bookings whose fields have the same names stay, a copy with one changed digit goes."""
    rows = [
        {"booking": {"amount": i * 7919, "country": f"C{i % 5}", "customer_since": 1990 + i % 30,
                     "purpose": " ".join(str(i * p % 99991) for p in PRIMES)}}
        for i in range(1, 60)
    ]  # fmt: skip
    copy = json.loads(json.dumps(rows[0]))
    copy["booking"]["customer_since"] += 1
    text = "".join(json.dumps(row) + "\n" for row in [*rows, copy])
    (tmp_path / "bookings.jsonl").write_text(text)
    options = {"file": "bookings.jsonl", "state": "booking", "questions": {"ok": {"type": "noul"}}}
    built = build({"sources": [{"source": "user", "options": options}]}, data_dir=None)
    assert [{row.id, row.of} for row in built.removed] == [{"row-000001", "row-000060"}]


def test_duplicates_inside_mmlu(build: Build) -> None:
    built = build({"sources": [{"source": "mmlu", "split": "test"}]})
    [row] = [row for row in built.removed if row.kind == "exact"]
    assert {row.id, row.of} == {"mmlu-test-00013", "mmlu-test-00025"}


def test_canary_forbids_calibration(build: Build, tmp_path: Path) -> None:
    folder = tmp_path / "data/boolq"
    folder.mkdir(parents=True)
    text = (FIXTURES / "boolq/train.jsonl").read_text()
    (folder / "train.jsonl").write_text(text.replace("floor 1", "CANARY GUID 1234"))
    use = {"source": "boolq", "split": "train"}
    with pytest.raises(DefinitionError, match="canary 'canary guid'") as caught:
        build({"role": "calibration", "sources": [use]}, data_dir=tmp_path / "data")
    assert "boolq" in caught.value.message
    assert build({"sources": [use]}, data_dir=tmp_path / "data").folder.manifest.records > 0
    mine = {"decontaminate": {"canaries": ["KILOGRAMS"]}}
    with pytest.raises(DefinitionError, match="canary 'kilograms'"):
        build({"role": "calibration", "sources": [use], **mine})


def test_token_limits(build: Build) -> None:
    use = {"source": "longbench_v2", "split": "test"}
    everything = build({"sources": [use], "max_tokens": 100_000}).folder
    lengths = everything.manifest.token_lengths
    assert lengths is not None
    assert lengths.shortest < lengths.median < lengths.longest
    assert sum(lengths.bands.values()) == 12
    middle = build(
        {"sources": [{**use, "min_tokens": lengths.median, "max_tokens": lengths.p95 - 1}]}
    ).folder
    [info] = middle.manifest.sources
    assert 0 < info.taken == 12 - info.outside_limits < 12
    found = middle.manifest.token_lengths
    assert found is not None
    assert lengths.median <= found.shortest <= found.longest < lengths.p95
    # what was passed over is listed with its row and its length
    rows = lines(middle.path / "passed_over.jsonl")
    every, kept = ({r.id for r in folder.records()} for folder in (everything, middle))
    assert {row["id"] for row in rows} == every - kept
    for row in rows:
        assert (row["source"], row["split"]) == ("longbench_v2", "test")
        assert (row["shortest"], row["longest"]) == (lengths.median, lengths.p95 - 1)
        assert not row["shortest"] <= row["tokens"] <= row["longest"]
    assert not (everything.path / "passed_over.jsonl").exists()


def test_a_missing_file_is_named_before_anything_is_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("banking77", "hellaswag"):
        shutil.copytree(FIXTURES / name, data / name)
    (data / "hellaswag" / "hellaswag_train.jsonl").unlink()
    hellaswag = {"source": "hellaswag", "split": "train"}
    spec = BuildSpec(define({"sources": [BANKING, hellaswag]}), tmp_path, tmp_path / "out", data)
    with pytest.raises(DefinitionError, match=r"lacks hellaswag_train\.jsonl") as caught:
        build_set(spec, Console(quiet=True))
    assert caught.value.fix is not None
    revision = SOURCES["hellaswag"].hub.revision
    assert f"`hub: {{id: Rowan/hellaswag, revision: {revision}}}`" in caught.value.fix
    assert list(tmp_path.iterdir()) == [data]


def test_fewer_records_than_wanted_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    definition = define({"sources": [{**BANKING, "count": 5000}]})
    build_set(
        BuildSpec(definition, tmp_path, tmp_path / "out", FIXTURES, allow_malformed=1.0), Console()
    )
    assert "records instead of 5,000" in capsys.readouterr().err


def test_token_budget(build: Build) -> None:
    use = {**BANKING, "token_budget": 2000}
    built = build({"sources": [use]}).folder
    lengths = built.manifest.token_lengths
    assert lengths is not None
    assert 1000 < lengths.total <= 2000
    tokenizer = PromptTokenizer.from_folder(WEIGHTS)
    counted = [len(encode_record(tokenizer, r, EncodeSpec()).token_ids) for r in built.records()]
    assert lengths.total == sum(counted)
    assert lengths.longest == max(counted)
    with pytest.raises(DefinitionError, match="need a tokenizer"):
        build({"sources": [use]}, tokenizer=None)


def test_without_tokenizer_nothing_is_counted(build: Build) -> None:
    assert build({"sources": [BANKING]}, tokenizer=None).folder.manifest.token_lengths is None


def test_images_are_copied(build: Build) -> None:
    use = {"source": "flickr30k", "split": "test"}
    built = build({"sources": [use]}, tokenizer=None).folder
    for record in built.records():
        [name] = record.images
        assert built.media_path(name).read_bytes()[:4] == b"\x89PNG"
    scenes = {"source": "nano", "split": "eval", "count": 6, "options": {"task": "scenes"}}
    generated = build(
        {"sources": [scenes], "decontaminate": {"near": False}}, tokenizer=None
    ).folder
    assert len(list((generated.path / "images").iterdir())) == generated.manifest.records
    assert generated.manifest.sources[0].origin == "generated"


def test_a_stopped_build_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = define({"sources": [BANKING, {"source": "boolq", "split": "dev"}]})
    spec = BuildSpec(definition, tmp_path, tmp_path / "sets/made", FIXTURES, allow_malformed=1.0)
    reads: list[str] = []
    real = build_module.SplitPass.examples

    def counted(load: Any) -> Any:
        reads.append(load.source.name)
        return real(load)

    monkeypatch.setattr(build_module.SplitPass, "examples", counted)
    writing = build_module.write_set
    monkeypatch.setattr(build_module, "write_set", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        build_set(spec, Console(quiet=True))
    assert not spec.out.exists()
    monkeypatch.setattr(build_module, "write_set", writing)
    resumed = build_set(spec, Console(quiet=True)).folder
    assert reads == ["banking77", "boolq"], "nothing was read twice"
    assert sorted(path.name for path in spec.out.parent.iterdir()) == ["made"]
    fresh = build_set(
        BuildSpec(definition, tmp_path, tmp_path / "fresh/made", FIXTURES, allow_malformed=1.0),
        Console(quiet=True),
    )
    assert resumed.manifest == fresh.folder.manifest


def _interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


def test_another_definition_does_not_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "made"
    writing = build_module.write_set
    monkeypatch.setattr(build_module, "write_set", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        build_set(
            BuildSpec(define({"sources": [BANKING]}), tmp_path, out, FIXTURES, allow_malformed=1.0),
            Console(quiet=True),
        )
    monkeypatch.setattr(build_module, "write_set", writing)
    full = define({"sources": [{**BANKING, "options": {"schema": "full"}}]})
    built = build_set(
        BuildSpec(full, tmp_path, out, FIXTURES, allow_malformed=1.0), Console(quiet=True)
    ).folder
    assert len(next(built.records()).questions[0].option_ids) == 77


def test_existing_output_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "made"
    out.mkdir()
    (out / "mine.txt").write_text("x")
    spec = BuildSpec(define({"sources": [BANKING]}), tmp_path, out, FIXTURES, allow_malformed=1.0)
    with pytest.raises(DefinitionError, match="exists already"):
        build_set(spec, Console(quiet=True))
    assert (out / "mine.txt").read_text() == "x"


def test_a_source_without_usable_rows(build: Build, tmp_path: Path) -> None:
    (tmp_path / "data/banking77").mkdir(parents=True)
    (tmp_path / "data/banking77/test.csv").write_text("text,category\nx,unknown\n")
    with pytest.raises(DefinitionError, match=r"none of 1 rows is usable: unknown label 'unknown'"):
        build({"sources": [BANKING]}, data_dir=tmp_path / "data")


def test_stratified_counts(build: Build) -> None:
    built = build({"sources": [{**TRAIN, "count": 16, "allocate": "equal"}]}).folder
    golds = [record.gold["intent"] for record in built.records()]
    assert {golds.count(gold) for gold in golds} == {2}
