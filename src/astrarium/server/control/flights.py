"""A batch on its way: from the policy's dispatch until its worker is done with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from astrarium.core.units import Time
from astrarium.engines.orders import BatchDone
from astrarium.serving.events import Request

if TYPE_CHECKING:
    from astrarium.server.control.scheduler import Scheduler
    from astrarium.server.control.tickets import Ticket


@dataclass(slots=True, eq=False)
class Flight:
    """Times are of the monotonic clock. `lost` says what became of the worker that had it."""

    tag: int  # its number over all schedulers; workers know it by this
    scheduler: Scheduler
    run: int  # its number in the scheduler's books
    gpu: int
    model: int
    requests: list[Request]
    start: Time  # not before
    dispatched: Time
    planned_end: Time  # when the policy expects its worker to be done
    limit: Time  # a worker that takes longer than this is stuck
    sent: Time = 0
    done: BatchDone | None = None
    cancelled: bool = False
    lost: str = ""
    aboard: list[tuple[Ticket, int]] = field(default_factory=list)  # since it was sent: whose, and which row
