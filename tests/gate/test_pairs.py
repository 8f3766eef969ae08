"""Clients in processes, the pairs that the gate is measured with, and the tables of what sharing cost."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

pytest.importorskip("torch")
sys.path.append(str(ROOT / "benchmarks" / "gpu"))

import gate
import gate_cost
import gated
import pair
from clients_serve import arrivals
from gate import Policy, cells, loads, read_specs
from pair import ClientFailed, Row, Spec, read, running, settled, summary

from astrarium.core.errors import AstrariumError


def test_a_client_that_dies_or_keeps_silent_is_an_error_that_shows_its_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pair, "LEAVE_S", 0.05)
    cases = (
        ("echo broken wing >&2", "ended before.*broken wing", 60.0),
        ("sleep 60", "did not get ready within", 0.2),
    )
    for program, message, patience_s in cases:
        spec = Spec("train", "tiny", 1, prefix=("sh", "-c", program))
        with pytest.raises(ClientFailed, match=f"(?s){message}"), running([spec], patience_s):
            pytest.fail("it cannot be ready")


def test_policies_are_written_with_their_knobs() -> None:
    assert Policy.read("orion:duration=0.025,sm=80").knobs == {"duration": 0.025, "sm": 80}
    assert Policy.read("streams") == Policy("streams", "streams", {})
    with pytest.raises(ValueError, match="knob=number"):
        Policy.read("orion:sm=many")


def test_the_matrix_has_every_pair_once_a_policy_and_the_same_arrivals_for_all_of_a_load() -> None:
    hp = read_specs("serve", "resnet50:4,bert_base:2")
    be = read_specs("train", "resnet50:32,vgg11:8")
    policies = [Policy.read("orion"), Policy.read("astrarium")]
    matrix = cells(loads(hp, ["poisson", "apollo"], [0.25, 0.5]), be, policies, seed=1)
    assert len({cell.key for cell in matrix}) == len(matrix) == 2 * 2 * 2 * 2 * 2
    assert len({cell.load.seed(0) for cell in matrix}) == 8
    assert [cell.policy for cell in matrix] == policies * 16
    with pytest.raises(ValueError, match="model:batch"):
        read_specs("serve", "resnet50")


def serving_row(policy: str, p99: float, be: float) -> Row:
    alone = {"kind": "serve", "count": 100, "unserved": 0, "service_ms": 2.0, "seconds": 1.0}
    times = {"p50_ms": 2.0, "p99_ms": 5.0}
    hp = ({**alone, **times}, {**alone, **times, "p99_ms": p99})
    others = ({"per_second": 10.0}, {"per_second": be})
    return Row("serve beside train", policy, "a b1", "poisson", 0.25, "c b2", *hp, *others)


def test_best_effort_is_held_against_its_best_alone_and_requests_against_the_mean() -> None:
    first, second = (serving_row("orion", 5.5, 9.0) for _ in range(2))
    slow = {**first.be_alone, "per_second": 0.5 * first.be_alone["per_second"]}
    late = {**first.hp_alone, "p99_ms": first.hp_alone["p99_ms"] + 2.0}
    rows = settled([replace(first, be_alone=slow), replace(second, hp_alone=late)])
    assert [row.be_alone for row in rows] == [first.be_alone] * 2
    assert [row.hp_alone["p99_ms"] for row in rows] == [first.hp_alone["p99_ms"] + 1.0] * 2
    assert settled([first, second]) == [first, second]


def test_a_row_says_what_sharing_cost_and_what_time_sharing_would_have_left() -> None:
    row = serving_row("orion", p99=5.5, be=9.0)
    assert row.hp_cost == pytest.approx(1.1)
    assert row.left == pytest.approx(0.8)  # 100 requests of 2 ms in a second
    assert row.be_share == pytest.approx(0.9)
    assert row.total == pytest.approx(1.1)
    lines = summary([serving_row("slow", 20, 10), row, serving_row("orion", 6.5, 8.0)]).splitlines()
    assert [line.split("|")[2].strip() for line in lines[2:]] == ["orion", "slow"]
    cost = [cell.strip() for cell in lines[2].split("|")[3:-1]]
    assert cost == ["2", "1.200", "1.300", "1.000", "0.850", "0.800", "+0.050", "1.050"]


def test_training_beside_training_is_judged_by_pace() -> None:
    def at(pace: float) -> dict[str, Any]:
        return {"kind": "train", "per_second": pace, "p50_ms": 1000 / pace}

    row = Row("train beside train", "orion", "a b1", "closed", 1.0, "c b2", at(20), at(16), at(10), at(5))
    assert row.hp_cost == pytest.approx(1.25)
    assert row.total == pytest.approx(1.3)
    assert row.left == pytest.approx(0.2)


@pytest.mark.thorough
def test_a_run_of_the_gate_measures_every_pair_and_a_second_one_has_nothing_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    placed: list[tuple[str, str]] = []
    policies: list[tuple[str, dict[str, float]]] = []

    def environment(role: str, board: str) -> dict[str, str]:
        placed.append((role, board))
        return {}

    monkeypatch.setattr(gated, "environment", environment)
    monkeypatch.setattr(gated, "set_policy", lambda board, name, **knobs: policies.append((name, knobs)))
    out = tmp_path / "gate.jsonl"
    words = ["--device", "cpu", "--hp", "tiny:1", "--be", "tiny:2", "--arrivals", "poisson", "--board", "b"]
    words += ["--busy", "0.5", "--seconds", "0.2", "--policies", "x:k=2", "y", "--out", str(out)]
    assert gate.main(words) == 0
    rows = read(out)
    assert [row.policy for row in rows] == ["x:k=2", "y"]
    assert placed == [("latency", "b"), ("best-effort", "b")]
    assert policies == [("streams", {})] * 3 + [("x", {"k": 2.0}), ("y", {})]
    for row in rows:
        requests = len(arrivals("poisson", row.hp_alone["rate"], 0.2, row.hp_alone["seed"], None))
        for outcome in (row.hp_alone, row.hp_shared):
            assert outcome["count"] + outcome["unserved"] == requests
        assert row.be_share > 0
        assert row.hp_shared["rate"] == row.hp_alone["rate"]
    assert rows[0].hp_alone == rows[1].hp_alone  # measured once
    assert gate.main(words) == 0
    assert len(policies) == 5
    assert "| y " in capsys.readouterr().out


def test_the_cost_of_the_gate_is_the_ratio_of_medians_over_rounds_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[dict[str, str]] = []
    times = iter([2.0, 2.2, 9.0, 2.4, 2.0, 2.3])  # plain, gated, plain, ...

    @contextmanager
    def fake_running(specs: list[Spec]) -> Iterator[list[str]]:
        started.extend(dict(spec.environment) for spec in specs)
        yield ["plain", "gated"]

    def fake_window(orders: dict[str, str], seconds: float) -> dict[str, dict[str, float]]:
        return {client: {"mean_ms": next(times)} for client in orders}

    monkeypatch.setattr(gate_cost, "running", fake_running)
    monkeypatch.setattr(gate_cost, "window", fake_window)
    monkeypatch.setattr(gated, "environment", lambda role, board: {"ROLE": role, "CUDA_MPS_X": "y"})
    spec = read_specs("train", "tiny:1")[0]
    options = Namespace(board="b", seconds=1.0, rounds=3, device="cpu", company="tiny:1")
    row = gate_cost.compared(gate_cost.Case(spec, "best-effort"), options)
    assert row == ("train tiny b1", "2.000", "2.300", "1.1500")
    mps = {"CUDA_MPS_X": "y"}  # all have it
    assert started == [mps, {"ROLE": "best-effort", **mps}]


def test_best_effort_is_measured_with_company_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    @contextmanager
    def fake_running(specs: list[Spec]) -> Iterator[list[str]]:
        started.extend(spec.environment.get("ROLE", "plain") for spec in specs)
        yield ["plain", "gated"]

    monkeypatch.setattr(gate_cost, "running", fake_running)
    monkeypatch.setattr(gate_cost, "window", lambda orders, _: {one: {"mean_ms": 1.0} for one in orders})
    monkeypatch.setattr(gated, "environment", lambda role, board: {"ROLE": role})
    options = Namespace(
        board="b", seconds=1.0, rounds=1, device="cpu", hp="tiny:1", be="tiny:1", company="tiny:1"
    )
    rows = [gate_cost.compared(case, options) for case in gate_cost.cases(options)]
    assert [row[0] for row in rows] == [
        "serve tiny b1",
        "train tiny b1",
        "train tiny b1, beside an idle server",
    ]
    assert started == ["plain", "latency", "plain", "best-effort", "plain", "best-effort", "latency"]


def test_without_a_gate_the_benchmark_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(role: str, board: str) -> dict[str, str]:
        raise AstrariumError("this installation has no gate")

    monkeypatch.setattr(gated, "environment", missing)
    assert gate.main(["--out", str(tmp_path / "gate.jsonl"), "--arrivals", "poisson"]) == 1
    assert "this installation has no gate" in capsys.readouterr().err
    assert gate.main(["--out", str(tmp_path / "gate.jsonl")]) == 1
    assert "--trace" in capsys.readouterr().err
