"""Figures 6, 7, 14 and 15 in their quick forms: sane numbers, honest verdicts, a picture."""

from __future__ import annotations

import pytest
from papers.tests.reproductions import QUICK, checked, measured_once

from astrarium.serving.scenario.rates import spans
from astrarium_papers.findings import Effort, Findings
from astrarium_papers.symphony import figure6a, figure6b, figure7, figure14, figure15

FIGURES = ("figure6a", "figure6b", "figure7", "figure14", "figure15")
reproduced = measured_once("symphony")


def claim(findings: Findings, words: str) -> bool:
    (verdict,) = [claim.holds for claim in findings.claims if words in claim.what]
    return verdict


TestReproductions = checked(reproduced, FIGURES)


def test_figure6a_eager_falls_behind_as_batching_gets_stronger() -> None:
    for gather, percents in reproduced("figure6a").findings.data["percent"].items():
        assert percents[0] == pytest.approx(100, abs=5), gather
        assert 50 < percents[-1] < 95, gather
    window, fcfs = (reproduced("figure6a").findings.data["percent"][gather] for gather in ("window", "fcfs"))
    assert window[-1] < fcfs[-1] - 10  # what deferral gains depends on the gather


def test_figure6a_shape_allows_noise_but_no_recovery() -> None:
    assert figure6a._falls([100, 99, 99.5, 80])
    assert not figure6a._falls([100, 80, 90])


def test_figure6b_a_timeout_helps_one_model_but_not_the_mix() -> None:
    findings = reproduced("figure6b").findings
    single, zoo = (findings.data["percent"][name]["window"] for name in (figure6b.SINGLE, figure6b.ZOO))
    assert single[0] < max(single) <= 104
    assert max(single) > 93
    assert zoo[0] < 85
    assert max(zoo) < 90
    assert claim(findings, "the mix: every timeout stays much lower than deferred (window)")
    assert not claim(findings, "the mix: every timeout stays much lower than deferred (fcfs)")


def test_figure7_settings_are_those_of_table_1() -> None:
    settings = figure7.every_setting()
    assert len(settings) == len(set(settings)) == 6 * 6 * 7 * 5 * 6 + 7 * 6
    full = figure7.panels(Effort())
    assert full == figure7.panels(Effort())  # the sample is the same every time
    assert set(full["all"]) < set(settings)
    assert len(set(full["all"])) == len(full["all"])
    assert {setting.model for setting in full["all"]} >= set(figure7.MODELS)


def test_figure7_gains_where_batching_is_strong() -> None:
    panels = reproduced("figure7").findings.data["panels"]
    ratios = {case["slo_ms"]: case["ratio"] for case in panels["DenseNet121"]}
    assert 1.2 < ratios[30] < 3
    assert ratios[50] < ratios[30]
    assert all(0.85 < case["ratio"] < 1.1 for case in panels["BERT"])
    assert all(case["ratio"] > 1 for case in panels["mix"])


def test_figure7_an_slo_shorter_than_a_request_is_skipped() -> None:
    impossible = figure7.Setting("DenseNet121", 8, 1.0, 10, 1.0)  # one request takes 11.4 ms
    assert figure7._ratio(impossible, QUICK) is None


def test_figure14_latency_costs_tight_objectives_most() -> None:
    data = reproduced("figure14").findings.data
    tight, loose = data["tcp"]["goodput"]
    assert tight[-1] == 0  # 36 ms of latency in an objective of 20 ms
    assert 0 < loose[-1] < loose[0]
    assert tight[1] / tight[0] < loose[1] / loose[0] <= 1.02
    assert all(curve[-1] > 0.94 * curve[0] for curve in data["rdma"]["goodput"])


def test_figure14_finds_where_a_loss_is_reached() -> None:
    assert figure14._crossing([0, 10, 20], [0.0, 50.0, 100.0], 75.0) == 15
    assert figure14._crossing([0, 10, 20], [0.0, 5.0, 10.0], 75.0) == 20


def test_figure15_usage_and_advice_follow_the_load() -> None:
    findings = reproduced("figure15").findings
    data = findings.data
    assert min(data["used"]) < 0.7 * data["gpus"]
    assert max(data["used"]) == data["gpus"]
    assert min(data["advice"]) < 0 < max(data["advice"])
    assert all(claim.holds for claim in findings.claims), findings.claims
    for offered, good in zip(data["offered"], data["good"], strict=True):
        assert all(0 <= some <= most for some, most in zip(good, offered, strict=True))


def test_figure15_rates_change_and_pass_the_capacity() -> None:
    case = figure15._scenario(gpus=64, seconds=40)
    parts = spans(case.workload, list(case.models))
    assert len(parts) == 20
    assert len(case.models) == 24
    loads = reproduced("figure15").findings.data["load"]
    assert min(loads) < 0.5
    assert 1.05 < max(loads) < 1.4
