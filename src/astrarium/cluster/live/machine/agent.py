"""The agent of one machine starts and stops parts of runs, each in a folder, each with a keeper.

All that an agent knows stands in the folders, so that another one can take over: an order, an outcome once it
has ended, and a lock that is held as long as its keeper lives. What cannot be done for want of room on the
disk, or of memory, is done at one of the next looks.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from astrarium.cluster.live.backend import Ending, Order, RunKey, RunPart
from astrarium.cluster.live.machine.as_owner import KEEPING
from astrarium.cluster.live.machine.folders import (
    APPS,
    LOCKS,
    ORDERS,
    Told,
    app_name,
    job_name,
    part_folder,
    read_file,
    read_told,
    run_folder,
)
from astrarium.cluster.live.machine.keeping.records import (
    ALIVE,
    CLOSED,
    LAUNCHED,
    ORDER,
    OUTCOME,
    RESIZE,
    RESIZED,
    STOP,
    mark,
    passes,
    private_folder,
    write_whole,
)
from astrarium.cluster.live.machine.keeping.runner import NOT_FOUND
from astrarium.cluster.live.machine.owners import account, app_folder
from astrarium.cluster.live.machine.session import STOPPED

SOON = 1.0  # seconds that a look at the disk is waited for


class Outcome(msgspec.Struct, frozen=True):
    """What a keeper has left behind: the exit codes of its processes, which of them failed *first*, and with
    which last *words*; *oom*: how many processes of the machine the kernel killed for memory meanwhile."""

    codes: list[int]
    asked: bool
    first: int
    oom: int = 0
    words: str = ""


def ending(outcome: Outcome | None) -> tuple[Ending, str]:
    """Return how a part of a run has ended, from what its keeper has left behind, and with which error."""
    if outcome is None:
        return "lost", "its keeper was killed"
    codes = outcome.codes
    if codes and all(code == 0 for code in codes):
        return "finished", ""
    if outcome.asked or not codes or all(code in (0, STOPPED) for code in codes):
        return "stopped", ""
    code = codes[outcome.first]
    words = outcome.words
    ended: Ending = "not found" if code == NOT_FOUND else "failed"
    return ended, f"{_exit(code)}{_memory(code, outcome.oom)}{f', {words}' if words else ''}"


def _exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _memory(code: int, oom: int) -> str:
    """Return what is known of a SIGKILL that nobody here has sent; a shell passes it on as a code."""
    if code not in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return ""
    return f" (out of memory: the kernel killed {oom} here meanwhile)" if oom else " (out of memory?)"


class PartOrder(msgspec.Struct, frozen=True):
    """Part number *place* of an order, on this machine. *resume*: a checkpoint, if any, that *resumed_run* of
    the job has written, with *kept* of the work; *device_base*: the number of this machine's GPU 0 as CUDA
    counts them here."""

    order: Order
    place: int
    resume: str = ""
    kept: float = 0.0
    address: str = "127.0.0.1"
    port: int = 0
    grace: float = 30.0
    least: float = 0.0
    device_base: int = 0
    extra: dict[str, str] = {}
    visible: int = 0  # GPUs of this machine that an elastic job sees: all of them
    resumed_run: int = 0

    @property
    def part(self) -> RunPart:
        return self.order.parts[self.place]


class Resized(msgspec.Struct, frozen=True):
    """The later run as which a part goes on, and its GPUs as the cluster counts them."""

    run: int = 0
    gpus: tuple[int, ...] = ()


class PartStatus(msgspec.Struct, frozen=True):
    """How far a part of a run is, and how it has ended; *error* of one that has not: why it cannot begin."""

    order: Order
    place: int
    ended: Ending = ""
    progress: float = 0.0
    kept: float = 0.0
    error: str = ""
    resized: Resized = Resized()
    trouble: str = ""  # of one that goes on


class MachineAgent:
    """The agent of a machine; *with_agent*, jobs end with it, else another agent finds them."""

    def __init__(self, home: str, machine: str, with_agent: bool = False) -> None:
        self._home = Path(home)
        self._machine = machine
        self._with_agent = with_agent
        self._parts: dict[RunKey, tuple[PartOrder, Path]] = {}
        self._keepers: dict[RunKey, subprocess.Popen[bytes]] = {}
        self._undone: dict[tuple[str, RunKey], Callable[[], None]] = {}  # for want of room, as in _short
        # given up before there was any
        self._unstarted = set[RunKey]()
        self._short = ""
        if not with_agent:  # it takes over the parts that an agent before it has left
            mine = [each for each in left_behind(self._home) if each[0].part.machine == machine]
            self._parts = {part.order.key: (part, folder) for part, folder in mine}

    def start(self, part: PartOrder) -> None:
        key = part.order.key
        if key not in self._parts:
            folder = part_folder(self._home, part.order, part.place)
            self._carry_out("start", key, partial(self._launch, part, folder))
            self._parts[key] = part, folder

    def stop(self, key: RunKey) -> None:
        if self._undone.pop(("start", key), None) is not None:
            self._unstarted.add(key)
        elif key in self._parts and key not in self._unstarted:
            self._carry_out("stop", key, partial(mark, self._parts[key][1] / STOP))

    def resize(self, key: RunKey, order: Order) -> None:
        """Have a part go on as the run of this order: its keeper sees to it."""
        part, folder = self._parts[key]
        gpus = order.parts[part.place].gpus
        wish = {"run": order.key.run, "gpus": order.gpus, "devices": gpus, "locks": self._locks(part, gpus)}
        if (read_file(folder / RESIZE, Resized) or Resized()).run != order.key.run:
            write = partial(write_whole, folder / RESIZE, wish)
            self._carry_out("resize", key, write)

    def forget(self, key: RunKey) -> None:
        if key in self._parts:
            self._carry_out("forget", key, partial(self._close, key))

    def look(self) -> dict[RunKey, PartStatus]:
        for (verb, key), deed in list(self._undone.items()):
            self._carry_out(verb, key, deed)
        return {key: self._status(part, folder) for key, (part, folder) in self._parts.items()}

    def _carry_out(self, verb: str, key: RunKey, deed: Callable[[], None]) -> None:
        """Do what was ordered; where there is no room or memory for it, try again at the next look."""
        self._undone.pop((verb, key), None)
        try:
            deed()
        except (OSError, MemoryError) as error:
            if not passes(error):
                raise
            self._undone[verb, key], self._short = deed, str(error) or "no memory"

    def _close(self, key: RunKey) -> None:
        if key not in self._unstarted:
            mark(self._parts[key][1] / CLOSED)
        del self._parts[key]
        self._unstarted.discard(key)
        keeper = self._keepers.pop(key, None)
        if keeper is not None:
            keeper.wait()

    def _launch(self, part: PartOrder, folder: Path) -> None:
        if (folder / LAUNCHED).exists():
            return  # an agent before us has started it
        try:
            private_folder(folder)
            order = part.order
            owner = account(part.order.task)
            if "unknown" not in owner:  # else the keeper says so
                app_folder(self._home, app_name(order.key.app, order.app), owner)
            self._start_keeper(part, folder, owner)
        except (OSError, MemoryError):
            shutil.rmtree(folder, ignore_errors=True)  # what is half made would be taken for a lost run
            raise

    def _start_keeper(self, part: PartOrder, folder: Path, owner: dict[str, Any]) -> None:
        """Start a keeper with a lock that is held already: nobody sees it started and not alive."""
        alive = os.open(folder / ALIVE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(alive, fcntl.LOCK_EX)
            locks = self._locks(part, part.part.gpus)
            written = written_order(self._home, part, locks, owner, with_agent=self._with_agent)
            write_whole(folder / ORDER, written)
            words = os.open(folder / LAUNCHED, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                self._keepers[part.order.key] = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(KEEPING), "keep", str(folder)],
                    stdin=subprocess.PIPE if self._with_agent else subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=words,
                    pass_fds=[alive],
                    start_new_session=True,
                )
            finally:
                os.close(words)
        finally:
            os.close(alive)

    def _locks(self, part: PartOrder, gpus: tuple[int, ...]) -> list[str]:
        place = self._machine.rpartition(".")[0] or self._machine  # the same for whoever is agent here next
        return lock_files(self._home, part, [f"gpu-{place}-{gpu}" for gpu in gpus])

    def _status(self, part: PartOrder, folder: Path) -> PartStatus:
        key = part.order.key
        waits = self._short if ("start", part.order.key) in self._undone else ""
        if waits or key in self._unstarted:
            ended: Ending = "" if waits else "unstarted"
            return PartStatus(part.order, part.place, ended, part.kept, part.kept, waits)
        try:
            ended, error = self._ending(
                key, folder
            )  # before what it told: of one that has ended, that is all
            told = read_told(folder)
            resized = read_file(folder / RESIZED, Resized) or Resized()
        except OSError:  # what cannot be read now is not taken for lost
            told = Told()
            ended = ""
            error = ""
            resized = Resized()
        progress, kept = how_far(told, part.kept)
        return PartStatus(part.order, part.place, ended, progress, kept, error, resized, told.trouble)

    def _ending(self, key: RunKey, folder: Path) -> tuple[Ending, str]:
        keeper = self._keepers.get(key)
        alive = _held(folder / ALIVE) if keeper is None else keeper.poll() is None
        outcome = read_file(folder / OUTCOME, Outcome)
        return ("", "") if outcome is None and alive else ending(outcome)


Seen = TypeVar("Seen")


class DiskThread(Generic[Seen]):
    """One *thread* does all that touches the disk of a machine, in order. While it waits for a slow disk,
    whoever looks is told what was seen last: so the machine is not silent."""

    def __init__(self, look: Callable[[], Seen], thread: Executor | None = None) -> None:
        self._look = look
        self._thread = thread or ThreadPoolExecutor(1)
        self._orders: list[tuple[int, Future[None]]] = []
        self._looking: Future[Seen] | None = None
        self._seen: list[Seen] = []  # nothing, or what was seen last
        self._taken = self.done = 0  # numbers of the last order that has come, and was carried out

    def look(self) -> Seen:
        """Return what is there, or was last seen; an order that could not be carried out raises here."""
        self._looking = self._looking or self._thread.submit(self._look)
        wait([self._looking], SOON if self._seen else None)
        self._check_orders()
        if self._looking.done():
            done = self._looking
            self._looking = None
            self._seen = [done.result()]
        return self._seen[0]

    def order(self, number: int, deed: Callable[[], None]) -> None:
        """Have an order carried out; one with a number that has come already is on its way."""
        if number > self._taken:
            self._taken = number
            self._orders.append((number, self._thread.submit(deed)))

    def close(self) -> None:
        """Drop the orders that are not begun."""
        for _, order in self._orders:
            order.cancel()

    def _check_orders(self) -> None:
        while self._orders and self._orders[0][1].done():
            number, order = self._orders.pop(0)
            order.result()
            self.done = number


def lock_files(home: Path, part: PartOrder, names: Iterable[str]) -> list[str]:
    """Return the files of the locks of these names, and of that of the job."""
    key = part.order.key
    names = [*names, f"job-{key.app}-{key.job}-{part.place}"]
    return [str(home / LOCKS / name.replace("/", "_")) for name in names]


def written_order(
    home: Path,
    part: PartOrder,
    locks: list[str],
    owner: dict[str, Any],
    site: bool = False,
    with_agent: bool = False,
) -> dict[str, Any]:
    """Return what a keeper reads: *locks* to hold; *owner*: the account of the job; *site*: another scheduler
    starts the keeper, and has chosen the GPUs; *with_agent*: the job ends when the agent does."""
    task = part.order.task
    key = part.order.key
    app, _, job = job_name(part.order).partition("/")
    return {
        "part": msgspec.to_builtins(part),
        "command": list(task.command),
        "directory": task.directory,
        "grace": part.grace,
        "least": part.least,
        "ready": task.on_stop == "checkpoint",  # it says when it is up
        "with_agent": with_agent,
        "site": site,
        "locks": locks,
        "account": owner,
        "umask": _umask() if "user" not in owner else 0o022,
        "folder": [str(home / APPS / app), job, f"run-{key.run}"],
        "logs": f"part-{part.place}",
        "place": part.place,
        "run": key.run,
        "resumed_run": part.resumed_run,
        "processes": list(_processes(home, part)),
    }


def _umask() -> int:
    """Return with which mask our processes make files."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Umask:")).split()[1], 8)


class _Written(msgspec.Struct):
    part: PartOrder


def left_behind(home: Path, sign: str = LAUNCHED) -> Iterator[tuple[PartOrder, Path]]:
    """Yield parts of runs whose end is in no books yet; *sign*: the file that a part has once it counts."""
    for path in home.glob(f"{ORDERS}/*/*/*/part-*/{ORDER}"):
        there = (path.parent / sign).exists() and not (path.parent / CLOSED).exists()
        found = read_file(path, _Written) if there else None
        if found is not None:
            yield found.part, path.parent


def _processes(home: Path, part: PartOrder) -> Iterator[dict[str, Any]]:
    """Yield the processes of a part. Ranks are counted over all parts, in their order."""
    order = part.order
    here = part.part
    each_gpu = order.task.processes == "gpu"
    counts = [len(one.gpus) if each_gpu else 1 for one in order.active]
    groups = [(gpu,) for gpu in here.gpus] if each_gpu else [here.gpus]
    for local, gpus in enumerate(groups):
        rank = sum(counts[: part.place]) + local
        ranks = {"RANK": rank, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": len(groups)}
        gang = {"WORLD_SIZE": sum(counts), "MASTER_ADDR": part.address, "MASTER_PORT": part.port}
        seen = range(part.visible) if part.visible else gpus
        ours = {
            "CUDA_VISIBLE_DEVICES": ",".join(str(part.device_base + gpu) for gpu in seen),
            "ASTRARIUM_ELASTIC": "1" if part.visible else "",
            "ASTRARIUM_DEVICES": ",".join(str(tuple(seen).index(gpu)) for gpu in gpus),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as NVML counts: who is sick there must be the same here
            "ASTRARIUM_APP": order.app,
            "ASTRARIUM_JOB": order.key.job,
            "ASTRARIUM_RUN": order.key.run,
            "ASTRARIUM_PHASE": order.phase,
            "ASTRARIUM_GPUS": len(order.gpus),
            "ASTRARIUM_GRACE": part.grace,
            "ASTRARIUM_FOLDER": run_folder(home, order),
            "ASTRARIUM_RESUME": part.resume,
        }
        values = {name: str(value) for name, value in {**ranks, **gang, **ours}.items()}
        yield {"env": {**order.task.env, **part.extra, **values}, "log": f"log-{rank}.txt"}


def how_far(told: Told, kept: float) -> tuple[float, float]:
    """Return how far a run is, and how far its checkpoint; it began with *kept* of its work."""
    kept = max(kept, told.kept)
    return max(kept, told.progress), kept


def _held(path: Path) -> bool:
    """Return whether somebody holds the lock of this file."""
    try:
        file = path.open()
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
