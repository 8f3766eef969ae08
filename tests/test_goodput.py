"""The search for goodput, and the numbers that Symphony's own code gives."""

from __future__ import annotations

import pytest

from astrarium.core.errors import InputError
from astrarium.experiments.goodput import bisect, capacity, scan, search, shares
from astrarium.scenario import Scenario, build, parse

RESNET50 = {"profile": {"alpha": "1.053ms", "beta": "5.072ms"}, "slo": "25ms"}
INCEPTION = {"profile": {"alpha": "5.090ms", "beta": "18.368ms"}, "slo": "70ms"}


def scenario(model: object, duration: str = "42s", **policy: str) -> Scenario:
    return parse(
        {
            "cluster": {"gpus": 8},
            "models": {"m": model},
            "policy": {"name": "deferred", **policy},
            "workload": {"arrivals": "poisson", "rate": "100/s", "duration": duration, "warmup": "2s"},
            "seed": 1,
        }
    )


def test_the_scan_stops_at_the_first_failure_even_if_higher_rates_pass() -> None:
    def passes(rate: float) -> bool:
        return rate < 3.3 or 6 < rate < 9

    good, bad = scan(passes, limit=12.0, steps=12)
    assert (good, bad) == (3.0, 4.0)
    assert bisect(passes, good, bad, tolerance=0.001) == pytest.approx(3.3, rel=0.002)


def test_a_policy_that_always_passes_has_the_limit_as_goodput() -> None:
    good, bad = scan(lambda rate: True, limit=10.0)
    assert good == 10.0
    assert bad > 10.0


def test_a_policy_that_never_passes_has_no_goodput() -> None:
    asked: list[float] = []

    def passes(rate: float) -> bool:
        asked.append(rate)
        return False

    assert bisect(passes, *scan(passes, 100.0), tolerance=0.01) == 0.0
    assert len(asked) < 20


def test_capacity_is_what_full_gpus_do() -> None:
    case = scenario(RESNET50)
    largest = (25 - 5.072) // 1.053
    assert capacity(case, build.setup(case)) == pytest.approx(
        8 * largest / (1.053 * largest + 5.072) * 1000, rel=1e-9
    )


def test_shares_follow_the_rates() -> None:
    case = parse(
        {
            "cluster": {"gpus": 1},
            "models": {"a": RESNET50, "b": INCEPTION},
            "policy": {"name": "eager"},
            "workload": {
                "arrivals": "uniform",
                "rate": {"a": "30/s", "b": "10/s"},
                "duration": "10s",
            },
        }
    )
    assert shares(case) == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize(
    ("model", "policy", "expected", "tolerance"),
    [
        (RESNET50, {"name": "deferred"}, 5338, 0.01),
        (INCEPTION, {"name": "deferred"}, 948, 0.01),
        (RESNET50, {"name": "eager"}, 3785, 0.015),  # the authors' code: 3785 and 713
        (INCEPTION, {"name": "eager"}, 713, 0.015),
    ],
    ids=["ResNet50-deferred", "InceptionResNetV2-deferred", "ResNet50-eager", "InceptionResNetV2-eager"],
)
def test_goodput_of_table_2(model: object, policy: dict[str, str], expected: float, tolerance: float) -> None:
    found = search(scenario(model, "62s" if model is RESNET50 else "242s", **policy), seeds=3)
    assert found.goodput == pytest.approx(expected, rel=tolerance)
    assert found.interval[0] <= found.goodput <= found.interval[1]
    assert found.seeds == [1, 2, 3]
    assert len(found.per_seed) == 3
    assert all(probe.passed == (probe.worst_bad <= 0.01) for probe in found.probes)


def test_threads_find_the_same() -> None:
    case = scenario(RESNET50, "5s")
    one, two = search(case, seeds=2, tolerance=0.02), search(case, seeds=2, tolerance=0.02, jobs=2)
    assert one.per_seed == two.per_seed


def test_a_search_that_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="at least one seed"):
        search(scenario(RESNET50), seeds=0)
    with pytest.raises(InputError, match="tolerance"):
        search(scenario(RESNET50), tolerance=2.0)
