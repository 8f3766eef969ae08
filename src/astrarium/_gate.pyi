"""The extension module built from native/gate: the kernel policies, what they learn, their simulation, the
board."""

from collections.abc import Sequence
from typing import Any

from astrarium.core.arrivals import Ints
from astrarium.core.processes import Floats

class Knobs:
    """What a policy is told and has learnt; times in nanoseconds, lists by kind of kernel."""

    def __init__(self, other: Knobs, /) -> None: ...
    @property
    def policy(self) -> str: ...
    @property
    def sms(self) -> int: ...
    latency: int
    duration_fraction: float
    sm_threshold: int
    depth: int
    window: int
    allowance: float
    harm: Sequence[float]

class Work:
    def __init__(self, duration: int = 0, sms: int = 0, kind: int = 0) -> None: ...
    @property
    def duration(self) -> int: ...
    @property
    def sms(self) -> int: ...
    @property
    def kind(self) -> int: ...

class Scene:
    def __init__(self) -> None: ...
    asks: int
    others: int
    latency_running: int
    latency_work: Work
    outstanding: int
    outstanding_count: int
    beside: Sequence[int]
    in_request: int
    other_in_request: int
    latency_waits: int
    own_phases: int
    other_phases: int

class Search:
    def __init__(self, low: int, high: int) -> None: ...
    @property
    def low(self) -> int: ...
    @property
    def high(self) -> int: ...
    def step(self, threshold: int, alone: int, limit: float, duration: int) -> int: ...

class Throttle:
    def __init__(self, duty: float) -> None: ...
    @property
    def duty(self) -> float: ...
    def step(self, pace: int, limit: float, duration: int) -> int: ...

class Client:
    """The kernels of one request as columns, and how requests come: at `arrivals`, or in a closed loop."""

    def __init__(
        self,
        latency: bool,
        duration: Ints,
        sms: Ints,
        kind: Ints,
        compute: Floats,
        memory: Floats,
        phase: Ints,
        *,
        arrivals: Sequence[int] | None = None,
        requests: int = 0,
        gap: int = 0,
        graph: bool = False,
        synchronize: bool = True,
        ahead: int = 1024,
        between: int = 0,
    ) -> None: ...

def defaults(policy: str, sms: int) -> Knobs: ...
def decide(knobs: Knobs, scene: Scene, work: Work, /) -> str: ...
def learn_alone(alone: int, duration: int, beside: Sequence[int]) -> int: ...
def learn_harm(knobs: Knobs, duration: int, beside: Sequence[int]) -> None: ...
def simulate(
    knobs: Knobs,
    clients: Sequence[Client],
    *,
    until: int | None = None,
    shared_capacity: float = 0.91,
    priority: bool = False,
    seen: int = 3000,
    relaunch: int = 2000,
    fence: int = 1500,
    one_interpreter: bool = False,
    learn: bool = True,
    search_limit: float = 0.0,
) -> dict[str, Any]: ...

class Board:
    """The shared memory that clients of the gate meet in."""

    def __init__(self, path: str, policy: str = "astrarium", sms: int = 132) -> None: ...
    def snapshot(self) -> dict[str, Any]: ...
    def set_policy(self, name: str | None, /, **settings: float) -> None: ...
    def set(self, **settings: float) -> None: ...
    def sweep(self) -> int: ...
    def join(self, kind: str, name: str) -> int: ...
    def leave(self, place: int) -> None: ...

def kind_of(name: str) -> str: ...
def policy_names() -> list[str]: ...
def setting_table() -> list[dict[str, Any]]: ...
