"""iGniter's model of what company does to a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.placement.igniter.model import (
    GpuTraits,
    KernelCurve,
    LinearFit,
    ModelTraits,
    TenantLoad,
    predict,
    share_for,
)
from astrarium.serving.planning.colocation import v100
from tests.support.placement.igniter_cases import (
    NAMES,
)


def test_a_latency_is_the_sum_of_its_parts() -> None:
    """By hand: two models, every source of interference at work."""
    gpu = GpuTraits(1000, -2.0, 50, 250, LinearFit(0.01, 0), 1000.0, 2.5)
    traits = ModelTraits(
        KernelCurve(0, 100, 0, 0, 1), 0.5, 10, 200, 100, LinearFit(0, 150), LinearFit(0, 20), 0.01
    )
    first, second = predict(gpu, [TenantLoad(traits, 4, 50), TenantLoad(traits, 4, 50)])
    active = (100 * 4 / 50 + 1) * (1 + 0.01 * 20)
    frequency = 1000 - 2 * (50 + 150 + 150 - 250)
    on_gpu = (10 * 0.02 + 0.5 + active) / (frequency / 1000)
    assert first.gpu == pytest.approx(on_gpu)
    assert first.latency == pytest.approx(on_gpu + 4 * (200 + 100) / 1000)
    assert first.throughput == pytest.approx(4000 / (on_gpu + 4 * 100 / 1000))
    assert first == second


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", NAMES)
def test_company_never_helps(name: str, other: str) -> None:
    gpu = v100().gpu
    models = v100().models
    mine = TenantLoad(models[name], 8, 40)
    theirs = TenantLoad(models[other], 8, 40)
    [alone] = predict(gpu, [mine])
    beside, _ = predict(gpu, [mine, theirs])
    crowded = predict(gpu, [mine, theirs, theirs])[0]
    assert alone.latency < beside.latency < crowded.latency


@pytest.mark.parametrize("name", NAMES)
@given(batch=st.integers(1, 32), budget=st.floats(3, 200))
def test_the_lower_bound_is_the_least_share_that_will_do(name: str, batch: int, budget: float) -> None:
    gpu = GpuTraits(bandwidth=v100().gpu.bandwidth)  # a bound does not know of throttling
    traits = v100().models[name]
    share = share_for(gpu, traits, batch, budget)
    if share <= 100:
        assert predict(gpu, [TenantLoad(traits, batch, share)])[0].latency <= budget * (1 + 1e-9)
    if gpu.unit < share <= 100:
        assert predict(gpu, [TenantLoad(traits, batch, share - gpu.unit)])[0].latency > budget
