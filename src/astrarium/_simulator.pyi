"""The extension module built from native/: twins of Python hot paths, arrays in and arrays out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from astrarium.core.arrivals import Bools, Ints

class Dynamic:
    def __init__(self, c0: int, c1: float, history: Sequence[Sequence[int]], /) -> None: ...

class Model:
    def __init__(self, slo: int, latency: Sequence[int], dynamic: Dynamic = ..., /) -> None: ...

class Network:
    def __init__(self, control: int, data: int, response: int, /) -> None: ...

class Setup:
    def __init__(
        self, models: Sequence[Model], gpus: int, network: Network, preemption_cost: int, /
    ) -> None: ...

class Truth:
    def __init__(
        self,
        kind_of_gpu: Sequence[int],
        tables: Sequence[Sequence[Sequence[int]]],
        dynamic: Sequence[int],
        c0: Sequence[int],
        c1: Sequence[float],
        /,
    ) -> None: ...

class Parameters:
    def __init__(
        self,
        policy: str,
        integers: Mapping[str, int],
        reals: Mapping[str, float],
        lists: Mapping[str, Sequence[int]],
        /,
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
) -> dict[str, Any]: ...
def reasons() -> list[str]: ...
