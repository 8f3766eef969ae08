"""Orion's table and figures in their quick forms, and one experiment of sharing by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from papers.tests.reproductions import QUICK, checked, listed, measured_once, parameters

from astrarium.core.errors import InputError
from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.gate.kernel_profiles import KernelProfile, KernelUse
from astrarium_papers import kernels as kernel_sets
from astrarium_papers.client_arrivals import bursty, poisson, recorded, uniform
from astrarium_papers.gate_simulation import Party, Sharing, alone, profiled, share
from astrarium_papers.kernels.trace import KernelTrace
from astrarium_papers.orion import _pair_summary, _settings, figure10, figure11, figure13, figure14
from astrarium_papers.orion._settings import V100

NAMES = ["table2", "figure6", "figure7", "figure10", "figure11", "figure12", "figure13", "figure14"]
PARAMETERS = parameters(NAMES, "figure10", "figure13")
reproduced = measured_once("orion")


@pytest.fixture(autouse=True)
def no_trace_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_settings.APOLLO, raising=False)


def ours(name: str, words: str) -> float:
    return next(row.ours for row in reproduced(name).rows if row.what.startswith(words))


def test_they_are_listed_in_their_order() -> None:
    assert listed("orion") == NAMES


TestReproductions = checked(reproduced, PARAMETERS, silent={"table2"})


def tails(name: str) -> dict[str, float]:
    return {system: ours(name, f"{system}: p99 over ideal") for system in _settings.SYSTEMS}


@pytest.mark.parametrize("name", ["figure6", "figure7"])
def test_orion_protects_inference_beside_training_and_others_do_not(name: str) -> None:
    ratios = tails(name)
    assert 0.99 < ratios["Orion"] < 1.14
    assert ratios["Astrarium"] < 1.15
    assert ratios["Temporal"] > ratios["MPS"] > 1.5 > ratios["REEF"]


@pytest.mark.parametrize("name", ["figure11", "figure12"])
def test_beside_inference_only_whole_requests_hurt_on_a_fast_gpu(name: str) -> None:
    ratios = tails(name)
    assert ratios.pop("Temporal") > 1.2 > max(ratios.values())
    assert 0.99 < ratios["Orion"] < 1.05
    assert 0.99 < ratios["Astrarium"] < 1.05


def test_on_the_papers_gpu_sharing_without_control_hurts_beside_inference_too() -> None:
    data = figure11._measured(V100, QUICK)
    ratios = {system: _pair_summary.over_ideal(data, system) for system in _settings.SYSTEMS}
    assert ratios["Temporal"] > ratios["MPS"] > 1.2 > ratios["REEF"] > 0.99
    assert max(ratios["Orion"], ratios["Astrarium"]) < 1.10


def test_training_keeps_what_inference_leaves() -> None:
    for system in ("Temporal", "REEF", "Orion", "Astrarium"):
        assert 0.7 < ours("figure7", f"{system}: best-effort throughput") < 1.0


@pytest.mark.thorough
def test_training_beside_training_shows_who_pays() -> None:
    data = reproduced("figure10").findings.data
    first = {system: _pair_summary.kept(data, system) for system in figure10.TRAINING}
    assert first["Tick-Tock"] < first["MPS"] < first["Orion"] < first["REEF"]
    assert _pair_summary.best_effort_kept(data, "Orion") > _pair_summary.best_effort_kept(data, "REEF")


def test_five_clients_protects_the_one_with_priority() -> None:
    assert ours("figure13", "MPS: p99") > 1.2 > 1.1 > ours("figure13", "Orion: p99")
    assert ours("figure13", "V100-like: MPS: p99") > 1.5 > 1.1 > ours("figure13", "V100-like: Orion: p99")


def test_each_part_of_orion_lowers_the_tail_on_the_papers_gpu() -> None:
    for parts in figure14._p95(figure14._measured(V100, QUICK)).values():
        assert parts["GPU streams"] > parts["Stream priorities"] > parts["SM size"]
        assert parts["Compute/memory profiles"] >= 0.99 * parts["SM size"]


def test_priorities_bring_nothing_where_there_are_gaps_between_kernels() -> None:
    for parts in figure14._p95(reproduced("figure14").findings.data).values():
        assert parts["Stream priorities"] == pytest.approx(parts["GPU streams"], rel=0.02)
        assert parts["Stream priorities"] > 1.2 * parts["SM size"]


def test_the_h200_does_not_show_the_papers_gain_for_convolution_beside_normalization() -> None:
    for batch in (32, 256):
        assert ours("table2", f"Conv2d-BN2d: speedup on an H200, batch {batch}") < 1.1
    assert ours("table2", "Conv2d-BN2d: speedup") > 1.4


def test_a_kernel_that_fills_a_v100_fills_an_a100_and_gets_faster() -> None:
    full = KernelProfile("full", 1000, 80, "memory", use=KernelUse(0.1, 0.8))
    small = KernelProfile("small", 1000, 8, "compute", use=KernelUse(0.1, 0.0))
    trace = figure13.on_a100(KernelTrace("V100", 80, (full, small), (0, 1), ("forward",) * 2))
    assert [kernel.sms for kernel in trace.kernels] == [108, 8]
    assert trace.kernels[0].duration == round(1000 * 900 / 1555)
    assert 970 < trace.kernels[1].duration < 1000
    assert trace.use(0).memory == pytest.approx(0.8)


def steady(name: str, kind: str, latency: bool, **how: Any) -> Party:
    """Ten kernels of 100 us."""
    kernel = KernelProfile(name, 100_000, 80, kind)
    return Party(name, KernelTrace("GPU", 80, (kernel,), (0,) * 10, ("forward",) * 10), latency, **how)


def test_an_experiment_compares_with_alone() -> None:
    serving = steady("serving", "compute", True, arrivals=poisson(100, SECOND, 1, "serving"), gap=0)
    training = steady("training", "compute", False, gap=0)
    ideal = alone(serving, SECOND)
    assert ideal.percentile(50) == pytest.approx(1.003, abs=0.01)
    streams = share([serving, training], Sharing("streams"), SECOND)
    held = share([serving, training], profiled(Sharing("orion"), ideal), SECOND)
    assert streams.clients[0].percentile(99) > 1.5 * ideal.percentile(99)
    assert held.clients[0].percentile(99) < 1.2 * ideal.percentile(99)
    assert sum(held.clients[1].held.values()) > 5000  # nearly every launch
    assert streams.clients[1].held == {"latency": 0, "drain": 0, "unknown": 0, "turn": 0}
    assert 0.8 < held.clients[1].rate / alone(training, SECOND).rate < 0.95


def test_requests_of_the_warmup_are_not_counted() -> None:
    serving = steady("serving", "compute", True, arrivals=np.arange(0, SECOND, 10 * MILLISECOND))
    assert len(alone(serving, SECOND).latency_ms) == 100
    assert len(alone(serving, SECOND, warmup=SECOND // 2).latency_ms) == 50


def test_what_is_unknown_is_named() -> None:
    serving = steady("serving", "compute", True)
    with pytest.raises(
        InputError, match=r"policy: expected one of .*; did you mean 'orion'\? \(got 'orian'\)"
    ):
        share([serving], Sharing("orian"), SECOND)
    with pytest.raises(InputError, match=r"knobs: expected a knob of the gate \(got 'widow'\)"):
        share([serving], Sharing("orion", knobs={"widow": 3}), SECOND)


def test_arrivals_come_at_their_rates_and_repeat() -> None:
    for times in (poisson(50, 20 * SECOND, 1, "a"), uniform(50, 20 * SECOND, 1, "a")):
        assert len(times) == pytest.approx(1000, rel=0.1)
        assert (np.diff(times) >= 0).all()
    assert (poisson(50, SECOND, 1, "a") == poisson(50, SECOND, 1, "a")).all()
    assert len(np.unique(np.diff(uniform(50, SECOND, 1, "a")) // 1000)) == 1


def test_on_another_gpu_requests_come_at_rates_that_keep_it_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    faster = {name: quicker(trace) for name, trace in kernel_sets.kernel_set("v100-like").items()}
    known = {"v100-like": kernel_sets.kernel_set("v100-like"), "recorded": faster}
    monkeypatch.setattr(kernel_sets, "kernel_set", known.__getitem__)
    other = _settings.H200._replace(between=0)
    for arrive in ("poisson_beside_training", "apollo"):
        slow, fast = (len(getattr(kernels, arrive)("resnet50", 20 * SECOND)) for kernels in (V100, other))
        assert fast == pytest.approx(4 * slow, rel=0.1)
    assert other.training("bert").trace.sms == 132
    assert figure13.on_a100(other.training("bert").trace).sms == 132


def test_gaps_and_launches_make_a_request_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = KernelTrace("GPU", 132, (KernelProfile("one", 1000, 1, "memory"),), (0,) * 10, ("forward",) * 10)
    monkeypatch.setattr(_settings, "find", lambda *_: trace)
    kernels = _settings.H200._replace(between=1000, gap=5000)
    assert kernels.faster("any") == pytest.approx(0.5)  # as a graph
    assert kernels.faster("any", latency=False) == pytest.approx(0.2)


def test_recordings_are_the_default_and_the_environment_may_choose() -> None:
    assert _settings.CHOSEN == _settings.H200
    assert _settings._chosen("v100-like") == V100
    with pytest.raises(InputError, match=r"ASTRARIUM_KERNELS: expected one of .*v100-like"):
        _settings._chosen("v100")


def quicker(trace: KernelTrace) -> KernelTrace:
    kernels = tuple(
        msgspec.structs.replace(kernel, duration=kernel.duration // 4) for kernel in trace.kernels
    )
    return msgspec.structs.replace(trace, sms=132, kernels=kernels)


def test_the_stand_in_for_apollo_comes_in_bursts_of_four() -> None:
    gaps = np.diff(bursty(60 * SECOND, 1, "a"))
    assert (gaps < 8 * MILLISECOND).mean() == pytest.approx(0.75, abs=0.01)
    assert len(gaps) / 60 == pytest.approx(19.6, rel=0.1)


def test_a_trace_file_is_used_where_the_environment_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"arrivals_ms": {"other": [1], "vgg19": [0, 5, 2500]}}))
    assert "stand in" in _settings.apollo_note()
    monkeypatch.setenv(_settings.APOLLO, str(path))
    assert _settings.own_pace("resnet50", SECOND).tolist() == [0, 5 * MILLISECOND]
    assert len(_settings.own_pace("resnet50", 30 * SECOND)) == 5  # anew after 29 s
    assert V100.apollo("resnet50", SECOND).tolist() == [0, 5 * MILLISECOND]
    assert "stand in" not in _settings.apollo_note()
    with pytest.raises(InputError, match="vgg16"):
        recorded(str(path), "vgg16", SECOND)
