"""Salus has 45 training workloads: Table A.1 of Yu's dissertation, 15 models with three batch sizes each.

Peak memory and the time of an iteration were measured by the authors for eleven classifiers; the rest is
modelled. `astrarium_papers/salus/_workloads.py` says which, and holds every number of the file to its model.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from itertools import accumulate

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.quantities import MILLISECOND, SECOND, Bytes, Duration, Time
from astrarium.core.streams import stream

GPU_MEMORY = Bytes(16_000 * 10**6)  # of a P100


class SalusWorkload(msgspec.Struct, frozen=True):
    """A workload has its memory in bytes, the time of an iteration alone on the GPU, and the share of the GPU
    that it can use then."""

    name: str
    model: str
    kind: str
    batch: str
    persistent: Bytes
    ephemeral: Bytes
    iteration: Duration
    demand: float

    @property
    def peak(self) -> int:
        return self.persistent + self.ephemeral


def workloads() -> list[SalusWorkload]:
    """Return the workloads in the order of Table A.1."""
    return list(_table().values())


def lookup(name: str) -> SalusWorkload:
    """Return a workload by its name, which is the model's and the batch size: resnet50_50."""
    if name not in _table():
        raise InputError("", name, f"a workload of Salus: {one_of(list(_table()), name)}")
    return _table()[name]


@cache
def _table() -> dict[str, SalusWorkload]:
    text = files("astrarium.device").joinpath("salus.csv").read_text(encoding="utf-8")
    found = [_workload(row) for row in csv.DictReader(text.splitlines())]
    return {workload.name: workload for workload in found}


def _workload(row: dict[str, str]) -> SalusWorkload:
    return SalusWorkload(
        name=f"{row['model']}_{row['batch']}",
        model=row["model"],
        kind=row["kind"],
        batch=row["batch"],
        persistent=Bytes(int(row["persistent_bytes"])),
        ephemeral=Bytes(int(row["ephemeral_bytes"])),
        iteration=Duration(round(float(row["iteration_ms"]) * MILLISECOND)),
        demand=float(row["demand"]),
    )


# For Table 2.1, Salus ran 100 training jobs of Table A.1 on one GPU.


MINUTE: Time = 60 * SECOND
LENGTHS = (MINUTE, 5 * MINUTE, 10 * MINUTE)
TAIL = 0.7
INTERVAL: Time = 30 * SECOND
EARLY = 0.75


class TraceJob(msgspec.Struct, frozen=True):
    arrival: Time
    workload: SalusWorkload
    iterations: int


def trace(
    jobs: int = 100, seed: int = 1, interval: Time = INTERVAL, tail: float = TAIL, early: float = EARLY
) -> list[TraceJob]:
    """Return jobs in order of arrival; the first arrives at once."""
    random = stream(seed, "salus", "jobs")
    kinds = workloads()
    chosen = [kinds[int(place)] for place in random.integers(0, len(kinds), jobs)]
    lengths = _drawn(lengths_of(jobs, tail), random.exponential(size=jobs).tolist(), early)
    gaps = random.exponential(interval, size=jobs).tolist()
    arrivals = accumulate([0, *(round(gap) for gap in gaps[1:])])
    return [
        TraceJob(at, workload, max(1, round(length / workload.iteration)))
        for at, workload, length in zip(arrivals, chosen, lengths, strict=True)
    ]


def lengths_of(jobs: int, tail: float) -> list[Time]:
    """Return as many jobs of each length as its share asks for, the shortest first."""
    weights = [(length / LENGTHS[0]) ** -tail for length in LENGTHS]
    ends = [round(jobs * end / sum(weights)) for end in accumulate(weights)]
    starts = [0, *ends[:-1]]
    counts = [end - start for start, end in zip(starts, ends, strict=True)]
    return [length for length, count in zip(LENGTHS, counts, strict=True) for _ in range(count)]


def _drawn(lengths: list[Time], races: list[float], early: float) -> list[Time]:
    """Draw lengths one by one, with chances in proportion to length^early, as in a race."""
    finishes = [race / length**early for race, length in zip(races, lengths, strict=True)]
    return [length for _, length in sorted(zip(finishes, lengths, strict=True))]
