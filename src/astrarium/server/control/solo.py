"""Calls whose batch broke a worker run alone, one by one, on its successor before the policy hears of it.

The native scheduler does the same itself; this is for the Python scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from astrarium.core.units import Time
from astrarium.server.control.causes import MODEL_ERROR, QUARANTINED, WORKER_LOST
from astrarium.server.control.desk import Desk
from astrarium.server.control.tickets import InFlightBatch
from astrarium.serving.contract import Request, Setup
from astrarium.serving.state import Outcome


class SoloRunner(Protocol):
    """A solo runner has the time, the setup and the workers; `launch_alone` makes a batch and sends it."""

    desk: Desk
    setup: Setup
    clock: Callable[[], Time]

    def in_time(self, request: int) -> bool: ...
    def held(self, request: int) -> str: ...
    def launch_alone(self, request: int, gpu: int) -> None: ...
    def request_ended(
        self, request: int, outcome: Outcome, reason: str, flight: InFlightBatch | None
    ) -> None: ...


class _Suspect(NamedTuple):
    request: int
    reason: str


class SoloTries:
    """Solo tries are a `Decider` for batches of one; they wait here until a worker is back."""

    listens = False

    def __init__(self, runner: SoloRunner) -> None:
        self._runner, self._waiting = runner, list[_Suspect]()
        self._flights: list[InFlightBatch] = []

    @property
    def setup(self) -> Setup:
        return self._runner.setup

    def add(self, request: int, reason: str) -> None:
        self._waiting.append(_Suspect(request, reason))

    def try_next(self, gpu: int) -> bool:
        """Run the next one alone on a GPU that is idle; False where there is none."""
        self.give_up_late()
        self._give_up_held()
        if not self._waiting:
            return False
        self._runner.launch_alone(self._waiting.pop(0).request, gpu)
        return True

    def give_up_late(self) -> None:
        late = [one for one in self._waiting if not self._runner.in_time(one.request)]
        self._waiting = [one for one in self._waiting if one not in late]
        self._fail(late, "it is too late to try again")

    def abandon(self, model: int) -> None:
        """End those of a model that takes no calls any more."""
        desk = self._runner.desk
        gone = [one for one in self._waiting if desk.ticket_of(one.request).model == model]
        self._waiting = [one for one in self._waiting if one not in gone]
        self._fail(gone, "its model takes no calls for a while")

    def _give_up_held(self) -> None:
        for one in list(self._waiting):
            if why := self._runner.held(one.request):
                self._waiting.remove(one)
                self._runner.desk.part_ended(one.request, Outcome.FAILED, QUARANTINED, why, None)

    def launched(self, flight: InFlightBatch) -> None:
        self._flights.append(flight)

    # what becomes of them

    def finished(self, flight: InFlightBatch, started: Time, ended: Time) -> None:
        self._flights.remove(flight)
        self._runner.request_ended(flight.requests[0].id, Outcome.IN_TIME, "", flight)

    def broken(self, flight: InFlightBatch, error: str) -> None:
        self._flights.remove(flight)
        self._runner.request_ended(flight.requests[0].id, Outcome.FAILED, error, flight)

    def preempted(self, flight: InFlightBatch, started: Time, stopped: Time) -> None:
        """Hear nothing: nobody cancels these."""

    def profiled(self, request: Request, time: Time) -> None:
        """Hear nothing: no policy asked for these."""

    def gpu_left(self, gpu: int) -> None:
        lost = [flight for flight in self._flights if flight.gpu == gpu]
        self._flights = [flight for flight in self._flights if flight.gpu != gpu]
        for flight in lost:
            self._runner.request_ended(flight.requests[0].id, Outcome.FAILED, flight.lost, flight)

    def close(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._fail(waiting, "the server stopped")
        flights, self._flights = self._flights, []
        for flight in flights:
            reason = "the server stopped before the batch ended"
            self._runner.desk.part_ended(flight.requests[0].id, Outcome.FAILED, MODEL_ERROR, reason, flight)

    def _fail(self, suspects: Sequence[_Suspect], why: str) -> None:
        for request, reason in suspects:
            self._runner.desk.part_ended(request, Outcome.FAILED, WORKER_LOST, f"{reason}, and {why}", None)
