"""What one decision of Orloj takes while about 1000 requests are pending."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

sys.path.append(str(Path(__file__).resolve().parents[1]))  # tests.support

from tests.support.decision_times import timed_columns

from _measure import Row, main
from astrarium.serving.scenario import Scenario, build, parse

DROPPED = 3
NEAR = (900, 1100)  # pending requests: only decisions with so many are counted
BAR = 100.0  # us


class Load(NamedTuple):
    """More than 8 GPUs can do, so that as many wait as the SLO allows: about 1000."""

    order: str
    rate: str
    slo: str


LOADS = [Load("earliest", "1500/s", "700ms"), Load("latest", "1000/s", "1200ms")]


def measure(repeats: int) -> list[Row]:
    rows = []
    for load in LOADS:
        runs = [counted(scenario(load, seed)) for seed in range(1, repeats + 1)]
        what = f"a decision of orloj ({load.order}), 1000 pending"
        rows.append(us(f"{what}: median", [np.median(ns) for ns in runs], bar=BAR))
        rows.append(us(f"{what}: 99 % take at most", [np.percentile(ns, 99) for ns in runs]))
    return rows


def us(what: str, ns: list[Any], bar: float | None = None) -> Row:
    return Row(what, "us", [float(value) / 1000 for value in ns], bar=bar, less_is_better=True)


def scenario(load: Load, seed: int) -> Scenario:
    """Return a scenario of four applications of two modes each."""
    applications = {
        f"application-{number}": {"time": {"modes": [mode(5 + 3 * number, 1), mode(20 + 5 * number, 3)]}}
        for number in range(4)
    }
    profile = {"dynamic": {"applications": applications, "c0": "2ms", "c1": 0.3}}
    return parse(
        {
            "cluster": {"gpus": 8},
            "models": {"model": {"profile": profile, "slo": load.slo, "max_batch": 16}},
            "policy": {"name": "orloj", "order": load.order},
            "workload": {"arrivals": "poisson", "rate": load.rate, "duration": "30s"},
            "seed": seed,
        }
    )


def mode(mean: int, std: int) -> dict[str, str]:
    return {"mean": f"{mean}ms", "std": f"{std}ms"}


def counted(scenario: Scenario) -> npt.NDArray[np.int64]:
    """Return the nanoseconds of each decision that sent a batch and found about 1000 requests waiting."""
    columns = timed_columns(scenario)
    waiting = pending(columns, build.arrivals(scenario).time)
    ns: npt.NDArray[np.int64] = columns["decision_ns"]
    return ns[(waiting >= NEAR[0]) & (waiting <= NEAR[1])]


def pending(columns: Any, arrival: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many requests had come by each decision, less those that were sent before it or dropped by
    then."""
    at = columns["decision_at"]
    sent = np.concatenate([[0], np.cumsum(columns["batch_size"])])
    before = np.searchsorted(columns["batch_dispatched"], at, "left")
    dropped = np.sort(columns["done"][columns["outcome"] == DROPPED])
    count = np.searchsorted(arrival, at, "right") - sent[before] - np.searchsorted(dropped, at, "right")
    return np.asarray(count, np.int64)


if __name__ == "__main__":
    main(measure, repeats=5)
