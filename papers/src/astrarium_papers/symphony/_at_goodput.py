"""Table 2's models on 8 GPUs at each system's own goodput: the runs that Figures 1 and 12 look into."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from astrarium.serving.level import run
from astrarium.serving.record import Ints, ServingRecord
from astrarium.serving.report.summary import measured_requests
from astrarium_papers.findings import Effort
from astrarium_papers.symphony._settings import DELAYS, SYSTEMS, TABLE2, goodput, scenario
from astrarium_papers.symphony.table2 import GPUS, PAPER


class Case(NamedTuple):
    model: str
    system: str
    delayed: bool = False  # with the network delays that the authors' code allows for


class AtGoodput(NamedTuple):
    """The requests that were run, not those given up: the size of the batch that each was answered in, and
    how long it waited from its arrival until that batch started."""

    rate: float
    sizes: Ints
    waits_ms: Any


def measure(effort: Effort) -> dict[Case, AtGoodput]:
    cases = [
        Case(model, system, delayed) for delayed in (False, True) for model in TABLE2 for system in SYSTEMS
    ]
    return dict(zip(cases, effort.map(lambda case: _measure(case, effort), cases), strict=True))


def _measure(case: Case, effort: Effort) -> AtGoodput:
    seconds = effort.pick(2, 60 if case.model == "ResNet50" else 240)
    network = DELAYS if case.delayed else {}
    setting = scenario({case.model: TABLE2[case.model]}, GPUS, SYSTEMS[case.system], seconds, network=network)
    rate = _rate(case, setting, effort)
    record = run(setting.with_rate(rate))
    batch = _batches(record)
    waits = record.batches.started[batch] - record.requests.arrival[_answered(record)]
    return AtGoodput(rate, record.batches.size[batch], waits / 1e6)


def _rate(case: Case, setting: Any, effort: Effort) -> float:
    """Return the rate; the quick form saves the search and takes the goodput that the paper printed."""
    if effort.quick:
        return float(PAPER[case.model][case.system])
    return goodput(
        setting, effort, f"{case.model}: {case.system}{', delayed' * case.delayed}", seeds=1
    ).goodput


def _answered(record: ServingRecord) -> Ints:
    measured = measured_requests(record)
    return measured[record.requests.batch[measured] >= 0]


def _batches(record: ServingRecord) -> Ints:
    """Return the number of its batch for each answered request."""
    return record.requests.batch[_answered(record)]


def percentiles(values: Any) -> list[float]:
    """Return percentiles 0 to 100 in steps of one."""
    return [float(value) for value in np.percentile(values, range(101))]
