"""Salus has 45 training workloads: Table A.1 of Yu's dissertation, 15 models with three batch sizes each.

Peak memory and the time of an iteration were measured by the authors for eleven classifiers; the rest is
modelled. `astrarium_papers/salus/_workloads.py` says which, and holds every number of the file to its model.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.quantities import MILLISECOND, Bytes, Duration

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
    table = [_workload(row) for row in csv.DictReader(text.splitlines())]
    return {workload.name: workload for workload in table}


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
