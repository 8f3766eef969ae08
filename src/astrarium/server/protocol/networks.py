"""The native networks that read calls for a service: what it tells them, and what they have counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from astrarium.core.quantities import Time
from astrarium.server.contract import Stages
from astrarium.server.timelines import Timelines

if TYPE_CHECKING:
    from astrarium._front import AnsweredCall, Exchange


class NativeNetwork(Protocol):
    """A native network has threads that read calls, and that know which models are ready."""

    def look(self) -> None: ...
    def settle(self) -> None: ...
    def turned_away(self) -> int: ...
    def left(self) -> Mapping[str, int]: ...
    def kept(self) -> int: ...
    def cpu_time(self) -> Time: ...


class Networks:
    """There are none where uvicorn and grpc.aio read all calls."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._networks: list[NativeNetwork] = []
        self._timed = [0] * exchange.origins  # by thread: the last call that is on the timeline

    def add(self, network: NativeNetwork) -> None:
        self._networks.append(network)

    def look(self) -> None:
        """Let network threads know which models are ready, before anything else happens."""
        for network in self._networks:
            network.look()
            network.settle()

    def turned_away(self) -> int:
        """Return for how many connections there was no descriptor since somebody last asked."""
        return sum(network.turned_away() for network in self._networks)

    def kept_bytes(self) -> int:
        return sum(network.kept() for network in self._networks)

    def regions(self) -> tuple[int, int]:
        """Return how many regions clients have registered, and how many bytes."""
        return self._exchange.regions.totals()

    def left(self) -> Counter[str]:
        """Return how many connections were closed because of what their clients did, by reason."""
        left: Counter[str] = Counter()
        for network in self._networks:
            left.update(network.left())
        return left

    def cpu_time(self) -> Time:
        """Return the CPU time that all network threads have had."""
        return sum(network.cpu_time() for network in self._networks)

    def accepted(self, models: int) -> int:
        """Return how many calls of that many models they have let in."""
        return sum(self._exchange.tally(model)[0] for model in range(models)) if self._networks else 0

    def note_last_calls(self, timelines: Timelines, names: Sequence[str]) -> None:
        """Enter the calls that network threads have answered since the last time on the timeline."""
        calls: list[AnsweredCall] = []
        for thread in range(self._exchange.origins if self._networks else 0):
            self._timed[thread], new = self._exchange.last_calls(thread, self._timed[thread])
            calls += new
        for model, gpu, batch, size, in_time, stages in sorted(calls, key=_answered):
            timelines.add(names[model], gpu, batch, size, in_time, Stages(*stages))


def _answered(call: AnsweredCall) -> Time:
    """Return when a call that a network thread tells of was answered: the last of its stages."""
    return call[-1][-1]
