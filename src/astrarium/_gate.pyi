"""The kernel gate's policies, what they learn, their simulation, and the board that clients share."""

from collections.abc import Sequence
from typing import Any

from astrarium.core.arrivals import Ints
from astrarium.core.processes import Floats

class Knobs:
    """What a policy was set to and has learnt; times are nanoseconds."""

    def __init__(self, other: Knobs) -> None: ...
    @property
    def policy(self) -> str:
        """The name of the policy."""

    @property
    def sms(self) -> int:
        """How many SMs the GPU has."""

    @property
    def latency(self) -> int:
        """How long a latency request takes alone: learnt, or given."""

    @latency.setter
    def latency(self, arg: int, /) -> None: ...
    @property
    def duration_fraction(self) -> float:
        """orion: best-effort work in flight, as a share of that latency."""

    @duration_fraction.setter
    def duration_fraction(self, arg: float, /) -> None: ...
    @property
    def sm_threshold(self) -> int:
        """orion: best-effort kernels beside latency work need fewer SMs than this; 0: than the GPU has."""

    @sm_threshold.setter
    def sm_threshold(self, arg: int, /) -> None: ...
    @property
    def depth(self) -> int:
        """reef-n: best-effort kernels in flight."""

    @depth.setter
    def depth(self, arg: int, /) -> None: ...
    @property
    def window(self) -> int:
        """astrarium: best-effort work that a request may find before it; 0: by its latency."""

    @window.setter
    def window(self, arg: int, /) -> None: ...
    @property
    def allowance(self) -> float:
        """astrarium: by what share of its latency a request may be delayed."""

    @allowance.setter
    def allowance(self, arg: float, /) -> None: ...
    @property
    def harm(self) -> list[float]:
        """astrarium: delay for each ns that a kernel of a kind runs beside a request, by kind."""

    @harm.setter
    def harm(self, arg: Sequence[float], /) -> None: ...

class Scene:
    """What a client sees of the others when it asks; times are nanoseconds."""

    def __init__(self) -> None: ...
    @property
    def asks(self) -> int:
        """The class of who asks: 0 latency, 1 best-effort."""

    @asks.setter
    def asks(self, arg: int, /) -> None: ...
    @property
    def others(self) -> int:
        """Whether anybody of the other class is there, and not behind a fence."""

    @others.setter
    def others(self, arg: int, /) -> None: ...
    @property
    def latency_running(self) -> int:
        """Whether latency work is on the GPU, or being launched."""

    @latency_running.setter
    def latency_running(self, arg: int, /) -> None: ...
    @property
    def latency_work(self) -> Work:
        """The latest latency work."""

    @latency_work.setter
    def latency_work(self, arg: Work, /) -> None: ...
    @property
    def outstanding(self) -> int:
        """The time of best-effort work that was launched and has not ended."""

    @outstanding.setter
    def outstanding(self, arg: int, /) -> None: ...
    @property
    def outstanding_count(self) -> int:
        """How many kernels of best-effort work that is."""

    @outstanding_count.setter
    def outstanding_count(self, arg: int, /) -> None: ...
    @property
    def in_request(self) -> int:
        """Whether who asks is in the middle of a request."""

    @in_request.setter
    def in_request(self, arg: int, /) -> None: ...
    @property
    def other_in_request(self) -> int:
        """Whether somebody of the other class is in the middle of one."""

    @other_in_request.setter
    def other_in_request(self, arg: int, /) -> None: ...
    @property
    def latency_waits(self) -> int:
        """Whether a latency request waits for its turn."""

    @latency_waits.setter
    def latency_waits(self, arg: int, /) -> None: ...
    @property
    def own_phases(self) -> int:
        """How many phases of training who asks has completed."""

    @own_phases.setter
    def own_phases(self, arg: int, /) -> None: ...
    @property
    def other_phases(self) -> int:
        """How many phases the other side has completed."""

    @other_phases.setter
    def other_phases(self, arg: int, /) -> None: ...
    @property
    def beside(self) -> list[int]:
        """The time of best-effort work launched beside the request that runs now, by kind."""

    @beside.setter
    def beside(self, arg: Sequence[int], /) -> None: ...

class Work:
    """What is known of a kernel, a graph or a copy before it is launched."""

    def __init__(self, duration: int = 0, sms: int = 0, kind: int = 0) -> None: ...
    @property
    def duration(self) -> int:
        """How long it runs; 0: not known yet."""

    @property
    def sms(self) -> int:
        """How many SMs it fills."""

    @property
    def kind(self) -> int:
        """The number of its kind."""

def defaults(policy: str, sms: int) -> Knobs:
    """Return the defaults of a policy for a GPU with so many SMs."""

def decide(knobs: Knobs, scene: Scene, work: Work) -> str:
    """Return `go` where work may be launched now, or why it must wait."""

def learn_alone(alone: int, duration: int, beside: Sequence[int]) -> int:
    """Return how long requests take alone, after one that ended with best-effort work beside it."""

def learn_harm(knobs: Knobs, duration: int, beside: Sequence[int]) -> None:
    """Move the harm in *knobs* towards what explains the delay of such a request."""

class Search:
    """Orion's binary search for the SM threshold, for clients that train."""

    def __init__(self, low: int, high: int) -> None: ...
    @property
    def low(self) -> int:
        """The least threshold that is left."""

    @property
    def high(self) -> int:
        """One more than the largest that is left."""

    def step(self, threshold: int, alone: int, limit: float, duration: int) -> int:
        """Learn from a request that has ended, and return the threshold to use from now on; requests may be
        longer than alone by the share *limit*."""

class Throttle:
    """The share of time for best effort beside a client that is always busy."""

    def __init__(self, duty: float) -> None: ...
    @property
    def duty(self) -> float:
        """The share; now and then 0, to see how long a request takes alone."""

    def step(self, pace: int, limit: float, duration: int) -> int:
        """Learn from a request that has ended, and return how long one takes alone; 0: unknown."""

class Client:
    """The kernels of one request as columns, and how requests come: at `arrivals`, or one after the other."""

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
) -> dict[str, Any]:
    """Simulate clients of one GPU until they have ended, or for so long, and return what became of their
    requests, how busy the GPU was, and the knobs as they were learnt."""

class Board:
    """The shared memory where clients of the gate meet. Where there is none yet it is made, with this
    policy."""

    def __init__(self, path: str, policy: str = "astrarium", sms: int = 132) -> None: ...
    def snapshot(self) -> dict[str, Any]:
        """Return all that is on the board now, as `BoardView`."""

    def set_policy(self, name: str | None, /, **settings: float) -> None:
        """Choose a policy, with its defaults, and change settings; all of it or, with ValueError, nothing."""

    def set(self, **settings: float) -> None:
        """Change settings and keep the policy."""

    def sweep(self) -> int:
        """Free the places of clients whose processes are gone, and return how many."""

    def join(self, kind: str, name: str) -> int:
        """Take a place for a client, and return its number."""

    def leave(self, place: int) -> None:
        """Free the place of a client."""

def kind_of(name: str) -> str:
    """Return the kind of a kernel, by its name."""

def policy_names() -> list[str]:
    """Return the names of all policies, by number."""

def setting_table() -> list[dict[str, Any]]:
    """Return what can be set on a board: names, units, ranges and what they mean."""
