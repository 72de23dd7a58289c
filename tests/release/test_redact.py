"""A bundle without names: nothing of them is left, and a receiver computes the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clefq.console import Console
from clefq.parity.report.parity_json import read_parity
from clefq.parity.statistics.ordering import hash_ranks
from clefq.plain_files import read_json
from clefq.release.hash_tree import files_of
from clefq.release.names import between, by_hash, numbered
from clefq.release.verify import differences, verify
from clefq.store.predictions import write_predictions
from clefq.store.set_manifest import read_manifest as read_set_manifest
from tests.parity.synthetic import log_softmax, meta
from tests.release.conftest import RESAMPLES, call

NAMES = st.sets(st.text(min_size=1, max_size=8), max_size=40)

# every name that the owner gave: none may be found in a redacted bundle
SECRETS = (
    "zanzibar", "kunde", "wolpertinger", "xylophon", "quagga", "ouzel", "narwhal", "bandicoot",
    "axolotl", "filename", "columnname", "gatekeeper", "policyname", "explained", "oops",
)  # fmt: skip
GATES = """\
schema: clefq.gates/1
name: gatekeeper
description: explained by the owner
coverage: 0.9
baseline_floor: chance
gates:
  - {name: gatekeeper-all, metric: accuracy_delta, direction: at_least, margin: 0.2, min_n: 20}
  - {name: gatekeeper-quagga, metric: accuracy_candidate, direction: at_least, bound: 0.2,
     slice: {cohort: quagga-a}, min_n: 10}
  - {name: gatekeeper-each, metric: kl, direction: at_most, bound: 9, slice: {cohort: "*"},
     min_n: 10}
  - {name: gatekeeper-gold, metric: accuracy_candidate, direction: at_least, bound: 0.1,
     slice: {gold: "xylophon?/*"}, min_n: 10}
  - {name: gatekeeper-gone, metric: agreement, direction: at_least, bound: 0.5,
     slice: {question: narwhal-gone}, min_n: 10, required: false}
  - {name: gatekeeper-column, metric: agreement, direction: at_least, bound: 0.5,
     slice: {cohorts: {columnname: bandicoot 2}}, min_n: 10, required: false}
  - {name: gatekeeper-cost, metric: policy_cost@policyname, direction: at_most, bound: 2000,
     min_n: 10}
policies:
  - {name: policyname, questions: "xylophon?", option: ouzel-1, threshold: 0.6,
     cost_act_to_hold: 1, cost_hold_to_act: 2}
expected_accuracy: {quagga-a: 0.6}
"""


def _answers(variant: str, shift: float) -> pd.DataFrame:
    base, moves = np.random.default_rng(5), np.random.default_rng(6)
    rows = []
    for number in range(120):
        questions = {
            "xylophon?": ("choice", [f"ouzel-{k}" for k in range(4)]),
            "wolpertinger": ("noul", ["false", "true"]),
        }
        for question, (kind, ids) in questions.items():
            values = base.normal(size=len(ids)) * 2
            gold = ids[int(np.argmax(values + base.normal(size=len(ids))))]
            error = "oops: kunde-7 has no answer" if number == 7 and variant == "fp8" else None
            moved = log_softmax(values + shift * moves.normal(size=len(ids))).tolist()
            rows.append(
                {
                    "record_id": f"kunde-{number}",
                    "cohort": f"quagga-{'ab'[number % 2]}",
                    "cohorts": json.dumps({"columnname": f"bandicoot {number % 3}"}),
                    "question_id": question,
                    "question_type": kind,
                    "option_ids": ids,
                    "logprobs": None if error else moved,
                    "gold": gold,
                    "input_tokens": 100 + number,
                    "truncated_tokens": 0,
                    "error": error,
                }
            )
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder whose every name is a secret, judged with a replicate."""
    root = tmp_path_factory.mktemp("redact") / "run"
    home = root / "predictions" / "zanzibar"
    home.mkdir(parents=True)
    common = {"eval_set": "zanzibar", "model_sha256": "7" * 64}
    for variant, shift in (("bf16", 0.0), ("fp8", 0.3), ("nvfp4", 1.5)):
        sha = "7" * 64 if variant == "bf16" else "8" * 64
        arithmetic = {"bf16": "bf16", "fp8": "w8a8", "nvfp4": "w4a4"}[variant]
        info = meta(variant, **{**common, "model_sha256": sha}, arithmetic=arithmetic)
        write_predictions(home / f"{variant}.parquet", _answers(variant, shift), info)
    again = root / "filename-again.parquet"
    write_predictions(again, _answers("again", 0.05), meta("bf16", **common, arithmetic="bf16"))
    gates = root / "filename-gates.yaml"
    gates.write_text(GATES)
    code = call("parity", "--baseline", "bf16", "--run", root, "--gates", gates,
                "--replicate", again, "--quiet")  # fmt: skip
    assert code in (0, 1, 3)
    return root


@pytest.fixture(scope="module")
def redacted(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "redacted"
    assert call("bundle", run, "--redact", "--out", folder, "--quiet") == 0
    return folder


def _bytes(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every name and byte of a bundle, Parquet's columns and metadata unpacked."""
    for name in [*files_of(folder), "evidence.json"]:
        path = folder / name
        yield name, name.encode() + path.read_bytes()
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            yield name, repr(table.schema.metadata).encode() + repr(table.to_pydict()).encode()


def test_no_name_is_left(redacted: Path) -> None:
    found = list(_bytes(redacted))
    assert len(found) > 20
    left = {(s, name) for s in SECRETS for name, data in found if s.encode() in data.lower()}
    assert not left
    # beside it, for its owner alone
    names = read_json(redacted.with_name("redacted.names.json"))
    assert names["sets"] == {"zanzibar": "set-1"} and len(names["records"]) == 120


def test_a_receiver_computes_the_same(run: Path, redacted: Path) -> None:
    with patch("clefq.parity.comparison.RESAMPLES", RESAMPLES):
        checked = verify(redacted, None, Console(quiet=True))
    assert checked.faults == []
    assert checked.notes == ["it is redacted: ids and names are opaque, texts are left out"]
    assert call("gate", redacted / "report" / "set-1", "--quiet") in (0, 1, 3)
    for variant in ("fp8", "nvfp4"):
        old = read_parity(run / "report" / "zanzibar" / variant / "parity.json")
        new = read_parity(redacted / "report" / "set-1" / variant / "parity.json")
        assert new["verdict"]["word"] == old["verdict"]["word"]
        assert list(differences(old["metrics"], new["metrics"])) == []
        assert old["metrics"] == new["metrics"], "to the last bit, resampled bounds too"
        assert list(old["slices"].values()) == list(new["slices"].values())
        assert old["noise_floor"]["metrics"] == new["noise_floor"]["metrics"]
        assert any(banner.startswith("redacted: ") for banner in new["verdict"]["banners"])
        bounds = [
            [(g["estimate"], g["lower"], g["status"]) for g in d["gates"]] for d in (old, new)
        ]
        assert bounds[0] == bounds[1] and len(bounds[0]) > 7
        slices = {str(gate["slice"]) for gate in new["gates"]}
        assert {"question=absent", "cohort=cohort-1", "cohort=cohort-2"} <= slices
        assert any(re.fullmatch(r"gold=q\S+/o\S+", name) for name in slices)


def test_it_says_what_it_is_a_copy_of(run: Path, redacted: Path) -> None:
    says = read_json(redacted / "redacted.json")
    old = read_parity(run / "report" / "zanzibar" / "fp8" / "parity.json")
    entry = next(one for one in says["reports"] if one["report"].endswith("/fp8"))
    assert entry["digest_of_original"] == old["provenance"]["digest"]
    assert entry["gate_file_of_original"] == old["gate_file"]["sha256"]
    stored = {side["predictions"]["sha256"] for side in (old["baseline"], old["candidate"])}
    assert stored <= set(says["predictions"].values())


def test_the_seeds_cannot_be_chosen_by_hand(run: Path, redacted: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    (gates,) = (redacted / "gates").iterdir()
    assert call("parity", "--baseline", "bf16", "--run", run, "--gates", gates) == 2
    assert "redacted copy" in capsys.readouterr().err


def test_figures_that_would_change_are_refused(run: Path, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    with patch("clefq.parity.comparison.RESAMPLES", RESAMPLES + 7):
        # not `call`, which would set the number back
        from clefq.cli.main import run as main

        argv = ["clefq", "bundle", str(run), "--redact", "--out", str(tmp_path / "b")]
        with patch("sys.argv", argv), pytest.raises(SystemExit) as stopped:
            main()
    assert stopped.value.code == 2 and "cannot be redacted" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_a_published_folder(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "upload"
    publish = ("bundle", finished, "--variant", "fp8", "--publish", out, "--quiet")
    assert call(*publish, "--redact", "--despite", "card") == 2
    assert call(*publish, "--redact") == 0
    assert call("bundle", "--verify", out, "--quiet") == 0
    manifest = read_set_manifest(finished / "sets" / "nano-eval" / "manifest.json")
    # a plain word such as `device` stands in the fixed text of cards and reports too
    names = {*manifest.cohorts, *manifest.classes, "nano-eval", "nano-v1"}
    secrets = {name for name in names if re.search(r"[^a-z]", name)}
    assert len(secrets) > 10
    texts = {
        path: path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and "vllm_plugin" not in path.parts and path.suffix != ".safetensors"
    }
    left = {
        (secret, path.relative_to(out).as_posix())
        for secret in secrets
        for path, data in texts.items()
        if re.search(rb"(?<![\w-])" + re.escape(secret.encode()) + rb"(?![\w-])", data)
    }
    assert not {(s, p) for s, p in left if p not in ("tokenizer.json", "joint_schema_model.py")}


@given(NAMES, NAMES)
def test_orders_stay(names: set[str], fixed: set[str]) -> None:
    names -= fixed
    new = between(names, "q", fixed)
    old_order, new_order = (
        np.array(ids, dtype=object)
        for ids in (
            [*sorted(names), *sorted(fixed)],
            [*map(new.get, sorted(names)), *sorted(fixed)],
        )
    )
    if len(old_order):
        assert hash_ranks(old_order).tolist() == hash_ranks(new_order).tolist()
    assert sorted(new.values()) == [new[name] for name in sorted(names)]
    if names:
        records = by_hash(names, "r")
        old = np.array(sorted(names), dtype=object)
        again = np.array([records[name] for name in old], dtype=object)
        assert hash_ranks(old).tolist() == hash_ranks(again).tolist()
        assert set(again) == {f"r{k}" for k in range(1, len(names) + 1)}
    assert list(numbered(names, "c").values()) == sorted(numbered(names, "c").values())
