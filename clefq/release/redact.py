"""`clefq bundle --redact`: the evidence without the names that its owner gave.

A packed bundle is written again under opaque names (`clefq.release.names`): record, question and
option ids, cohorts, sets, gates, policies. Definitions, file and column names, gate descriptions,
error texts and command lines are left out. Everything that a report shows is then computed anew
from the redacted answers, by the redacted gate file and with the original's seeds, so that a
receiver computes the same. Verdict and figures are held against the original's: where one differs,
nothing is written.

`redacted.json` in the bundle says what was done and of which files it is a copy, by their hashes:
the owner can show any of them later.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from clefq.console import Console
from clefq.errors import InputError
from clefq.names.run_folder import REPORT
from clefq.parity.comparison import FROM_PREDICTIONS, provenance
from clefq.parity.gates.compare import CandidateReport
from clefq.parity.gates.files import LoadedGates
from clefq.parity.gates.schema import GateFile, PolicySpec, parse_gates
from clefq.parity.rejudge import embedded_gates, judge_again, replicates_of
from clefq.parity.report.documents import Provenance
from clefq.parity.report.files import ReportSpec, write_candidate
from clefq.parity.report.html_page import index_html
from clefq.parity.report.keeping import SUMMARY_FILE
from clefq.parity.report.parity_json import parity_document, read_parity
from clefq.parity.report.summary import Sizes, sizes_in
from clefq.plain_files import compact_json, read_json, sha256_bytes, sha256_file
from clefq.quantize.manifest import MANIFEST, read_build_manifest, write_manifest
from clefq.release.bundle import (
    CONFIG,
    REDACTED_FILE,
    BundleJob,
    gates_name,
    pack_evidence,
    sides_of,
    summary_of,
)
from clefq.release.evidence import AUDIT, RECIPE
from clefq.release.hash_tree import HashTree, write_tree
from clefq.release.media import MEDIA_FILE
from clefq.release.names import Names, names_of, scope_of
from clefq.release.speed import BENCH
from clefq.release.verify import differences
from clefq.store.atomic import write_json, write_text
from clefq.store.predictions import Predictions, read_predictions, write_predictions
from clefq.store.set_manifest import SetManifest
from clefq.store.set_manifest import read_manifest as read_set_manifest
from clefq.store.sets import MANIFEST_FILE

SCHEMA = "clefq.redacted/1"
_SAYS = (
    "Names and ids are opaque and texts are left out. Every figure and verdict was computed from "
    "the redacted answers, and equals the original's."
)


def pack_redacted(job: BundleJob, target: Path, console: Console) -> tuple[HashTree, Names]:
    """Fills an empty folder with the redacted evidence of a run folder; see `redact`."""
    with TemporaryDirectory(prefix="clefq-") as scratch:
        pack_evidence(job, Path(scratch), console)
        return redact(Path(scratch), target)


def redact(packed: Path, target: Path) -> tuple[HashTree, Names]:
    """Writes a packed bundle again without names.

    Args:
        packed: A folder that `clefq.release.bundle.pack_evidence` filled.
        target: An empty folder.

    Returns:
        The new bundle's hashes, and what stands for what.

    Raises:
        InputError: Something in it cannot be redacted; nothing of the target is to be used then.
    """
    files = {
        path.relative_to(packed): read_predictions(path)
        for path in sorted(packed.glob("predictions/*/*.parquet"))
    }
    names = names_of(files.values(), _manifests(packed, files))
    work = _Redaction(packed, target, names)
    for relative, predictions in files.items():
        work.predictions(relative, predictions)
    reports = [work.report(path) for path in sorted(packed.glob(f"report/*/*/{REPORT}"))]
    for path in sorted(packed.glob(f"report/*/{SUMMARY_FILE}")):
        work.summary(path)
    for path in sorted(packed.glob(f"sets/*/{MANIFEST_FILE}")):
        work.set(path)
    for folder in sorted(packed.glob("models/*")):
        work.model(folder)
    work.benches()
    says = {
        "schema": SCHEMA,
        "says": _SAYS,
        "reports": reports,
        "predictions": {new: sha256_file(packed / old) for new, old in sorted(work.files.items())},
    }
    write_json(target / REDACTED_FILE, says)
    return write_tree(target), names


def _manifests(packed: Path, files: Mapping[Path, Predictions]) -> dict[str, SetManifest | None]:
    """Every set that the bundle names, with its manifest where that is here."""
    found: dict[str, SetManifest | None] = dict.fromkeys(path.parent.name for path in files)
    for path in packed.glob(f"sets/*/{MANIFEST_FILE}"):
        found[path.parent.name] = read_set_manifest(path)
    return found


class _Redaction:
    """One bundle that is written again.

    Args:
        packed: The bundle.
        target: The new one.
        names: What stands for what.
    """

    def __init__(self, packed: Path, target: Path, names: Names) -> None:
        self.packed = packed
        self.target = target
        self.names = names
        self.files: dict[str, Path] = {}
        self.bench_names = {
            path.name: f"bench-{number}.json"
            for number, path in enumerate(sorted(packed.glob(f"{BENCH}/*.json")), start=1)
        }

    def predictions(self, relative: Path, found: Predictions) -> None:
        """Writes a predictions file."""
        goal = relative.parent.parent / self.names.sets[relative.parent.name] / relative.name
        (self.target / goal).parent.mkdir(parents=True, exist_ok=True)
        meta = replace(
            found.meta,
            eval_set=self.names.sets[relative.parent.name],
            redacted_from=sha256_file(self.packed / relative),
        )
        how = None
        if found.growth is not None:
            known = {"records": found.growth.known, "whole": True}
            how = {"reused": [known], "asked_at": found.growth.asked_at}
        write_predictions(self.target / goal, self.names.frame(found.frame), meta, how)
        self.files[goal.as_posix()] = relative

    def report(self, path: Path) -> dict[str, Any]:
        """Judges a report's redacted answers, holds them against it and writes them.

        Returns:
            The report's entry in `redacted.json`.
        """
        old = read_parity(path)
        variant, set_name = str(old["candidate"]["variant"]), str(old["eval_set"]["name"])
        if not old["metrics"]:
            raise InputError(
                f"the report about {variant} on {set_name} has no figures to be redacted: "
                f"{'; '.join(old['verdict']['reasons'])}",
                fix="judge it again, or name the other variants with --variant.",
            )
        renamed = self.names.sets[set_name]
        home = self.target / "report" / renamed
        home.mkdir(parents=True, exist_ok=True)
        files = [
            self.target / "predictions" / renamed / f"{name}.parquet" for name, _ in sides_of(old)
        ]
        document = self._document(old, path, files)
        report = judge_again(document, path, files)
        spec = ReportSpec(
            self._provenance(old), self._sizes(path.parent.parent), self._inconclusive_fails(path)
        )
        new = parity_document(report, spec.provenance)
        faults = list(self._differences(old, new, report))
        if faults:
            raise InputError(
                f"the report about {variant} on {set_name} cannot be redacted: its figures would "
                "not be the same.",
                fix="judge it again with this clefq (clefq parity), then bundle.",
                faults=faults[:12],
            )
        write_candidate(home / variant, report, spec)
        return {
            "report": f"report/{renamed}/{variant}",
            "digest_of_original": old["provenance"]["digest"],
            "gate_file_of_original": old["gate_file"]["sha256"],
            "verdict": new["verdict"]["word"],
        }

    def _document(self, old: Mapping[str, Any], path: Path, files: list[Path]) -> dict[str, Any]:
        """The stored report as far as judging it again reads it, with redacted gates and files."""
        home = self.target / "report" / files[0].parent.name / path.parent.name
        stored = [
            {"path": Path(os.path.relpath(file, home)).as_posix(), "sha256": sha256_file(file)}
            for file in files
        ]
        sides = [old["baseline"], old["candidate"], *replicates_of(old)]
        sides = [{**side, "predictions": s} for side, s in zip(sides, stored, strict=True)]
        floor = old["noise_floor"]
        return {
            **old,
            "baseline": sides[0],
            "candidate": sides[1],
            "noise_floor": None if floor is None else {**floor, "replicates": sides[2:]},
            "gate_file": self._gate_file(old["gate_file"], path),
        }

    def _gate_file(self, old: Mapping[str, Any], path: Path) -> dict[str, Any]:
        loaded = embedded_gates(old, path)
        superseded = old["superseded"]
        before = None
        if superseded is not None:
            before = self._gates(embedded_gates({"bundled": False, **superseded}, path), None)
            superseded = {**superseded, **_embedded(before)}
        now = self._gates(loaded, None if before is None else before.sha256)
        return {**old, **_embedded(now), "superseded": superseded}

    def _gates(self, loaded: LoadedGates, supersedes: str | None) -> LoadedGates:
        """A gate file without names, written to `gates/`; a bundled template holds none."""
        if not loaded.bundled:
            gates = _renamed(loaded, supersedes, self.names)
            text = yaml.safe_dump(_without_none(asdict(gates)), sort_keys=False)
            data = text.encode("utf-8")
            loaded = LoadedGates(parse_gates(data, "gates"), text, sha256_bytes(data), loaded.path)
            assert loaded.gates == gates, "a gate file reads back as it was"
        write_text(self.target / "gates" / gates_name(_embedded(loaded)), loaded.text)
        return loaded

    def _provenance(self, old: Mapping[str, Any]) -> Provenance:
        """As of now, but at the original's time: the same evidence gives the same bytes."""
        made = old["provenance"]["created_at"]
        now = provenance(FROM_PREDICTIONS)
        return replace(now, created_at=made, command="clefq bundle --redact")

    def _inconclusive_fails(self, path: Path) -> bool:
        """Whether the original's JUnit file counts inconclusive gates as failures."""
        from clefq.parity.report.junit import junit_xml

        text = (path.parent / "junit.xml").read_text("utf-8")
        return text != junit_xml([read_parity(path)], inconclusive_fails=False)

    def _sizes(self, folder: Path) -> Sizes:
        """Sizes and speeds that the comparison knows, speeds from the renamed files."""
        stored = sizes_in(read_json(folder / SUMMARY_FILE))
        speeds = {
            name: {**speed, "source": self._bench_text(str(speed.get("source", "")))}
            for name, speed in stored.throughput.items()
        }
        return Sizes(stored.bytes, speeds)

    def _bench_text(self, text: str) -> str:
        for old, new in self.bench_names.items():
            text = text.replace(old, new)
        return text

    def _differences(
        self, old: Mapping[str, Any], new: Mapping[str, Any], report: CandidateReport
    ) -> Iterator[str]:
        """Where verdict or figures are not the original's, a line each."""
        yield from differences(_figures(old, self.names), _figures(new, None))

    def summary(self, path: Path) -> None:
        """Writes the comparison of a set's candidates."""
        home = self.target / "report" / self.names.sets[path.parent.name]
        reports = [read_parity(p) for p in sorted(home.glob(f"*/{REPORT}"))]
        summary = summary_of(read_json(path), reports, self._sizes(path.parent))
        write_json(home / SUMMARY_FILE, summary)
        write_text(home / "index.html", index_html(summary))

    def set(self, path: Path) -> None:
        """Writes a set's manifest: counts and hashes, no definition."""
        old = read_set_manifest(path)
        definition = {"redacted": True, "sha256": old.definition_sha256}
        cleaned = old.decontamination
        if cleaned is not None:
            hashes = enumerate(cleaned.against.values(), start=1)
            cleaned = replace(cleaned, against={f"set-{k} compared": h for k, h in hashes})
        new = replace(
            old,
            name=self.names.sets[path.parent.name],
            definition=definition,
            definition_sha256=sha256_bytes(compact_json(definition).encode("utf-8")),
            sources=tuple(_without_files(source) for source in old.sources),
            cohorts={self.names.cohorts[name]: n for name, n in old.cohorts.items()},
            classes={
                self.names.questions[question]: {
                    self.names.options.get(option, option): n for option, n in options.items()
                }
                for question, options in old.classes.items()
            },
            decontamination=cleaned,
        )
        goal = self.target / "sets" / new.name
        write_json(goal / MANIFEST_FILE, asdict(new))
        write_json(goal / "definition.json", definition)
        if path.with_name(MEDIA_FILE).is_file():
            shutil.copyfile(path.with_name(MEDIA_FILE), goal / MEDIA_FILE)

    def model(self, folder: Path) -> None:
        """Copies what is known of a checkpoint, but for the set's name and the recipe's words."""
        goal = self.target / "models" / folder.name
        goal.mkdir(parents=True)
        for name in (CONFIG, AUDIT):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, goal / name)
        if not (folder / MANIFEST).is_file():
            return
        manifest = read_build_manifest(folder)
        used, recipe = manifest.calibration, dict(manifest.recipe)
        if used is not None:
            used = {**used, "set": self.names.sets.get(str(used["set"]), "a set")}
        text = (folder / RECIPE).read_text(encoding="utf-8")
        if manifest.scheme == "custom" or any(name in text for name in self.names.sets):
            # what was searched, and on what, stands in its comments
            kept = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
            text = "".join(f"{line}\n" for line in kept)
            recipe |= {"origin": RECIPE, "sha256": sha256_bytes(text.encode("utf-8"))}
        write_text(goal / RECIPE, text)
        write_manifest(goal, replace(manifest, calibration=used, recipe=recipe))

    def benches(self) -> None:
        """Copies measurements of speed; records of a set are named by its number."""
        for old, new in self.bench_names.items():
            body = read_json(self.packed / BENCH / old)
            write_json(self.target / BENCH / new, _swapped(body, self.names.sets))


def _embedded(loaded: LoadedGates) -> dict[str, Any]:
    """What a report says of a gate file."""
    return {
        "name": loaded.gates.name,
        "description": loaded.gates.description,
        "sha256": loaded.sha256,
        "bundled": loaded.bundled,
        "bound": loaded.gates.bound,
        "text": loaded.text,
    }


def _renamed(loaded: LoadedGates, supersedes: str | None, names: Names) -> GateFile:
    """A gate file without the names in it."""
    gates = loaded.gates
    policies = {p.name: f"policy-{k}" for k, p in enumerate(gates.policies, start=1)}

    def metric(name: str) -> str:
        stem, mark, parameter = name.partition("@")
        return f"{stem}@{policies[parameter]}" if parameter in policies and mark else name

    return replace(
        gates,
        name="redacted",
        description="A gate file without its names.",
        gates=tuple(
            replace(
                gate,
                name=f"gate-{number}",
                metric=metric(gate.metric),
                slice=_selector(gate.slice, names),
            )
            for number, gate in enumerate(gates.gates, start=1)
        ),
        policies=tuple(_policy(policy, policies[policy.name], names) for policy in gates.policies),
        eval_set=None
        if gates.eval_set is None
        else replace(gates.eval_set, name=names.sets.get(gates.eval_set.name, "another set")),
        expected_accuracy={
            scope_of(cohort, names): value for cohort, value in gates.expected_accuracy.items()
        },
        supersedes=supersedes,
        redacted_from=loaded.sha256,
    )


def _selector(found: Any, names: Names) -> Any:
    if found is None:
        return None
    key, label = names.key(found.by), names.label(found.by, found.value)
    if found.cohorts:
        return replace(found, cohorts={key.partition(".")[2]: label})
    return replace(found, **{key: label})


def _policy(policy: PolicySpec, name: str, names: Names) -> PolicySpec:
    """A policy by its new names; a pattern must fit one question or all."""
    fitting = [new for old, new in names.questions.items() if fnmatchcase(old, policy.questions)]
    if len(fitting) not in (0, 1, len(names.questions)):
        raise InputError(
            f"the policy {policy.name} is about {len(fitting)} of {len(names.questions)} "
            "questions, which no pattern of opaque names says.",
            fix="write one policy a question, and judge again.",
        )
    pattern = "*" if len(fitting) == len(names.questions) else (fitting or ["absent"])[0]
    option = names.options.get(policy.option, "absent")
    return replace(policy, name=name, questions=pattern, option=option)


def _without_files(source: Any) -> Any:
    """A source by its kind, licence and counts; of the user's own without words."""
    own = source.origin == "user"
    return replace(
        source,
        files={},
        split="" if own else source.split,
        licence="the user's own" if own else source.licence,
        attribution=None if own else source.attribution,
    )


def _figures(document: Mapping[str, Any], names: Names | None) -> dict[str, Any]:
    """What must be equal: verdict and every figure, slices by their new names.

    Args:
        document: A `parity.json` value.
        names: What stands for what, of an original; None of a redacted one.
    """

    def renamed(name: str | None) -> str | None:
        return name if names is None or name is None else names.slice(name)

    def numbers(value: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in value.items() if not isinstance(v, str | list | tuple | Mapping)}

    floor = document["noise_floor"]
    return {
        "verdict": document["verdict"]["word"],
        "more_questions": document["verdict"]["more_questions"],
        "banners": len(document["verdict"]["banners"]) + (names is not None),
        "metrics": document["metrics"],
        "slices": {renamed(name): figures for name, figures in document["slices"].items()},
        "gates": sorted(
            (
                {**numbers(gate), "status": gate["status"], "slice": renamed(gate["slice"]) or ""}
                for gate in document["gates"]
            ),
            key=compact_json,
        ),
        "coverage": numbers(document["coverage"]),
        "flips": numbers(document["flips"]),
        "alarms": [numbers(alarm) for alarm in document["alarms"]],
        "noise_floor": None if floor is None else floor["metrics"],
        "policies": [policy["metrics"] for policy in document["policies"]],
    }


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list | tuple):
        return [_without_none(entry) for entry in value]
    return value


def _swapped(value: Any, names: Mapping[str, str]) -> Any:
    """A JSON value in whose texts every name is what stands for it."""
    if isinstance(value, str):
        for old, new in names.items():
            value = re.sub(rf"(?<![\w-]){re.escape(old)}(?![\w-])", new, value)
        return value
    if isinstance(value, Mapping):
        return {key: _swapped(entry, names) for key, entry in value.items()}
    if isinstance(value, list):
        return [_swapped(entry, names) for entry in value]
    return value
