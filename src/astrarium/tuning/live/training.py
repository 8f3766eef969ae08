"""A user who has a model tuned writes a *build*, which makes a *training* of a candidate's values.

    def build(values, workers):
        return MyTraining(values["rate"], workers)

A training lives for one run. A trial that goes on elsewhere, on more GPUs or on a share of one, is built anew
and loads what the last training saved. Random numbers of Python, NumPy and PyTorch go on where they were, and
are the same on all workers: a batch that is drawn at random is the same batch everywhere, of which each
worker takes its share.
"""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Any, Protocol, TypeAlias, cast

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.optional import from_extra
from astrarium.tuning.runtime import Runtime, Width

# A user's build gets into other processes by its name, or pickled.


FORM = '"file.py:function" or "module:function"'


def named(text: str) -> Callable[..., Any]:
    """Return the function of that name. Imports of a file search its folder, as a script's do."""
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise InputError("objective", text, FORM)
    module = _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    found = getattr(module, name, None)
    if not callable(found):
        raise InputError("objective", text, f"a function {name!r} in {where}")
    return cast("Callable[..., Any]", found)


def _from_file(path: Path) -> Any:
    path = path.absolute()
    if not path.is_file():
        raise InputError("objective", str(path), "a Python file that is there")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # what it pickles is found again
    spec.loader.exec_module(module)
    return module


def packed(build: Callable[..., Any] | str) -> bytes:
    """Pack a build into a parcel. What a name leads to is checked where the parcel is opened: only there its
    imports must be possible."""
    if isinstance(build, str):
        where, _, name = build.rpartition(":")
        if not where or not name or (where.endswith(".py") and not Path(where).is_file()):
            raise InputError("objective", build, f"{FORM} of a file that is there")
        whole = f"{Path(where).absolute()}:{name}" if where.endswith(".py") else build
        return pickle.dumps(("named", whole))
    if not callable(build):
        raise InputError("objective", build, f"a function of values and workers, or {FORM}")
    return pickle.dumps(("pickled", _pickled(build)))


def _pickled(build: Callable[..., Any]) -> bytes:
    """Pickle a build, by value where it is in the script itself: that is not run again elsewhere."""
    if importlib.util.find_spec("cloudpickle") is None and build.__module__ != "__main__":
        return pickle.dumps(build)
    with from_extra("tune"):
        import cloudpickle  # type: ignore[import-untyped]
    try:
        return bytes(cloudpickle.dumps(build))
    except Exception as error:
        told = f"a function that can be pickled with all that it refers to: {error}"
        raise InputError("objective", build, told) from error


def opened(parcel: bytes) -> Callable[..., Any]:
    kind, inside = pickle.loads(parcel)
    found: Callable[..., Any] = named(inside) if kind == "named" else pickle.loads(inside)
    return found


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

    # One that has a `close` is told so when its run is over.


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


class ParkedFunction:
    """A function of the user's runs in a thread, from one report to the next, and is parked in between: there
    its training saves it, and there it is left, by an error of the class *leaves*."""

    def __init__(self, function: Callable[[], object], name: str, leaves: type[BaseException]) -> None:
        self._function = function
        self._leaves = leaves
        self._over = False
        self._go = threading.Semaphore(0)
        self._said: SimpleQueue[Any] = SimpleQueue()  # reports, and an error or None at the end
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)

    def next(self) -> Any:
        """Run the function on to its next report, and return that; None where it has come to its end."""
        if self._over:
            return None
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()
        said = self._said.get()
        self._over = said is None or isinstance(said, BaseException)
        if isinstance(said, BaseException):
            raise said
        return said

    def park(self, report: object) -> None:
        """Report, from inside the function, and wait there for `next`."""
        self._said.put(report)
        self._go.acquire()
        if self._over:
            raise self._leaves

    def close(self, seconds: float) -> None:
        """Let the function leave, which it has so many seconds for."""
        self._over = True
        self._go.release()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._function()
            self._said.put(None)
        except self._leaves:
            self._said.put(None)
        except BaseException as error:
            self._said.put(error)


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
