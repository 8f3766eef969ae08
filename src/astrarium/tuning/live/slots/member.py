"""A member trains one run in a slot, as the only worker or in a gang.

The first member leads. Before each iteration it tells the others whether there is one more, so that all end
after the same iteration; only the first member reports and saves.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import cache
from math import isfinite
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import Any

from astrarium.core.errors import InputError
from astrarium.core.random_streams import stream
from astrarium.tuning.live.backend import Checkpoint, Ending, Iterated
from astrarium.tuning.live.checkpoints import read, write
from astrarium.tuning.live.random_states import seed_all
from astrarium.tuning.live.slots.messages import Begin, MemberEnded, Message, Noted, Saved, SlotSetup
from astrarium.tuning.live.training.forms import training_of
from astrarium.tuning.live.training.workers import Build, ClosableTraining, Training, Workers

LONGEST = timedelta(minutes=30)  # that one member may be ahead of another
MOST = 2000  # letters of an error that are reported
# Saving a candidate that gets better and better may take so much of the time of its run, and so many seconds;
# the first time, in which much is imported and made, does not count.
SAVING_SHARE = 0.1
SAVING_SECONDS = 0.05


class Dropped(BaseException):
    """The error is raised inside a training that nobody wants any more."""


class GangMember:
    """A slot makes a member for each run that it is ordered to begin. Each iteration runs inside a *turn*."""

    def __init__(self, begin: Begin, setup: SlotSetup, tell: Callable[[Message], None]) -> None:
        self.begin = begin
        self.work = begin.work
        self.leave = False
        self.dropped = False
        self.interruptible = False  # in the person's code, and nowhere else
        self.broken = False  # its gang did not end properly
        self.turn: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._setup = setup
        self._tell = tell
        self._done = self.work.start.iterations if self.work.start is not None else 0
        self._value: float | None = None
        self._metrics: dict[str, float] = {}  # what else was reported with the value
        self._saved = self.work.start  # the newest checkpoint that is its own or that it began with
        self._saved_at = monotonic()
        self._began = monotonic()
        self._saving_took: float | None = None  # seconds, in all; None: nothing was saved yet
        self._saves_best = setup.keep == "best"
        self._best: float | None = None  # the best value of which this run has saved the state
        self._held: Any = None

    @property
    def key(self) -> tuple[int, int]:
        return self.work.trial, self.work.run

    @property
    def left(self) -> int:
        """Return how many iterations are to be run before it is done."""
        return max(0, self.work.total - self._done)

    def train(self, build: Callable[[], Build]) -> MemberEnded:
        """Train the whole run. An error ends the run, and not the slot."""
        try:
            with self._gang():
                self._trained(build)
            return self._ended("finished" if self._done >= self.work.total else "left")
        except Dropped:
            return self._ended("left")
        except BaseException as error:
            return self.failed(error)

    def _trained(self, build: Callable[[], Build]) -> None:
        training = self._made(build)
        try:
            self._load(training)
            self._iterate(training)
        finally:
            if isinstance(training, ClosableTraining):
                training.close()

    def failed(self, error: BaseException) -> MemberEnded:
        """Return a failed end. The whole traceback goes where trainings print."""
        traceback.print_exception(error)
        sys.stderr.flush()
        text = traceback.format_exception_only(error)[-1].strip()
        text = text if len(text) <= MOST else text[:MOST] + "..."
        return self._ended("failed", text, self.begin.size > 1 and _is_trouble(error))

    @contextmanager
    def _gang(self) -> Iterator[None]:
        if self.begin.size == 1:
            yield
            return
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore

        assert self.begin.store is not None
        store = PrefixStore(self.begin.group, _store(*self.begin.store))
        backend = "nccl" if self._setup.device.startswith("cuda") else "gloo"
        rank = self.begin.rank
        size = self.begin.size
        dist.init_process_group(backend, timeout=LONGEST, world_size=size, rank=rank, store=store)
        # Whoever holds it last ends its threads, and must not do so as PyTorch's reducer would: with
        # Python's lock, which those threads may be waiting for. We outlive the training.
        self._held = dist.group.WORLD
        self.broken = True
        yield
        # One that is broken says so and is killed by its backend: to let go of the group might take for ever.
        self.broken = False
        # The training goes first. If it were the last that knows the group, that would end its threads
        # while it has Python's lock, which those threads want too.
        gc.collect()
        dist.destroy_process_group()

    def _made(self, build: Callable[[], Build]) -> Training:
        self.workers = self._workers()
        if not self._setup.lanes:  # runs in lanes share the generators
            seed_all(self.workers.seed)
        with self._theirs():
            return training_of(build(), dict(self.work.values), self.workers)

    def _load(self, training: Training) -> None:
        if self.work.start is not None:
            with self._theirs():
                training.load(read(Path(self.begin.folder), self.work.start))

    def _workers(self) -> Workers:
        own = int(stream(self._setup.seed, "training", self.work.candidate).integers(2**31))
        rank = self.begin.rank
        size = self.begin.size
        width = self.work.place.width
        candidate = self.work.candidate
        workers = Workers(rank, size, self._setup.device, width, self._setup.emulated, own, candidate)
        if rank == 0:
            workers.noted = lambda name, value: self._tell(Noted(*self.key, name, value))
        return workers

    def _iterate(self, training: Training) -> None:
        while self._one_more():
            self._step(training)
            if self.begin.rank == 0 and monotonic() - self._saved_at > self.begin.every:
                best = self._is_best
                self._save(training)
                self._tell(Saved(*self.key, self._done, best))
        if self.dropped:
            raise Dropped
        if self.begin.rank == 0:
            best = self._is_best
            self._save(training)
            if best:
                self._tell(Saved(*self.key, self._done, best=True))

    def _one_more(self) -> bool:
        """Tell whether there is one more iteration, as the first member sees it."""
        more = self._done < self.work.total and not self.leave
        if self.begin.size == 1:
            return more
        import torch
        import torch.distributed as dist

        flag = torch.tensor([int(more)], device=self._setup.device)
        dist.broadcast(flag, 0)
        return bool(flag.item())

    def _step(self, training: Training) -> None:
        began = monotonic_ns()
        with self.turn(), self._theirs():
            self.workers.begin()
            self._value, self._metrics = numbers(training.step(), self._setup.metric)
        self._done += 1
        if self.begin.rank == 0:
            took = monotonic_ns() - began
            self._save_best(training)  # first: a target that is reached with it ends the search
            sharers = float(self.work.place.parts) if self._setup.emulated is not None else None
            self._tell(Iterated(*self.key, self._done, took, self._value, sharers, self._metrics))

    def _save_best(self, training: Training) -> None:
        """Save a candidate that is worth more than whenever it was saved, unless that took too long so far;
        one that is good enough to end the search is saved in any case."""
        if not self._is_best:
            return
        most = SAVING_SECONDS + SAVING_SHARE * (monotonic() - self._began)
        affordable = self._saves_best and (self._saving_took or 0.0) < most
        if affordable or self._reaches(self._setup.target):
            self._try_to_save(training)

    def _try_to_save(self, training: Training) -> None:
        """Save a state that nobody needs to go on: where that fails, the candidate goes on without."""
        try:
            self._save(training)
        except Exception as error:
            self._saves_best = False
            print(f"the best so far could not be saved, and no better will be: {error!r}", file=sys.stderr)
        else:
            self._tell(Saved(*self.key, self._done, best=True))

    def _reaches(self, target: float | None) -> bool:
        if target is None or self._value is None:
            return False
        return self._value <= target if self._setup.goal == "min" else self._value >= target

    @property
    def _is_best(self) -> bool:
        if self._value is None or not isfinite(self._value):
            return False
        sign = 1 if self._setup.goal == "min" else -1
        if self._best is not None:
            return sign * self._value < sign * self._best
        # of an equal one that was reported before, the process may have been lost before it was saved
        return self.work.best is None or sign * self._value <= sign * self.work.best

    def _save(self, training: Training) -> None:
        checkpoint = Checkpoint(self.work.candidate, self._done)
        if self._saved != checkpoint:
            began = monotonic()
            write(Path(self.begin.folder), checkpoint, training.save())
            took = monotonic() - began
            self._saving_took = 0.0 if self._saving_took is None else self._saving_took + took
            self._best = self._value if self._is_best else self._best
        self._saved = checkpoint
        self._saved_at = monotonic()

    @contextmanager
    def _theirs(self) -> Iterator[None]:
        """Run the user's code inside, which a dropped run leaves at once."""
        self.interruptible = True
        try:
            if self.dropped:
                raise Dropped
            yield
        finally:
            self.interruptible = False

    def _ended(self, ending: Ending, error: str = "", trouble: bool = False) -> MemberEnded:
        saved = self._saved.iterations if self._saved is not None else 0
        return MemberEnded(*self.key, self.begin.rank, ending, saved, self._value, error, trouble)


def numbers(reported: Any, metric: str) -> tuple[float, dict[str, float]]:
    """Return the value, and what else was reported. Where there are several numbers, *metric* is its name."""
    if not isinstance(reported, Mapping):
        return _number(reported, "step()"), {}
    named = {str(name): _number(value, name) for name, value in reported.items()}
    name = metric or (next(iter(named)) if len(named) == 1 else "")
    if name not in named:
        raise InputError("metric", metric or None, f"the name of what is reported: {' or '.join(named)}")
    return named.pop(name), named


def _number(value: Any, name: str) -> float:
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):  # the last by a tensor of several
        raise TypeError(f"{name} must be a number, what the candidate is worth; not {value!r}") from None


def _is_trouble(error: BaseException) -> bool:
    """Tell whether the error is of the connection to other members; Gloo has no class of its own."""
    import torch.distributed as dist

    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


@cache
def _store(host: str, port: int) -> Any:
    """Return the slot's connection to the store, which all its runs share."""
    from torch._C._distributed_c10d import TCPStore

    return TCPStore(host, port, None, False, LONGEST, wait_for_workers=False)
