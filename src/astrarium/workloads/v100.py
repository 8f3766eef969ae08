"""Models measured on one V100 with 16 GB: Table A.1 of Elvinger's thesis, in `v100_profiles.json`.

The time of a batch is its size over the printed throughput: the printed latency is the same number, rounded
to a tenth of a millisecond, and in one row it cannot be read. Other numbers that cannot be read are None.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.units import SECOND, Time

MEMORY = 16 * 2**30


class Measured(msgspec.Struct, frozen=True):
    """Batches of a size, alone on the GPU. Memory is in bytes; the rest are shares of the GPU, 0 to 1."""

    batch: int
    time: Time
    memory: int | None
    occupancy: float | None
    weighted_occupancy: float | None
    sm_utilization: float | None


def models() -> list[str]:
    """In the order of the table."""
    return list(_table())


def lookup(model: str) -> tuple[Measured, ...]:
    """Rising batch sizes."""
    if model not in _table():
        raise InputError("", model, f"a model measured on a V100: {one_of(models(), model)}")
    return _table()[model]


@cache
def _table() -> dict[str, tuple[Measured, ...]]:
    text = files("astrarium.workloads").joinpath("v100_profiles.json").read_text(encoding="utf-8")
    table = msgspec.json.decode(text)
    columns = table["columns"]
    return {
        name: tuple(_measured(dict(zip(columns, row, strict=True))) for row in rows)
        for name, rows in table["models"].items()
    }


def _measured(row: dict[str, Any]) -> Measured:
    memory = _share(row["memory_pct"])
    return Measured(
        batch=row["batch"],
        time=round(row["batch"] / row["throughput_rps"] * SECOND),
        memory=None if memory is None else round(memory * MEMORY),
        occupancy=_share(row["achieved_occupancy_pct"]),
        weighted_occupancy=_share(row["weighted_occupancy_pct"]),
        sm_utilization=_share(row["weighted_sm_utilization_pct"]),
    )


def _share(percent: float | None) -> float | None:
    return None if percent is None else round(percent / 100, 6)
