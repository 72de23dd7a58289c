"""`parity.json` and its neighbours say what was computed."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest

from clefq.errors import InputError
from clefq.parity.gates.compare import CandidateReport, JudgeSpec, judge_candidate
from clefq.parity.gates.files import load_gates
from clefq.parity.report.documents import check_document, load_schema
from clefq.parity.report.parity_json import parity_document
from clefq.parity.statistics.metric_facts import find_facts, load_facts
from clefq.store.predictions import Predictions
from tests.parity.coherent import coherent, figures
from tests.parity.report.cases import NO_GIT, PROVENANCE
from tests.parity.synthetic import World, predictions


def test_flips_are_those_of_the_frames(
    document: dict, folder: Path, pair: tuple[Predictions, Predictions]
) -> None:
    def chosen(side: Predictions) -> pd.Series:
        return pd.Series(
            [
                o[int(np.argmax(p))]
                for o, p in zip(side.frame.option_ids, side.frame.logprobs, strict=True)
            ]
        )

    before, after, gold = chosen(pair[0]), chosen(pair[1]), pair[0].frame.gold
    flips = document["flips"]
    assert flips["count"] == int((before != after).sum()) > 0
    assert flips["gained"] == int(((before != gold) & (after == gold)).sum())
    assert flips["lost"] == int(((before == gold) & (after != gold)).sum()) > 0
    table = pd.read_parquet(folder / "nvfp4" / "flips.parquet")
    assert len(table) == flips["count"]
    assert table.tv.is_monotonic_decreasing
    assert [row["tv"] for row in flips["worst"]] == sorted(
        (row["tv"] for row in flips["worst"]), reverse=True
    )
    assert len(flips["worst"]) == 20


def test_breakdown_holds_every_metric_of_every_slice(document: dict, folder: Path) -> None:
    table = pd.read_csv(folder / "nvfp4" / "breakdown.csv", dtype={"slice": str})
    scopes = {"overall=": document["metrics"], **document["slices"]}
    assert len(table) == sum(len(metrics) for metrics in scopes.values())
    keys = {"overall", "cohort", "question", "gold", "type", "options", "length", "margin"}
    assert set(table.slice_key) == keys
    row = table[(table.slice == "cohort-1") & (table.metric == "agreement")].iloc[0]
    expected = document["slices"]["cohort=cohort-1"]["agreement"]
    assert row.estimate == expected["estimate"]
    assert row.bootstrap_lower == expected["bootstrap"]["lower"]


def test_noise_floor_and_policies_are_in_the_document(document: dict) -> None:
    floor, own = document["noise_floor"]["metrics"]["tv"], document["metrics"]["tv"]
    excess, cost, gone = document["gates"]
    assert 0 < floor["estimate"] < own["estimate"]
    assert excess["estimate"] == pytest.approx(own["estimate"] - floor["estimate"], abs=1e-9)
    assert (excess["reference"], excess["margin"]) == ("replicate", 0.5)
    (policy,) = document["policies"]
    assert policy["metrics"]["policy_cost"]["estimate"] == pytest.approx(cost["estimate"])
    changes = policy["metrics"]
    assert changes["policy_changes"]["estimate"] == pytest.approx(
        changes["policy_act_to_hold"]["estimate"] + changes["policy_hold_to_act"]["estimate"]
    )
    assert (gone["status"], document["verdict"]["word"]) == ("not_gated", "inconclusive")
    assert {"threshold_flips@0.5", "threshold_flips@0.9"} <= set(document["metrics"])


def test_replicate_gate_without_a_replicate_is_not_gated(
    pair: tuple[Predictions, Predictions], report: CandidateReport
) -> None:
    bare = judge_candidate(*pair, JudgeSpec(report.loaded, NO_GIT, resamples=200))
    assert bare.results[0].status == "not_gated"
    assert "--replicate" in bare.results[0].reason


def test_infinite_kl_is_null_and_counted(world: World) -> None:
    base, other = predictions(world, "bf16"), predictions(world, "fp8")
    frame = other.frame.copy()
    values = np.full(len(frame.logprobs.iloc[0]), -math.inf)
    values[0] = 0.0
    frame.at[0, "logprobs"] = values.tolist()
    spec = JudgeSpec(load_gates("release"), NO_GIT, resamples=200)
    found = judge_candidate(base, Predictions(other.meta, frame), spec)
    document = parity_document(found, PROVENANCE)
    check_document(document, "parity", "x")
    kl = document["metrics"]["kl"]
    assert (kl["estimate"], kl["n_infinite"]) == (None, 1)
    assert "NaN" not in json.dumps(document, allow_nan=False)


def test_identical_predictions_are_exactly_equal(world: World) -> None:
    base = predictions(world, "bf16")
    spec = JudgeSpec(load_gates("strict"), NO_GIT, resamples=200)
    found = judge_candidate(base, replace(base, meta=replace(base.meta, variant="copy")), spec)
    assert found.statistics is not None
    metrics = found.statistics.metrics
    assert (metrics["agreement"].estimate, metrics["tv"].estimate) == (1.0, 0.0)
    assert metrics["accuracy_delta"].estimate == 0.0
    assert not found.alarms
    assert "fail" not in {result.status for result in found.results}


def test_cards_are_those_of_the_statistics(report: CandidateReport) -> None:
    assert report.statistics is not None
    # of a set with variants, which has all the figures that this one lacks
    names = set(report.statistics.metrics) | set(figures(coherent).metrics)
    for metrics in report.statistics.policies.values():
        names |= set(metrics)
    stems = {re.sub(r"@.*", "", name) for name in names}
    assert stems == {re.sub(r"@.*", "", name) for name in load_facts()}
    assert all(find_facts(name) is not None for name in names)


def test_units_of_the_cards_match_the_figures(report: CandidateReport) -> None:
    assert report.statistics is not None
    for name, metric in report.statistics.metrics.items():
        card = find_facts(name)
        assert card is not None
        natural = {"share": "fraction", "difference": "fraction", "≥ nats": "nats"}
        assert natural.get(metric.unit, metric.unit) == card.unit, name


def test_summary_holds_sizes_and_the_contract_columns(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    (row,) = summary["candidates"]
    assert row["size_gb"] == 12.0 and summary["baseline"]["size_gb"] == 18.8
    assert row["throughput"] is None
    for name in ("accuracy", "accuracy_delta", "agreement", "kl", "tv"):
        assert row[name]["estimate"] is not None


def test_the_published_schemas_accept_what_is_written(document: dict, folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    for name, value in (("parity", document), ("summary", summary)):
        jsonschema.Draft202012Validator(load_schema(name)).validate(value)
        with pytest.raises(jsonschema.ValidationError, match="more"):
            jsonschema.Draft202012Validator(load_schema(name)).validate({**value, "more": 1})


def test_a_fault_deep_inside_is_named_by_its_keys(document: dict) -> None:
    metrics = {**document["metrics"], "kl": {**document["metrics"]["kl"], "n_records": -1}}
    flips = {key: value for key, value in document["flips"].items() if key != "ties"}
    with pytest.raises(InputError) as caught:
        check_document({**document, "metrics": metrics, "flips": flips}, "parity", "p.json")
    assert caught.value.faults == (
        "metrics.kl.n_records must be at least 0, found -1",
        "flips.ties is missing",
    )


def test_schema_lists_every_fault(document: dict) -> None:
    broken = {**document, "verdict": {**document["verdict"], "word": "fine"}, "more": 1}
    with pytest.raises(InputError) as caught:
        check_document(broken, "parity", "p.json")
    assert len(caught.value.faults) == 2
