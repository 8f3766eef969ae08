"""A training trains one candidate, on one worker or on several that share each batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from astrarium.tuning.runtime import Runtime, Width

Overhead = Annotated[float, msgspec.Meta(ge=1, le=1000)]


class Training(Protocol):
    """A training trains one candidate, one iteration at a time, and is saved and loaded in between."""

    def step(self) -> float:
        """Run one iteration, be it a batch or an epoch, and return the candidate's value after it. What the
        first worker returns counts."""

    def save(self) -> Any:
        """Return all that it takes to go on, such as state_dict() of the model. The first worker saves."""

    def load(self, state: Any) -> None:
        """Go on from a saved state. All workers load, and their number may differ from when it was saved."""


@runtime_checkable
class ClosableTraining(Protocol):
    """A training may have a `close` too, which is called when its run is over."""

    def close(self) -> None: ...


class Emulated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Emulated GPUs do not exist. Each trial more on one makes iterations *packing* times as long, each GPU
    more than one costs a factor of *scaling* (Equation 3.2, as in `Runtime`)."""

    packing: Overhead = 1.0
    scaling: Overhead = 1.0

    def factor(self, width: Width) -> float:
        """Return how many times as long an iteration takes on so many GPUs as on one alone."""
        whole = 1_000_000_000  # of which a share is no longer rounded
        return Runtime(whole, self.packing, self.scaling).at(width) / whole


class Workers:
    """The workers train one candidate together: this one is number *rank* of *size*, on *device*.

    *width* is the share of a GPU, or the GPUs, that they have; *emulated* says how such places compare, where
    GPUs are emulated. *candidate* is the candidate's number, *seed* its own.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        device: str = "cpu",
        width: Width | None = None,
        emulated: Emulated | None = None,
        seed: int = 0,
        candidate: int = 0,
    ) -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self.candidate = candidate
        self.seed = seed
        self.width = Width(size) if width is None else width
        self.noted: Callable[[str, str], object] = lambda name, value: None  # what the study should know
        self._emulated = emulated or Emulated()
        self._began = time.monotonic()

    def parallel(self, model: Any) -> Any:
        """Return the model, which averages its gradients over all workers where there are several."""
        if self.size == 1:
            return model
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, device_ids=[0] if self.device.startswith("cuda") else None)

    def part(self, count: int) -> slice:
        """Return which of so many examples are this worker's. Equal shares (sizes that divide the batch) give
        the same gradients as one worker; others nearly the same. Where there are fewer examples than workers,
        such as in the last batch of an epoch, some are given twice: nobody has nothing to do."""
        if 0 < count < self.size:
            return slice(self.rank % count, self.rank % count + 1)
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def share(self, batch: Any) -> Any:
        """Return this worker's share of a batch (a tensor or a list, or a tuple of such)."""
        if isinstance(batch, tuple):
            return tuple(self.share(one) for one in batch)
        return batch[self.part(len(batch))]

    def mean(self, value: float) -> float:
        """Return the mean of the values of all workers; all must ask."""
        if self.size == 1:
            return float(value)
        import torch
        import torch.distributed as dist

        total = torch.tensor([float(value)], dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total.item()) / self.size

    def emulate(self, seconds: float) -> None:
        """Wait, at the end of an iteration on emulated GPUs, until it has taken as long as one does here that
        takes *seconds* on a GPU alone."""
        until = self._began + seconds * self._emulated.factor(self.width)
        time.sleep(max(0.0, until - time.monotonic()))

    def begin(self) -> None:
        """Note that an iteration begins."""
        self._began = time.monotonic()


class _ThreadWorkers(threading.local):
    own: Workers | None = None  # of the training in this thread


_of_thread = _ThreadWorkers()
_usual: Workers | None = None  # of the last training that began in this process


def set_current_workers(workers: Workers, thread: bool = False) -> None:
    """Record that these workers train in this process from now on, or in this *thread* of it."""
    global _usual
    if thread:
        _of_thread.own = workers
    else:
        _usual = workers


def current_workers() -> Workers:
    """Return the workers of the candidate that this process trains; a single one outside of our runs."""
    return _of_thread.own or _usual or Workers()


Build: TypeAlias = Callable[[dict[str, Any], Workers], Training]
