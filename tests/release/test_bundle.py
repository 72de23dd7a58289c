from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import pytest

from clefq.console import Console
from clefq.errors import InputError
from clefq.parity.report.parity_json import signed
from clefq.plain_files import read_json
from clefq.release.archive import pack
from clefq.release.hash_tree import TREE, files_of, read_tree, write_tree
from clefq.release.verify import Verified, differences, verify
from clefq.store.atomic import write_json
from clefq.store.predictions import read_predictions, write_predictions
from tests.release.conftest import EVAL, RESAMPLES, Clefq, Drift, call, write_answers

QUIET = Console(quiet=True)
REPORT = f"report/{EVAL}/nvfp4a16"


def check(bundle: Path, root: str | None = None) -> Verified:
    with patch("clefq.parity.comparison.RESAMPLES", RESAMPLES):
        return verify(bundle, root, QUIET)


@pytest.fixture(scope="module")
def packed(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "evidence"
    assert call("bundle", finished, "--out", folder, "--quiet") == 0
    return folder


@pytest.fixture(scope="module")
def packed_one(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "one"
    assert call("bundle", finished, "--variant", "nvfp4a16", "--out", folder, "--quiet") == 0
    return folder


@pytest.fixture
def bundle(packed_one: Path, tmp_path: Path) -> Path:
    """A copy, of one report, that a test may change."""
    shutil.copytree(packed_one, tmp_path / "evidence")
    return tmp_path / "evidence"


def test_everything_is_there(packed: Path) -> None:
    names = set(files_of(packed))
    for variant in ("fp8", "nvfp4a16"):
        for name in ("parity.json", "report.html", "report.md", "junit.xml", "breakdown.csv"):
            assert f"report/{EVAL}/{variant}/{name}" in names
        for name in ("audit.json", "clefq.json", "recipe.yaml", "checkpoint-config.json"):
            assert f"models/{variant}/{name}" in names
        assert f"predictions/{EVAL}/{variant}.parquet" in names
    assert f"predictions/{EVAL}/bf16.parquet" in names
    assert {f"sets/{EVAL}/{n}.json" for n in ("manifest", "definition", "media")} <= names
    assert any(name.startswith("gates/release-") for name in names)
    # no record of a set leaves the machine
    assert not any(name.endswith((".jsonl", ".png", ".safetensors")) for name in names)
    audit = read_json(packed / "models" / "fp8" / "audit.json")
    assert audit["passed"] is True and audit["compared_with_source"] is True


def test_sound(packed: Path) -> None:
    found = check(packed)
    assert found.faults == [] and found.notes == []
    assert found.verdicts.keys() == {f"{EVAL}/fp8", f"{EVAL}/nvfp4a16"}
    assert found.files == len(files_of(packed))
    assert check(packed, found.root).faults == []
    assert "expected" in check(packed, "0" * 64).faults[0]


def test_the_same_wherever_and_whenever_it_is_packed(
    finished: Path, packed: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "another" / "place"
    shutil.copytree(finished, elsewhere)
    for path in elsewhere.rglob("*"):
        os.utime(path, (1, 1))
    (elsewhere / "models" / "fp8").chmod(0o700)
    assert call("bundle", elsewhere, "--out", tmp_path / "b.tar", "--quiet") == 0
    pack(packed, tmp_path / "a.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    assert check(tmp_path / "b.tar").faults == []


def test_one_changed_byte_in_any_file(bundle: Path) -> None:
    names = [*files_of(bundle), TREE]
    assert len(names) >= 20
    for name in names:
        path = bundle / name
        whole = path.read_bytes()
        for at in {0, len(whole) // 2, len(whole) - 1}:
            changed = bytearray(whole)
            changed[at] ^= 1
            path.write_bytes(changed)
            assert check(bundle).faults, f"{name}, byte {at}"
        path.write_bytes(whole)
    assert check(bundle).faults == []


def test_one_changed_byte_anywhere_in_an_archive(bundle: Path, tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    pack(bundle, archive)
    whole = archive.read_bytes()
    step = len(whole) // 50
    # every field of the first two headers, then all over the file, paddings and end included
    for at in [*range(0, 512, 13), *range(512, len(whole), step), len(whole) - 1]:
        changed = bytearray(whole)
        changed[at] ^= 1
        archive.write_bytes(changed)
        assert check(archive).faults, f"byte {at}"
    archive.write_bytes(whole[:-20_000])
    assert check(archive).faults


def test_a_folder_that_is_no_bundle(tmp_path: Path) -> None:
    (found,) = check(tmp_path).faults
    assert "no evidence.json" in found and "clefq bundle" in found


def test_missing_and_added_files(bundle: Path) -> None:
    (bundle / "notes.txt").write_text("x")
    assert check(bundle).faults == ["notes.txt is not in evidence.json"]
    (bundle / "notes.txt").unlink()
    (bundle / REPORT / "junit.xml").unlink()
    assert check(bundle).faults == [f"{REPORT}/junit.xml is missing"]
    with pytest.raises(InputError, match="no bundle"):
        check(bundle / "nowhere")


def test_a_link_to_a_folder_is_not_followed_unseen(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle / "report" / EVAL, tmp_path / "elsewhere")
    (bundle / "report" / "better").symlink_to(tmp_path / "elsewhere")
    assert "report/better is not in evidence.json" in check(bundle).faults


def edit(path: Path, change: Callable[[Any], None], sign: bool = False) -> None:
    value = json.loads(path.read_text("utf-8"))
    change(value)
    write_json(path, signed(value) if sign else value)


def set_agreement(document: Any) -> None:
    document["metrics"]["agreement"]["estimate"] = 0.9999


def set_verdict(document: Any) -> None:
    document["verdict"]["word"], document["verdict"]["exit_code"] = "inconclusive", 3


def drop_kl(document: Any) -> None:
    del document["metrics"]["kl"]


def set_size(summary: Any) -> None:
    summary["candidates"][0]["accuracy"]["estimate"] = 1.0


FORGERIES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a figure": (
        f"{REPORT}/parity.json",
        lambda path: edit(path, set_agreement, sign=True),
        "metrics.agreement.estimate says 0.9999, computed anew it is",
    ),
    "a verdict": (
        f"{REPORT}/parity.json",
        lambda path: edit(path, set_verdict, sign=True),
        "verdict.word says",
    ),
    "a metric left out": (
        f"{REPORT}/parity.json",
        lambda path: edit(path, drop_kl, sign=True),
        "metrics.kl says null",
    ),
    "a report without its digest renewed": (
        f"{REPORT}/parity.json",
        lambda path: edit(path, set_agreement),
        "its digest does not match",
    ),
    "a summary": (
        f"report/{EVAL}/summary.json",
        lambda path: edit(path, set_size),
        "accuracy.estimate says 1.0",
    ),
    "the gate file": (
        "gates",
        lambda path: next(path.glob("*.yaml")).write_text("name: soft\n"),
        "is not the gate file that it embeds",
    ),
    "a definition": (
        f"sets/{EVAL}/definition.json",
        lambda path: write_json(path, {}),
        "is not the set's definition",
    ),
    "a definition and its manifest": (
        f"sets/{EVAL}/manifest.json",
        lambda path: edit(path, lambda v: v.update(definition={"a": 1})),
        "does not match its hash",
    ),
    "the media counts": (
        f"sets/{EVAL}/media.json",
        lambda path: edit(path, lambda v: v.update(records=1)),
        "media.json counts 1",
    ),
    "the recipe": (
        "models/nvfp4a16/recipe.yaml",
        lambda path: path.write_text("a: b\n"),
        "is not the one that clefq.json names",
    ),
    "the config": (
        "models/nvfp4a16/checkpoint-config.json",
        lambda path: path.write_text("{}"),
        "is not the one that clefq.json names",
    ),
    "the checkpoint's hash": (
        "models/nvfp4a16/clefq.json",
        lambda path: edit(path, lambda v: v.update(sha256="0" * 64)),
        "the checkpoint's hash is not that of its files",
    ),
    "an audit": (
        "models/nvfp4a16/audit.json",
        lambda path: edit(path, lambda v: v.update(passed=False)),
        "against its own list of breaches",
    ),
    "a stray file": ("x.txt", lambda path: path.write_text("x"), "is no part of a bundle"),
    "malformed JSON": ("models/nvfp4a16/audit.json", lambda p: p.write_text("[]"), "malformed"),
    "another set": (
        f"sets/{EVAL}/manifest.json",
        lambda path: edit(path, lambda v: v.update(sha256="0" * 64)),
        "is of another state of",
    ),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_forged_with_all_hashes_renewed(bundle: Path, what: str) -> None:
    """The hash tree agrees with itself; what it covers does not."""
    name, forge, expected = FORGERIES[what]
    before = read_tree(bundle).sha256
    forge(bundle / name)
    tree = write_tree(bundle)
    found = check(bundle)
    assert any(expected in fault for fault in found.faults), found.faults
    assert tree.sha256 != before  # who knows the root needs no more


@pytest.mark.parametrize("name", ["report.html", "report.md", "junit.xml", "breakdown.csv"])
def test_a_forged_view(bundle: Path, name: str) -> None:
    path = bundle / REPORT / name
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    write_tree(bundle)
    assert check(bundle).faults == [f"{REPORT}/{name} does not show this report"]


def test_a_forged_list_of_flips(bundle: Path) -> None:
    path = bundle / REPORT / "flips.parquet"
    frame = pd.read_parquet(path)
    assert len(frame)
    frame.iloc[1:].to_parquet(path, index=False)
    write_tree(bundle)
    assert check(bundle).faults == [f"{REPORT}/flips.parquet does not list these flips"]


def test_other_predictions(bundle: Path) -> None:
    home = bundle / "predictions" / EVAL
    shutil.copyfile(home / "bf16.parquet", home / "nvfp4a16.parquet")
    write_tree(bundle)
    assert check(bundle).faults == [
        f"{REPORT}/parity.json is not of predictions/{EVAL}/nvfp4a16.parquet"
    ]


def test_a_report_of_an_older_clefq(bundle: Path) -> None:
    """It may lack what this version computes; what it holds must be right."""

    def age(document: Any) -> None:
        document["provenance"]["clefq_version"] = "0.0.9"
        del document["metrics"]["kl"]

    edit(bundle / REPORT / "parity.json", age, sign=True)
    edit(bundle / f"report/{EVAL}/summary.json", lambda v: v["candidates"][0].update(kl=None))
    write_tree(bundle)
    found = check(bundle)
    assert not any("parity.json" in fault for fault in found.faults), found.faults
    assert any("made by clefq 0.0.9" in note for note in found.notes)
    edit(bundle / REPORT / "parity.json", set_agreement, sign=True)
    write_tree(bundle)
    assert any("metrics.agreement" in fault for fault in check(bundle).faults)


def test_replicates_from_elsewhere_go_in(run_folder: Path, clefq: Clefq, tmp_path: Path) -> None:
    home = run_folder / "predictions" / EVAL
    kept = (home / "bf16.parquet").read_bytes()
    again = write_answers(run_folder, "bf16", Drift(noise=0.001, arithmetic="bf16"))
    shutil.move(again, tmp_path / "again.parquet")
    (home / "bf16.parquet").write_bytes(kept)
    arguments = ("parity", "--baseline", "bf16", "--run", run_folder, "--quiet")
    assert clefq(*arguments, "--replicate", tmp_path / "again.parquet") in (0, 1, 3)
    assert clefq("bundle", run_folder, "--out", tmp_path / "b") == 0
    assert (tmp_path / "b" / "predictions" / EVAL / "bf16.replicate-1.parquet").is_file()
    assert check(tmp_path / "b").faults == []


def test_gates_that_replace_others(run_folder: Path, clefq: Clefq, tmp_path: Path) -> None:
    """Both gate files are evidence, and both verdicts are computed again."""
    freeze = ("gate", "release", "--freeze", "--set", EVAL, "--baseline", "bf16")
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    assert clefq(*freeze, "--run", run_folder, "--out", old) == 0
    assert clefq(*freeze, "--run", run_folder, "--out", new, "--supersedes", old) == 0
    judge = ("parity", "--baseline", "bf16", "--candidate", "fp8", "--run", run_folder, "--quiet")
    assert clefq(*judge, "--gates", new) in (0, 1, 3)
    out = tmp_path / "b"
    assert clefq("bundle", run_folder, "--variant", "fp8", "--out", out) == 0
    assert len(list((out / "gates").iterdir())) == 2
    assert check(out).faults == []
    report = out / f"report/{EVAL}/fp8/parity.json"
    edit(report, lambda d: d["gate_file"]["superseded"]["verdict"].update(word="fail"), sign=True)
    write_tree(out)
    assert any("superseded.verdict.word says" in fault for fault in check(out).faults)
    assert clefq("card", run_folder, "--variant", "fp8") == 0
    card = (run_folder / "models" / "fp8" / "README.md").read_text("utf-8")
    assert "It replaces release `" in card and "gates changed after results" in card


def test_an_invalid_comparison_is_evidence_too(
    run_folder: Path, clefq: Clefq, tmp_path: Path
) -> None:
    """Answers that contradict the baseline's give no figures, and the card says so first."""
    path = run_folder / "predictions" / EVAL / "fp8.parquet"
    found = read_predictions(path)
    frame = found.frame.assign(cohort="another")
    # a bundle calls it fp8.parquet: what the report says must not depend on that
    elsewhere = tmp_path / "the day before.parquet"
    write_predictions(elsewhere, frame, found.meta)
    arguments = ("parity", "--baseline", "bf16", "--candidate", elsewhere, "--run", run_folder)
    assert clefq(*arguments, "--quiet") == 4
    out = tmp_path / "upload"
    assert clefq("bundle", run_folder, "--variant", "fp8", "--publish", out) == 0
    body = (out / "README.md").read_text("utf-8").split("---\n", 2)[2]
    assert body.index(f"**INVALID** on {EVAL}") < body.index("##")
    assert "there are no figures" in body
    assert clefq("card", out, "--check") == 0
    assert clefq("bundle", "--verify", out) == 0


def test_what_cannot_be_proved_is_not_packed(
    run_folder: Path, clefq: Clefq, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("bundle", run_folder, "--variant", "fp8", "--out", tmp_path / "b")
    path = run_folder / "predictions" / EVAL / "fp8.parquet"
    kept = path.read_bytes()
    path.unlink()
    assert clefq(*arguments) == 2
    assert "nobody could compute the report again" in capsys.readouterr().err
    write_answers(run_folder, "fp8", Drift(noise=0.5))
    assert clefq(*arguments) == 2
    assert "is stale" in capsys.readouterr().err
    assert not (tmp_path / "b").exists() and not (tmp_path / ".b.partial").exists()
    path.write_bytes(kept)
    assert clefq(*arguments) == 0
    assert clefq(*arguments) == 2  # it is there already
    assert clefq("bundle", run_folder, "--variant", "bf16") == 2


def test_the_command(
    packed: Path, bundle: Path, clefq: Clefq, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clefq("bundle", "--verify", packed, "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert body["faults"] == [] and set(body["verdicts"].values()) <= {
        "pass",
        "fail",
        "inconclusive",
    }
    assert clefq("bundle", "--verify", packed, "--root", body["sha256"]) == 0
    (bundle / REPORT / "report.md").write_text("PASS")
    assert clefq("bundle", "--verify", bundle) == 1
    assert f"{REPORT}/report.md was changed" in capsys.readouterr().out
    assert clefq("bundle", packed, "--root", "0" * 64) == 2
    assert clefq("bundle", packed, "--repo", "me/x") == 2
    assert clefq("bundle", "--verify", packed, "--out", "x") == 2


def test_differences_tell_rounding_from_change() -> None:
    one = {"a": 1.0, "b": [1, None], "c": "x", "d": True}
    assert list(differences(one, {**one, "a": 1.0 + 1e-12})) == []
    assert list(differences(one, {**one, "a": 1.0 + 1e-6})) == [
        "a says 1.0, computed anew it is 1.000001"
    ]
    assert list(differences(one, {**one, "b": [1, 2]})) == ["b[1] says null, computed anew it is 2"]
    assert list(differences(one, {**one, "b": [1]}))
    assert list(differences(one, {**one, "d": 1}))
    assert list(differences({"e": 0.0}, {})) == ["e says 0.0, computed anew it is null"]
