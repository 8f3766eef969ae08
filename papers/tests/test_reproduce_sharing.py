"""The gate simulated beside the gate measured: how clients are calibrated, and what is told of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from astrarium.core.quantities import MICROSECOND, MILLISECOND, SECOND
from astrarium_papers import registry
from astrarium_papers.astrarium import _sharing_clients, sharing
from astrarium_papers.astrarium._sharing import Bench, measurements
from astrarium_papers.astrarium._sharing_clients import arrivals, launch_costs, server, trainer
from astrarium_papers.findings import Effort
from astrarium_papers.gate_simulation import alone

MEASURED = measurements()


@pytest.fixture(scope="module")
def reproduction() -> registry.Reproduction:
    return registry.run("astrarium/sharing", Effort(quick=True))


def test_measurements_say_where_they_come_from_and_have_recordings() -> None:
    assert (MEASURED.date, MEASURED.gpu) == ("2026-11-15", "NVIDIA H200")
    assert MEASURED.versions["torch"]
    for run in MEASURED.runs:
        assert run.command.startswith("benchmarks/gpu/gate.py")
        for row in run.rows:
            purpose = "training" if row.busy == 1.0 else "inference"
            assert _sharing_clients.trace(row.hp, purpose).device == MEASURED.gpu
            assert _sharing_clients.trace(row.be, "training").device == MEASURED.gpu
            assert row.cost > 0
            assert 0 <= row.share < 1.2


def test_the_pairs_are_all_that_have_poisson_arrivals() -> None:
    pairs = {(row.hp, row.busy, row.be) for row in MEASURED.run("pairs").rows}
    assert len(pairs) == len(MEASURED.run("pairs").rows) == 5 * 2 * 4


def test_arrivals_are_those_of_the_benchmark() -> None:
    times = arrivals("0 resnet50 b4 poisson 0.5", 355.3)
    assert len(times) == 701  # as it counted, with this seed and rate
    assert (np.diff(times) >= 0).all()
    assert times[-1] < 2 * SECOND


def test_a_request_takes_alone_what_was_measured() -> None:
    for hp, service_ms in MEASURED.run("pairs").service_ms.items():
        took = np.median(alone(server(hp, 0.25, service_ms), 2 * SECOND).service_ms)
        assert took + _sharing_clients.GRAPH_LAUNCH / MILLISECOND == pytest.approx(service_ms, rel=0.01)


def test_a_training_job_is_alone_as_fast_as_in_its_run() -> None:
    for run in MEASURED.runs:
        for be, gap in launch_costs(run.alone, MEASURED.best_alone).items():
            rate = alone(trainer(be, gap, MEASURED.best_alone[be]), 2 * SECOND).rate
            assert rate == pytest.approx(run.alone[be], rel=0.03)


def test_launches_are_slow_where_a_job_was() -> None:
    launches = len(_sharing_clients.trace("bert_base b8", "training").launches)
    best = {"bert_base b8": 50.0, "resnet101 b64": 20.0}
    costs = launch_costs({"bert_base b8": 40.0, "resnet101 b64": 20.0}, best)
    assert costs["bert_base b8"] == round(SECOND / 40 / launches)
    assert costs["resnet101 b64"] < costs["bert_base b8"]  # as fast as it was, no launch took longer
    assert launch_costs(best, best) == dict.fromkeys(best, 20 * MICROSECOND)


def test_fences_cost_for_each_latency_client() -> None:
    run = MEASURED.run("pairs")
    (row,) = [r for r in run.rows if (r.hp, r.busy, r.be) == ("mobilenet_v2 b4", 0.25, "resnet101 b64")]
    five = Bench(run, MEASURED.best_alone).simulate(row)
    alone = Bench(msgspec.structs.replace(run, latency_clients=1), MEASURED.best_alone).simulate(row)
    assert five.share < alone.share - 0.02


def test_findings_are_complete_and_can_be_drawn(reproduction: registry.Reproduction, tmp_path: Path) -> None:
    assert len({row.what for row in reproduction.rows}) == len(reproduction.rows)
    data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(reproduction.findings.data))
    reproduction.module.draw(data, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_our_policy_costs_as_much_simulated_as_measured(reproduction: registry.Reproduction) -> None:
    near = [claim for claim in reproduction.claims if "within 0.05 of the measured" in claim.what]
    assert len(near) == 2
    assert all(claim.holds for claim in near)


def point(policy: str, simulated: float, measured: float) -> dict[str, Any]:
    return {"policy": policy, "cost": [simulated, measured], "share": [1.0, 1.0]}


def test_policies_in_another_order_are_named() -> None:
    measured = {"streams": 9.0, "kernel-temporal": 1.6, "orion": 1.2, "astrarium": 1.05}
    windows = {"astrarium:window=100000": 1.03, "astrarium:window=300000": 1.1}
    points = [point(policy, value, value) for policy, value in (measured | windows).items()]
    same = sharing._order("p99", {"policies": points, "windows": []}, "cost")
    assert same.holds
    turned = [point("orion", 1.0, 1.2) if original["policy"] == "orion" else original for original in points]
    other = sharing._order("p99", {"policies": turned, "windows": []}, "cost")
    assert not other.holds
    assert "the other way round: orion and astrarium, window of 100 us; orion and astrarium;" in other.note


def test_policies_measured_alike_may_come_in_any_order() -> None:
    policies = ("streams", "kernel-temporal", "orion", *sharing.WINDOWS)
    points = [point(policy, -place, 1 + place / 1000) for place, policy in enumerate(policies)]
    assert sharing._order("p99", {"policies": points, "windows": []}, "cost").holds
