"""Arrivals: the right rates, the right variability, and the same ones every time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astrarium.core import processes
from astrarium.core.arrivals import Arrivals
from astrarium.core.quantities import SECOND
from astrarium.serving import scenario
from astrarium.serving.scenario import Scenario, build
from astrarium.serving.scenario.rates import zipf
from tests.support.work import calls_of

MODEL = {"profile": {"alpha": "1ms", "beta": "5ms"}, "slo": "25ms"}


def made(models: list[str] | int = 1, seed: int = 1, **workload: Any) -> tuple[Scenario, Arrivals]:
    names = models if isinstance(models, list) else [f"model{number}" for number in range(models)]
    raw = {
        "cluster": {"gpus": 2},
        "models": dict.fromkeys(names, MODEL),
        "policy": {"name": "deferred"},
        "workload": {"arrivals": "poisson", "rate": "1000/s", "duration": "50s", **workload},
        "seed": seed,
    }
    parsed = scenario.parse(raw)
    return parsed, build.arrivals(parsed)


def gaps(arrivals: Arrivals) -> np.ndarray:
    return np.diff(arrivals.time)


@pytest.mark.parametrize(("process", "variation"), [("poisson", 1.0), ("uniform", 0.0), ("gamma", 0.5**-0.5)])
def test_mean_rate_and_variation(process: str, variation: float) -> None:
    shape: dict[str, Any] = {"shape": 0.5} if process == "gamma" else {}
    _, arrivals = made(arrivals=process, **shape)
    assert len(arrivals) == pytest.approx(50_000, rel=0.03)
    assert gaps(arrivals).std() / gaps(arrivals).mean() == pytest.approx(variation, rel=0.03, abs=1e-6)


def test_very_bursty_arrivals() -> None:
    _, arrivals = made(20, arrivals="gamma", shape=0.05, rate="4000/s", duration="100s")
    assert len(arrivals) == pytest.approx(400_000, rel=0.03)
    one = np.diff(arrivals.time[arrivals.model == 3])
    assert one.std() / one.mean() == pytest.approx(0.05**-0.5, rel=0.05)


def test_columns() -> None:
    _, arrivals = made(3)
    assert (gaps(arrivals) >= 0).all()
    assert arrivals.time.dtype == arrivals.work.dtype == np.int64
    assert arrivals.model.dtype == arrivals.application.dtype == np.int32
    assert arrivals.time[0] >= 0
    assert arrivals.time[-1] < 50 * SECOND
    assert not arrivals.work.any()


def test_zipf_shares() -> None:
    _, arrivals = made(5, popularity={"zipf": 0.9}, rate="4000/s")
    shares = np.bincount(arrivals.model) / len(arrivals)
    assert shares == pytest.approx(zipf(5, 0.9), abs=0.005)
    assert zipf(3, 1.0) == pytest.approx([6 / 11, 3 / 11, 2 / 11])


def test_rates_by_name() -> None:
    _, arrivals = made(["a", "b"], rate={"a": "300/s", "b": "900/s"})
    assert np.bincount(arrivals.model) == pytest.approx([15_000, 45_000], rel=0.03)


def test_changing_rates() -> None:
    changes = [
        {"at": "10s", "rate": "400/s"},  # the mix stays 1 to 3
        {"at": "20s", "rate": "0/s"},
        {"at": "30s", "rate": "800/s"},
        {"at": "40s", "rate": {"b": "2000/s"}},
    ]
    parsed, arrivals = made(["a", "b"], rate={"a": "1000/s", "b": "3000/s"}, changes=changes)
    counts = np.zeros((5, 2), int)
    np.add.at(counts, (arrivals.time // (10 * SECOND), arrivals.model), 1)
    expected = [[10_000, 30_000], [1000, 3000], [0, 0], [2000, 6000], [2000, 20_000]]
    assert counts == pytest.approx(np.array(expected), rel=0.08, abs=0)
    assert parsed.total_rate == pytest.approx((4000 + 400 + 0 + 800 + 2200) / 5)


def test_constant_gaps_follow_a_change() -> None:
    _, arrivals = made(arrivals="uniform", rate="100/s", changes=[{"at": "25s", "rate": "200/s"}])
    before = arrivals.time < 25 * SECOND
    after = arrivals.time >= 25 * SECOND
    assert np.abs(np.diff(arrivals.time[before]) - SECOND // 100).max() <= 1
    assert np.abs(np.diff(arrivals.time[after]) - SECOND // 200).max() <= 1


def test_constant_gaps_start_at_different_moments() -> None:
    _, arrivals = made(8, arrivals="uniform")
    firsts = [arrivals.time[arrivals.model == model][0] for model in range(8)]
    assert len(set(firsts)) == 8


def test_same_seed_same_arrivals() -> None:
    first = made(3)[1]
    second = made(3)[1]
    other = made(3, seed=2)[1]
    assert (first.time == second.time).all()
    assert (first.model == second.model).all()
    assert len(first) != len(other) or (first.time != other.time).any()


def test_these_very_arrivals() -> None:
    """Pinned: a change here changes every seeded result that was ever published."""
    _, arrivals = made(["resnet50"])
    assert arrivals.time[:3].tolist() == [3034457, 4006145, 4812030]


def test_a_new_model_disturbs_no_other() -> None:
    _, two = made(["a", "b"], rate={"a": "1000/s", "b": "500/s"})
    _, three = made(["new", "b", "a"], rate={"a": "1000/s", "b": "500/s", "new": "2000/s"})
    for name in ("a", "b"):
        before = two.time[two.model == ["a", "b"].index(name)]
        after = three.time[three.model == ["new", "b", "a"].index(name)]
        assert (before == after).all()


@pytest.mark.parametrize("process", ["poisson", "gamma", "uniform"])
def test_a_longer_run_begins_with_the_shorter(process: str) -> None:
    shape: dict[str, Any] = {"shape": 0.05} if process == "gamma" else {}
    _, short = made(duration="5s", arrivals=process, **shape)
    _, long = made(duration="50s", arrivals=process, **shape)
    assert (long.time[: len(short)] == short.time).all()
    assert long.time[len(short)] >= 5 * SECOND


def test_twice_the_rate_is_the_same_pattern_in_half_the_time() -> None:
    _, slow = made(rate="1000/s", duration="20s")
    _, quick = made(rate="2000/s", duration="10s")
    assert np.abs(slow.time - 2 * quick.time).max() <= 2


def test_merging_keeps_order_even_where_times_are_huge() -> None:
    streams = [np.array([1, 5, 2**62]), np.array([1, 2]), np.array([], np.int64), np.array([5])]
    times, numbers = processes.merged(streams)
    assert times.tolist() == [1, 1, 2, 5, 5, 2**62]
    assert numbers.tolist() == [0, 1, 1, 0, 3, 0]
    small, same = processes.merged([np.minimum(stream, 9) for stream in streams])
    assert small.tolist() == [1, 1, 2, 5, 5, 9]
    assert same.tolist() == numbers.tolist()


def test_deadlines_add_each_models_objective() -> None:
    raw = {"a": {**MODEL, "slo": "30ms"}, "b": MODEL}
    parsed, _ = made(["a", "b"])
    parsed = scenario.parse({**_raw(parsed), "models": raw})
    setup = build.setup(parsed)
    arrivals = build.arrivals(parsed)
    slo = np.where(arrivals.model == 0, 30_000_000, 25_000_000)
    assert (build.deadlines(arrivals, setup) - arrivals.time == slo).all()


def _raw(parsed: Scenario) -> dict[str, Any]:
    from astrarium.serving.scenario.schema import plain_scenario

    return plain_scenario(parsed)


def test_ten_times_as_many_arrivals_are_drawn_by_as_many_calls() -> None:
    """They are arrays: `benchmarks/arrivals.py` says how many are drawn in a second."""
    calls = []
    for duration in ("6s", "60s"):
        parsed, _ = made(rate="20000/s", duration=duration)
        many = scenario.parse({**_raw(parsed), "models": "zoo:A100"})
        assert len(build.arrivals(many)) > 100_000
        calls.append(calls_of(lambda many=many: build.arrivals(many)))  # type: ignore[misc]
    assert calls[1] < 1.2 * calls[0]
