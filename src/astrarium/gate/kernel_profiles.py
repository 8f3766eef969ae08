"""A kernel profile is one line of the file that `astrarium gate profile` writes, with cells split by tabs:

kernel    INDEX  NAME  GX,GY,GZ  BX,BY,BZ  SHARED_BYTES  DURATION_NS  P95_NS  COUNT  SMS  KIND
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.quantities import Time

KINDS = ("unknown", "compute", "memory", "copy")  # in the gate's order
FIELDS = ("index", "name", "grid", "block", "shared_bytes", "duration_ns", "p95_ns", "count", "sms", "kind")


class KernelUse(NamedTuple):
    """A kernel that runs alone uses these shares of the GPU's arithmetic and memory bandwidth, from 0 to
    1."""

    compute: float
    memory: float


class KernelProfile(msgspec.Struct, frozen=True):
    """A profile says how long a kernel runs and how many SMs it fills; `use` is None if not measured."""

    name: str
    duration: Time
    sms: int
    kind: str
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    p95: Time = 0
    count: int = 1
    use: KernelUse | None = None


def read_kernel(cells: Sequence[str]) -> tuple[int, KernelProfile]:
    """Return a kernel's number in its file, and its profile, from the cells behind the word `kernel`."""
    row = dict(zip(FIELDS, named_cells(cells, FIELDS), strict=True))
    if row["kind"] not in KINDS:
        raise InputError("kind", row["kind"], one_of(list(KINDS), row["kind"]))
    return whole_number("index", row["index"]), KernelProfile(
        name=row["name"],
        duration=whole_number("duration_ns", row["duration_ns"]),
        sms=whole_number("sms", row["sms"]),
        kind=row["kind"],
        grid=_three("grid", row["grid"]),
        block=_three("block", row["block"]),
        shared_bytes=whole_number("shared_bytes", row["shared_bytes"]),
        p95=whole_number("p95_ns", row["p95_ns"]),
        count=whole_number("count", row["count"]),
    )


def named_cells(cells: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the cells of a line, which must be as many as their names."""
    if len(cells) != len(names):
        raise InputError("", "\t".join(cells), f"{len(names)} cells split by tabs: {', '.join(names)}")
    return [cell.strip() for cell in cells]


def whole_number(field: str, text: str, least: int = 0) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise InputError(field, text, f"a whole number of at least {least}")
    return int(text)


def _three(field: str, text: str) -> tuple[int, int, int]:
    parts = [whole_number(field, part) for part in text.split(",")]  # a graph has zeros
    if len(parts) != 3:
        raise InputError(field, text, "three whole numbers such as 32,1,1")
    return parts[0], parts[1], parts[2]
