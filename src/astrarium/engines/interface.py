"""Where workers run, behind one interface: processes of this machine (`local`), later many machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from astrarium.engines.backends.contract import Place
from astrarium.engines.orders import News, Order


class Listener(Protocol):
    """Who hears of workers; called in the event loop, never from inside a call to `Workers`."""

    def heard(self, worker: int, news: News) -> None: ...

    def died(self, worker: int, reason: str) -> None:
        """The process is gone, whoever ended it. No news of it comes after this."""


@dataclass(frozen=True)
class WorkerSpec:
    worker: int  # its GPU's number in the setup
    place: Place


class Workers(Protocol):
    """One worker for each GPU. A worker that died may be started again under its number."""

    def start(self, spec: WorkerSpec) -> None:
        """Returns at once; `WorkerUp` is the first news."""

    def send(self, worker: int, order: Order) -> None:
        """Orders arrive in order. Sending to a worker that is gone does nothing: its death will be heard."""

    def kill(self, worker: int, reason: str) -> None:
        """At once; `died` follows with this reason."""

    def hear(self) -> None:
        """Tell the news that have come by now, without waiting for the event loop."""

    def hush(self) -> None:
        """What the workers have said is told now; nothing more will be heard."""

    async def stop(self, grace: float) -> None:
        """All of them: asked first, killed after *grace* seconds. No `died` follows."""

    def pids(self) -> dict[int, int]:
        """Process ids of the workers that run."""
