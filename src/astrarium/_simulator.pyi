"""The simulator in native code: arrays in, a finished run out; setups, and twins that decide live."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from astrarium.core.arrivals import Bools, Ints

# request, model, arrival, deadline, application, length, bucket
ArrivalRow = tuple[int, int, int, int, int, int, int]
EventRow = tuple[int, int, int, int, int]  # its kind, as `event_kinds` has them, and what it is made of
ActionRow = tuple[int, int, Any, int]  # its kind, and what it is made of

class Dynamic:
    """What is known of a model whose requests take unequal times: a batch of k takes c0 + c1 k times the
    longest, and history holds single times by application, rising."""

    def __init__(self, c0: int, c1: float, history: Sequence[Sequence[int]]) -> None: ...

class Lengths:
    """How long batches take by the bucket that lengths are rounded up to, and who can share a run."""

    def __init__(self, longest: Sequence[int], latency: Sequence[Sequence[int]], together: str) -> None: ...

class ByLength:
    """How long batches really take, by length and size, on one kind of GPU."""

    def __init__(
        self, lengths: Sequence[int], times: Sequence[Sequence[int]], rounded: bool, together: str
    ) -> None: ...

class Model:
    """A model's objective, and how long batches of 0, 1, ... take; the last is forever."""

    @overload
    def __init__(self, slo: int, latency: Sequence[int]) -> None: ...
    @overload
    def __init__(
        self, slo: int, latency: Sequence[int], dynamic: Dynamic | None, lengths: Lengths | None = None
    ) -> None: ...

class Network:
    """Times on the way: of an order, more for each request in it, and of an answer."""

    def __init__(self, control: int, data: int, response: int) -> None: ...

class Setup:
    """What a policy knows before the first event."""

    def __init__(
        self, models: Sequence[Model], gpus: int, network: Network, preemption_cost: int
    ) -> None: ...

class Truth:
    """How long batches really take: tables by kind of GPU, model and size, or the terms of dynamic models (0
    in dynamic: none), or what is known by length."""

    def __init__(
        self,
        kind_of_gpu: Sequence[int],
        tables: Sequence[Sequence[Sequence[int]]],
        dynamic: Sequence[int],
        c0: Sequence[int],
        c1: Sequence[float],
        by_length: Sequence[Sequence[ByLength | None]] = [],
    ) -> None: ...

class Parameters:
    """The policy whose twin decides, by name, and its parameters by type."""

    def __init__(
        self,
        policy: str,
        integers: Mapping[str, int],
        reals: Mapping[str, float],
        lists: Mapping[str, Sequence[int]],
    ) -> None: ...

def simulate_serving(
    setup: Setup,
    truth: Truth,
    parameters: Parameters,
    time: Ints,
    deadline: Ints,
    model: Ints,
    work: Ints,
    warmup: int,
    bad_limits: Sequence[int],
    progress: Callable[[int], None] | None = None,
    application: Ints | None = None,
    profiled: Bools | None = None,
    profiler_delay: int = 0,
    length: Ints | None = None,
    bucket: Ints | None = None,
) -> dict[str, Any]:
    """Simulate the requests in these columns, and return the columns of the run's record. It ends early once
    a model has more bad requests than its limit, where limits are given."""

def reasons() -> list[str]:
    """Return the reasons for which requests are dropped, by the numbers that records hold."""

def event_kinds() -> tuple[str, ...]:
    """Return the names of events by the numbers that native code knows their kinds by."""

class LivePolicy:
    """A policy's twin that decides on the wall clock; the caller keeps the books."""

    def __init__(self, setup: Setup, parameters: Parameters) -> None: ...
    def decide(self, now: int, arrivals: list[ArrivalRow], events: list[EventRow]) -> list[ActionRow]:
        """Tell the twin what has happened, and return what it does: a batch is sent (0), a request dropped
        (1), a timer set (2), or a batch stopped (3)."""
