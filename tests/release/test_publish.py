from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest

from clefq.clef.checkpoint import checkpoint_sha256
from clefq.parity.gates.formatting import figure
from clefq.plain_files import read_json, sha256_file
from clefq.release import verify_published
from clefq.release.verify import Verified
from clefq.store.atomic import write_json
from clefq.store.linking import place
from tests.release.conftest import EVAL, Clefq, call

REPO = ("--repo", "me/clef-fp8", "--base-model", "Org/clef")


@pytest.fixture(scope="module")
def published(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("publish") / "clef-fp8"
    assert call("bundle", finished, "--variant", "fp8", "--publish", out, *REPO, "--quiet") == 0
    return out


@pytest.fixture
def folder(published: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(published, tmp_path / "clef-fp8")
    return tmp_path / "clef-fp8"


def test_what_is_in_it(published: Path, finished: Path) -> None:
    model = finished / "models" / "fp8"
    for path in model.iterdir():
        assert sha256_file(published / path.name) == sha256_file(path)
    assert checkpoint_sha256(published) == checkpoint_sha256(model)
    names = {p.relative_to(published).as_posix() for p in published.rglob("*") if p.is_file()}
    for name in ("README.md", "LICENSE", "recipe.yaml", "clefq.json"):
        assert name in names
    assert f"definitions/{EVAL}.yaml" in names
    assert "vllm_plugin/pyproject.toml" in names
    for kind in ("", "-cohorts", "-length-bands", "-margin-bands"):
        assert f"metrics/{EVAL}{kind}.csv" in names
    assert not any(part.startswith(".") for name in names for part in name.split("/"))
    card = (published / "README.md").read_text("utf-8")
    assert "pip install ./vllm_plugin" in card and "hf download me/clef-fp8" in card


def test_metrics_are_the_reports(published: Path, finished: Path) -> None:
    document = json.loads((finished / "report" / EVAL / "fp8" / "parity.json").read_text())
    with (published / "metrics" / f"{EVAL}-cohorts.csv").open() as file:
        rows = {(r["slice"], r["metric"]): r for r in csv.DictReader(file)}
    cohorts = {name for name in document["slices"] if name.startswith("cohort=")}
    assert {f"cohort={cohort}" for cohort, _ in rows} == cohorts
    for name in cohorts:
        stored = document["slices"][name]["agreement"]
        row = rows[name.removeprefix("cohort="), "agreement"]
        assert float(row["estimate"]) == stored["estimate"]
        assert int(row["n_questions"]) == stored["n_questions"]
    with (published / "metrics" / f"{EVAL}-length-bands.csv").open() as file:
        bands = list(dict.fromkeys(r["slice"] for r in csv.DictReader(file)))
    assert bands == ["<2K", "2-8K"]
    shown = figure(document["metrics"]["agreement"]["estimate"])
    assert f"| Agreement | {shown} |" in (published / "README.md").read_text("utf-8")


def test_checked_as_it_lies(
    published: Path, clefq: Clefq, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clefq("card", published, "--check") == 0
    capsys.readouterr()
    assert clefq("bundle", "--verify", published, "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert body["notes"] == []
    assert list(body["verdicts"]) == [f"{EVAL}/fp8"]
    assert clefq("audit", published, "--quiet") == 0


def test_the_upload_command(
    finished: Path, tmp_path: Path, clefq: Clefq, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my folder"
    arguments = ("bundle", finished, "--variant", "fp8", "--publish", out)
    for name in ("not a repo", "mine", "me/mine@main"):
        assert clefq(*arguments, "--repo", name) == 2
        assert f"--repo {name!r} is no hub id" in capsys.readouterr().err
    assert clefq(*arguments, "--base-model", "mine") == 2
    assert "--base-model 'mine' is no hub id" in capsys.readouterr().err
    assert clefq(*arguments, "--repo", "me/mine", "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert body["command"] == f"hf upload me/mine '{out}' ."
    assert body["bytes"] == sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
    assert clefq(*arguments) == 2  # it is there


CHANGED = (
    "config.json",
    "joint_head.safetensors",
    "model.safetensors",
    "tokenizer_config.json",
    "chat_template.jinja",
    "LICENSE",
    "recipe.yaml",
    "clefq.json",
    f"metrics/{EVAL}.csv",
    f"metrics/{EVAL}-cohorts.csv",
    f"definitions/{EVAL}.yaml",
    "vllm_plugin/clef_systemone/main.py",
    "vllm_plugin/pyproject.toml",
    f"evidence/predictions/{EVAL}/fp8.parquet",
    "evidence/evidence.json",
)


@pytest.mark.parametrize("name", CHANGED)
def test_one_changed_byte(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of the evidence, whose own check is sound then and need not be done each time."""
    if not name.startswith("evidence/"):
        sound = Verified(folder / "evidence", root="0" * 64)
        monkeypatch.setattr(verify_published, "verify", lambda *arguments: sound)
    path = folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert call("bundle", "--verify", folder) == 1


@pytest.fixture
def sound_evidence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own check is tested elsewhere, and takes its time."""
    sound = Verified(folder / "evidence", root="0" * 64)
    monkeypatch.setattr(verify_published, "verify", lambda *arguments: sound)


@pytest.mark.usefixtures("sound_evidence")
def test_an_added_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "banner.png").write_bytes(b"x")
    (folder / ".gitattributes").write_text("* text\n")
    assert call("bundle", "--verify", folder) == 0
    assert "banner.png: added by somebody" in capsys.readouterr().out
    (folder / "modeling_clef.py").write_text("print('hello')\n")
    assert call("bundle", "--verify", folder) == 1
    assert "modeling_clef.py is no part of what was published" in capsys.readouterr().out


@pytest.mark.usefixtures("sound_evidence")
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (None, "vllm_plugin/build and vllm_plugin/clef_systemone.egg-info"),
        ("more.py", "read it before you install it"),
        ("main.py", "read it before you install it"),
    ],
)
def test_what_pip_leaves(
    folder: Path, more: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Still a fault, since pip would install it; but one that says what it is."""
    plugin = folder / "vllm_plugin"
    for name in ("build/lib/clef_systemone/main.py", "clef_systemone.egg-info/PKG-INFO"):
        (plugin / name).parent.mkdir(parents=True)
        (plugin / name).write_text("x")
    if more is not None:
        (plugin / "clef_systemone" / more).write_text("x")
    assert call("bundle", "--verify", folder) == 1
    assert message in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("sound_evidence")
def test_a_forged_audit(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged checkpoint whose recorded audit, and so whose card, says that all is well."""
    damage(run_folder, float("nan"))
    out = tmp_path / "out"
    arguments = ("bundle", run_folder, "--variant", "fp8", "--publish", out)
    assert call(*arguments, "--despite", "audit") == 0
    path = out / "evidence" / "models" / "fp8" / "audit.json"
    body = read_json(path)
    write_json(path, {**body, "passed": True, "breaches": []})
    card = (out / "README.md").read_text("utf-8")
    (out / "README.md").write_text(re.sub(r"> \[!CAUTION\]\n(> .*\n)+", "", card), "utf-8")
    capsys.readouterr()
    assert call("bundle", "--verify", out) == 1
    text = capsys.readouterr().out
    assert "audit: " in text and "layers.2.mlp.down_proj" in text


def test_a_changed_figure_in_the_card(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "README.md"
    text = path.read_text("utf-8")
    path.write_text(text.replace("| Agreement | ", "| Agreement | 1"), "utf-8")
    assert call("card", folder, "--check") == 1
    assert call("bundle", "--verify", folder) == 1
    assert "README.md:" in capsys.readouterr().out


def test_editing_it_leaves_the_run_folder_alone(folder: Path, finished: Path) -> None:
    before = sha256_file(finished / "models" / "fp8" / "config.json")
    with (folder / "config.json").open("a") as file:
        file.write(" ")
    assert sha256_file(finished / "models" / "fp8" / "config.json") == before


def damage(run: Path, factor: float = 8) -> None:
    """A wrong scale in the checkpoint, recorded and judged as if nothing were."""
    from safetensors.torch import load_file, save_file

    from clefq.quantize.finish import hash_files, identity
    from clefq.quantize.manifest import read_build_manifest, write_manifest
    from tests.release.conftest import Drift, write_answers

    folder = run / "models" / "fp8"
    tensors = load_file(folder / "model.safetensors")
    name = "model.language_model.layers.2.mlp.down_proj.weight_scale"
    tensors[name] = tensors[name] * factor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    from dataclasses import replace

    manifest = read_build_manifest(folder)
    files = {n: d for n, d in hash_files(folder).items() if n in manifest.files}
    write_manifest(folder, replace(manifest, files=files, sha256=identity(files)))
    write_answers(run, "fp8", Drift(noise=0.02))
    assert call("parity", "--baseline", "bf16", "--run", run, "--quiet") in (0, 1, 3)


def test_a_failed_audit_is_not_published_unless_the_card_says_so(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run_folder)
    out = tmp_path / "out"
    arguments = ("bundle", run_folder, "--variant", "fp8", "--publish", out)
    assert call(*arguments) == 1
    assert "fails its audit" in capsys.readouterr().err
    assert not out.exists() and not (tmp_path / ".out.partial").exists()
    assert call(*arguments, "--despite", "everything") == 2
    assert call(*arguments, "--despite", "audit") == 0
    card = (out / "README.md").read_text("utf-8")
    body = card.split("---\n", 2)[2]
    first = body.index("FAILED its audit and was published all the same")
    assert first < body.index("** on nano-eval")
    assert r"layers.2.mlp.down\_proj" in body
    assert call("card", out, "--check") == 0
    # the warning is part of what is checked
    (out / "README.md").write_text(card.replace("FAILED its audit", "passed its audit"), "utf-8")
    assert call("card", out, "--check") == 1
    # as is that it was published in spite of it
    warning = re.compile(r"> \[!CAUTION\]\n(> .*\n)+")
    assert warning.search(card)
    bare = warning.sub("", card).replace('"overrides": ["audit"]', '"overrides": []')
    (out / "README.md").write_text(bare, "utf-8")
    assert call("card", out, "--check") == 1


def test_a_card_that_is_out_of_date(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("card", run_folder, "--variant", "fp8", "--base-model", "Org/clef") == 0
    path = run_folder / "models" / "fp8" / "README.md"
    good = path.read_text("utf-8").replace("# fp8", "# fp8\n\nMade for our help desk.")
    path.write_text(good.replace("| Agreement | ", "| Agreement | 1"), "utf-8")
    out = tmp_path / "out"
    arguments = ("bundle", run_folder, "--variant", "fp8", "--publish", out)
    assert call(*arguments) == 2
    assert "does not agree with its evidence" in capsys.readouterr().err
    assert call(*arguments, "--despite", "card") == 0
    body = (out / "README.md").read_text("utf-8").split("---\n", 2)[2]
    assert body.index("does not agree with its evidence") < body.index("# fp8")
    assert call("card", out, "--check") == 1
    shutil.rmtree(out)
    path.write_text(good, "utf-8")
    assert call(*arguments) == 0
    text = (out / "README.md").read_text("utf-8")
    assert "Made for our help desk." in text
    assert "base_model: Org/clef" in text
    assert call("card", out, "--check") == 0


def test_a_verdict_that_is_no_pass_is_published_and_stands_first(
    run_folder: Path, tmp_path: Path
) -> None:
    """nvfp4a16 drifted far in these answers."""
    out = tmp_path / "out"
    assert call("bundle", run_folder, "--variant", "nvfp4a16", "--publish", out) == 0
    report = run_folder / "report" / EVAL / "nvfp4a16" / "parity.json"
    word = json.loads(report.read_text())["verdict"]["word"]
    assert word in ("fail", "inconclusive")
    body = (out / "README.md").read_text("utf-8").split("---\n", 2)[2]
    assert body.index(f"**{word.upper()}** on {EVAL}") < body.index("##")


def test_placing_a_file(tmp_path: Path) -> None:
    from clefq.errors import InputError

    source = tmp_path / "a.safetensors"
    source.write_bytes(b"x" * 3_000_000)
    link = tmp_path / "link"
    link.symlink_to(source)
    how = place(link, tmp_path / "b" / "c", sha256_file(source))
    assert how in ("reflink", "hardlink", "copy")
    assert not (tmp_path / "b" / "c").is_symlink()
    assert (tmp_path / "b" / "c").read_bytes() == source.read_bytes()
    with pytest.raises(InputError, match="changed while"):
        place(source, tmp_path / "d", "0" * 64)
