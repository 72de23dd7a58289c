"""One judged candidate and its written report folder."""

import json
from pathlib import Path

import pytest

from clefq.parity.gates.compare import CandidateReport, JudgeSpec, judge_candidate
from clefq.parity.gates.files import LoadedGates
from clefq.parity.gates.schema import parse_gates
from clefq.parity.report.files import ReportSpec, write_reports
from clefq.parity.report.summary import Sizes
from clefq.store.predictions import Predictions
from tests.parity.report.cases import NO_GIT, POLICY_GATES, PROVENANCE
from tests.parity.synthetic import Dial, World, make_world, predictions


@pytest.fixture(scope="session")
def world() -> World:
    return make_world(260)


@pytest.fixture(scope="session")
def pair(world: World) -> tuple[Predictions, Predictions]:
    return predictions(world, "bf16"), predictions(world, "nvfp4", Dial(noise=0.4, swap=0.05))


@pytest.fixture(scope="session")
def report(world: World, pair: tuple[Predictions, Predictions]) -> CandidateReport:
    gates = parse_gates(POLICY_GATES, "p.yaml")
    loaded = LoadedGates(gates, POLICY_GATES.decode(), "c" * 64, Path("p.yaml"))
    replicate = predictions(world, "bf16", Dial(noise=0.01))
    return judge_candidate(*pair, JudgeSpec(loaded, NO_GIT, resamples=400), [replicate])


@pytest.fixture(scope="session")
def folder(report: CandidateReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reports") / "r"
    sizes = Sizes({"bf16": 18_800_000_000, "nvfp4": 12_000_000_000})
    write_reports(path, [report], ReportSpec(PROVENANCE, sizes))
    return path


@pytest.fixture(scope="session")
def document(folder: Path) -> dict:
    return json.loads((folder / "nvfp4" / "parity.json").read_text("utf-8"))
