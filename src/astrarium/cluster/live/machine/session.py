"""A session is one run of a job, as its script sees it (`astrarium.cluster_job`).

`steps` begins where the checkpoint was written. `checkpoint` is cheap: it writes only when one is due, that
is when the job was asked to stop, when the last one is old, and after the last step. A function may be given
in place of the state: it is called only then. A job that was asked to stop leaves from there.

A full disk does not end a job. A checkpoint that finds no room leaves the one before it in place, and is
written when the next is due; the last one, and the result, are waited for.

Outside a cluster the same script runs as it is, and keeps its checkpoints in the folder `checkpoints`, or
wherever ASTRARIUM_FOLDER says.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from astrarium.cluster.live.machine.checkpoint_file import read_checkpoint, write_checkpoint
from astrarium.cluster.live.machine.keeping.grace import GRACE, Grace
from astrarium.cluster.live.machine.keeping.job_files import CHECKPOINT, PROGRESS, READY, RESULT
from astrarium.cluster.live.machine.keeping.pauses import SELDOM
from astrarium.cluster.live.machine.keeping.records import passes, write_whole
from astrarium.run.leased import LeasedGpus

STOPPED = 75  # the exit code of a job that left with a checkpoint: EX_TEMPFAIL, try again
EVERY = 60.0  # seconds between checkpoints, unless given
_TELL = 0.25  # seconds between words about progress


class Session:
    """One run of a job as its script sees it. *rank* 0 writes; the others agree with it on when to stop."""

    def __init__(self, every: float = EVERY) -> None:
        self.folder = Path(os.environ.get("ASTRARIUM_FOLDER", "checkpoints"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.run = int(os.environ.get("ASTRARIUM_RUN", "1"))
        self.gpus = int(os.environ.get("ASTRARIUM_GPUS", "1"))
        self._leased = LeasedGpus(self.folder)
        self.asked = False  # to stop
        self._leave_by = float("inf")
        self._grace = Grace(float(os.environ.get("ASTRARIUM_GRACE", GRACE)))
        # what cannot be written, and why
        self._ready = False
        self._short = ""
        self._every = float(os.environ.get("ASTRARIUM_CHECKPOINTS", every))
        self._first = self._done = self._kept = self._total = 0
        self._restored: Any = None
        self._written_at = self._told_at = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._resume()

    def restore(self) -> Any:
        """Return the state of the last checkpoint; None where there is none."""
        return self._restored

    def steps(self, total: int) -> Iterator[int]:
        """Yield the numbers of the steps that are left."""
        self._total = total
        self._tell(self._first)
        for step in range(self._first, total):
            self._done = step
            yield step
            self._use()
            self._done = step + 1
            if time.monotonic() - self._told_at > _TELL:
                self._tell()

    @property
    def devices(self) -> tuple[int, ...]:
        """Return the GPUs to use, as this process counts them."""
        return self._leased.devices or tuple(range(self.gpus))

    def resized(self) -> bool:
        """Return whether the job is to go on with other GPUs: `devices`, `gpus` of them. It is taken to have
        done so when it asks again, or with the next step."""
        self._use()
        if not self._leased.changed():
            return False
        self.gpus = len(self.devices)
        return True

    def _use(self) -> None:
        if self.rank == 0:
            self._leased.use()

    def checkpoint(self, state: Any) -> None:
        """Write a checkpoint of *state* after a step, if one is due, and leave if asked to."""
        done = self._done + 1
        stop = self._agreed(self.asked)
        due = time.monotonic() - self._written_at > self._every or done >= self._total
        if stop and not self.asked:
            self.ask()
        if stop or self._agreed(due):
            self.write(done, state() if callable(state) else state, patient=stop or done >= self._total)
        if stop and done < self._total:
            raise SystemExit(STOPPED)

    def write(self, done: int, state: Any, patient: bool = False) -> None:
        """Write a checkpoint now, whether it is due or not. *patient*: wait if the disk is full."""
        if self.rank == 0:
            path = self.folder / CHECKPOINT
            content = {"done": done, "state": state}
            if self._written(path, lambda: write_checkpoint(content, path), patient):
                self._tell(done)
        self._written_at = time.monotonic()

    def result(self, value: Any) -> None:
        """Write what came out, as JSON, beside the checkpoint."""
        if self.rank == 0:
            path = self.folder / RESULT
            self._written(path, lambda: write_whole(path, value), patient=True)

    def ask(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Ask the job to stop: it waits for room for its checkpoint as long as its grace leaves it."""
        self.asked = True
        self._leave_by = time.monotonic() + self._grace.leaving

    def _written(self, path: Path, write: Callable[[], None], patient: bool = False) -> bool:
        """Write something and return whether there was room for it. Who is *patient* waits for that, and
        leaves with what was written before if asked to stop meanwhile."""
        while not self._tried(path, write):
            if not patient:
                return False
            if time.monotonic() > self._leave_by:
                raise SystemExit(STOPPED)
            time.sleep(SELDOM)
        return True

    def _tried(self, path: Path, write: Callable[[], None]) -> bool:
        try:
            write()
        except (OSError, MemoryError) as error:
            if not passes(error):
                raise
            self._warn(f"{path} cannot be written: {error}")
            return False
        if self._short and path.name != PROGRESS:
            self._short = ""
            _say(f"{path} is written: there is room again")
        return True

    def _warn(self, problem: str) -> None:
        """Say once what is missing, and that the job goes on."""
        if not self._short:
            self._short, place = problem, os.statvfs(self.folder)
            needs = f"it needs more than the {place.f_bavail * place.f_frsize} bytes that are free there"
            _say(f"{problem}; {needs}; the job goes on, with {self._kept} of {self._total} steps kept")

    def _resume(self) -> None:
        resumed = os.environ.get("ASTRARIUM_RESUME", "")
        own = self.folder / CHECKPOINT
        path = Path(resumed) if resumed else own
        if path.exists():
            checkpoint = read_checkpoint(path)
            self._first = self._done = int(checkpoint["done"])
            self._restored = checkpoint["state"]

    def _tell(self, kept: int | None = None) -> None:
        """Write down how far the job is, and how far the checkpoint."""
        self._told_at = time.monotonic()
        if not self._total:
            return
        if self.rank == 0:
            self._kept = kept if kept is not None else self._kept
            progress: dict[str, Any] = {
                "progress": self._done / self._total,
                "kept": self._kept / self._total,
            }
            progress |= {"trouble": self._short} if self._short else {}
            self._written(self.folder / PROGRESS, lambda: write_whole(self.folder / PROGRESS, progress))
        if self.rank == 0 or not (self.folder / "part-0").exists():  # elsewhere: on a machine of its own
            self._ready = self._ready or self._written(self.folder / READY, (self.folder / READY).touch)

    def _agreed(self, mine: bool) -> bool:
        """Return whether one of a gang says so: it stops after the same step everywhere, or nowhere."""
        torch = sys.modules.get("torch")
        if self.world < 2 or torch is None or not torch.distributed.is_initialized():
            return mine
        device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
        flag = torch.tensor([int(mine)], device=device)
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
        return bool(flag.item())


@contextmanager
def session(every: float = EVERY) -> Iterator[Session]:
    """Open the run of this job. A checkpoint is due *every* so many seconds."""
    one = Session(every)
    before = signal.signal(signal.SIGTERM, one.ask)
    try:
        yield one
    finally:
        # All is done: a wish to stop that comes now must not end it before it has left by itself.
        signal.signal(signal.SIGTERM, signal.SIG_IGN if "ASTRARIUM_RUN" in os.environ else before)


def _say(words: str) -> None:
    with suppress(OSError):  # outside of a cluster, what is said may go to the same full disk
        print(f"astrarium: {words}", file=sys.stderr, flush=True)
