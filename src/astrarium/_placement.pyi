"""Groups of GPUs, simulated for placement searches: arrays in, arrays filled."""

from typing import overload

from astrarium.core.arrivals import Ints
from astrarium.core.processes import Floats
from astrarium.placement.groups.layout import Hosts

@overload
def attainment(
    times: Ints,
    kind: Ints,
    stages: Ints,
    hosts: Hosts,
    arrival: Ints,
    model: Ints,
    slo: Ints,
    fixed: int,
    by_queue: bool,
    another: bool,
    first: int,
    last: int,
    good: Ints,
    work: Ints,
) -> None: ...
@overload
def attainment(
    times: Floats,
    kind: Ints,
    stages: Ints,
    hosts: Hosts,
    arrival: Floats,
    model: Ints,
    slo: Floats,
    fixed: float,
    by_queue: bool,
    another: bool,
    first: int,
    last: int,
    good: Ints,
    work: Floats,
) -> None:
    """Count by model which of the requests from *first* to *last* are answered in time, and write each
    group's work."""

@overload
def outcomes(
    times: Ints,
    kind: Ints,
    stages: Ints,
    hosts: Hosts,
    arrival: Ints,
    model: Ints,
    slo: Ints,
    fixed: int,
    by_queue: bool,
    another: bool,
    clocks: Ints,
    keep: bool,
    finish: Ints,
    where: Ints,
    work: Ints,
) -> None: ...
@overload
def outcomes(
    times: Floats,
    kind: Ints,
    stages: Ints,
    hosts: Hosts,
    arrival: Floats,
    model: Ints,
    slo: Floats,
    fixed: float,
    by_queue: bool,
    another: bool,
    clocks: Floats,
    keep: bool,
    finish: Floats,
    where: Ints,
    work: Floats,
) -> None:
    """Write when each request is answered (-1: rejected) and by which group. The clocks of the stages are
    read, and written back where they are kept."""

def waiting(
    times: Ints,
    kind: Ints,
    stages: Ints,
    hosts: Hosts,
    arrival: Ints,
    model: Ints,
    slo: Ints,
    fixed: int,
    edf: bool,
    another: bool,
    finish: Ints,
    where: Ints,
    work: Ints,
) -> None:
    """Write the same as `outcomes` where requests wait, and run in batches as large as there are times
    for."""
