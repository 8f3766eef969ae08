"""A site has a scheduler of its own, such as Slurm or Kubernetes: this backend hands runs to it.

Every part of a run has a folder that the site's machines see, with an order for a keeper. The site only
starts keepers where the policy wants them; how far jobs are and how they ended is told by their folders. So
nothing hangs on what the site remembers, and a run that was handed over twice begins once: its first keeper
claims the folder.

The site is asked and told things by one thread, one after another: an answer that comes after an order knows
of it. While the site is silent, all stays as it was last seen, and orders are given again when it answers.
"""

from __future__ import annotations

import hashlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec

from astrarium.cluster.live.backend import (
    Ending,
    Fenced,
    MachineStatus,
    Order,
    RunKey,
    RunPart,
    RunStatus,
    Snapshot,
)
from astrarium.cluster.live.backends.fleet import WORST, together
from astrarium.cluster.live.machine.as_owner import KEEPING
from astrarium.cluster.live.machine.folders import (
    app_name,
    newest_checkpoint,
    order_folder,
    part_folder,
    read_claims,
    read_file,
)
from astrarium.cluster.live.machine.keeping.claims import LAST_WORDS
from astrarium.cluster.live.machine.keeping.grace import GRACE, PATIENCE, Grace
from astrarium.cluster.live.machine.keeping.records import (
    BEGUN,
    CLOSED,
    ORDER,
    OUTCOME,
    STOP,
    mark,
    private_folder,
    write_whole,
)
from astrarium.cluster.live.machine.outcome import Outcome, ending
from astrarium.cluster.live.machine.owners import app_folder
from astrarium.cluster.live.machine.parts import PartOrder, how_far, left_behind, lock_files, written_order
from astrarium.core.errors import AstrariumError, InputError

EPOCH = "epoch"
KEEPER = "keeping"
LOG = "site.txt"
EXIT = "exit"
LOG_END = 1 << 16  # bytes of what the site says that are read for its last words
SCAN = 2.0  # seconds between questions to the site
PORTS = range(20_000, 32_768)  # for gangs: below those that systems hand out by themselves


class SiteSilent(AstrariumError):
    """The site does not answer; whether it has heard is not known."""


class SiteRefused(AstrariumError):
    """The site has heard an order, and does not carry it out."""


class SiteJob(NamedTuple):
    """What a site says of a run: whether it still *lives* there, waiting or running; whether it ever *began*;
    its *state* in the site's words; and whether it has *failed* by itself rather than been ended."""

    lives: bool
    began: bool = True
    state: str = ""
    failed: bool = False


class SiteView(NamedTuple):
    machines: Mapping[str, MachineStatus]
    jobs: Mapping[RunKey, SiteJob]


@dataclass
class SiteRun:
    """A run as this arbiter knows it. *ours*: it was ordered by this arbiter, which hands it over until the
    site has it (*sent*); *kept*: the part of its work with which it began."""

    order: Order
    kept: float
    ours: bool = False
    sent: Literal["no", "queued", "yes"] = "no"
    job: SiteJob | None = None
    refused: str = ""
    asked_at: float | None = None
    forced: bool = False
    gone_at: float | None = None  # since when the site does not have it any more


class SiteOptions(TypedDict, total=False):
    """What every site is told besides its own, as `SiteBackend` describes it."""

    grace: float
    least: float
    patience: float
    env: Mapping[str, str] | None
    scan: float


class SiteBackend(ABC):
    """A backend over the scheduler of a site. *patience*: seconds that a folder may take to show what was
    written elsewhere, after the site says that a run has ended.

    Each site says how it is asked in the methods from `poll` to `address`; all of these may raise SiteSilent.
    """

    name = kind = ""  # as people call it, and as a file does

    def __init__(
        self,
        home: Path,
        grace: float = GRACE,
        least: float = 0.0,
        patience: float = PATIENCE,
        env: Mapping[str, str] | None = None,
        scan: float = SCAN,
    ) -> None:
        self.home = home
        self.grace = Grace(grace)
        self._least = least
        self._patience = patience
        self._longest = self.grace.arbiter(patience)  # from the wish to stop to the end
        self._env = dict(env or {})
        self._scan = scan
        self._epoch = 0
        self.prefix = f"astrarium-{hashlib.sha256(str(home).encode()).hexdigest()[:8]}"
        self._runs: dict[RunKey, SiteRun] = {}
        self._machines: Mapping[str, MachineStatus] = {}
        self._thread = ThreadPoolExecutor(1, "site")
        self._pending: list[tuple[Future[Any], Callable[[Future[Any]], None]]] = []
        self._unheard: list[tuple[Callable[[RunKey], None], RunKey]] = []
        self._asked_at = float("-inf")

    @abstractmethod
    def poll(self) -> SiteView:
        """Return the machines that are there, and our runs that the site has or still remembers."""

    def reach(self) -> SiteView:
        """Return what `poll` does, and name the field where the site cannot be asked at all."""
        try:
            return self.poll()
        except (SiteSilent, SiteRefused) as error:
            raise InputError("live.backend", self.kind, f"a {self.name} that answers ({error})") from None

    @abstractmethod
    def submit(self, order: Order) -> None:
        """Hand a run over, unless the site has it; SiteRefused where it does not take it."""

    @abstractmethod
    def ask(self, key: RunKey) -> None:
        """Take a run back that waits; tell the keepers of one that runs to look for a wish to stop."""

    @abstractmethod
    def kill(self, key: RunKey) -> None:
        """End a run that does not leave."""

    def remove(self, key: RunKey) -> None:  # noqa: B027 (most sites forget by themselves)
        """Remove what the site still holds of a run that has ended."""

    @abstractmethod
    def address(self, order: Order) -> str:
        """Return where the first part of a gang will be reached by the others."""

    def enter(self, epoch: int) -> None:
        """Take over; an arbiter before this one finds a larger number in the folder, and stops."""
        private_folder(self.home)
        self._epoch = epoch
        self._check()
        write_whole(self.home / EPOCH, epoch)
        self._put_keeper()
        for part, _ in left_behind(self.home, ORDER):
            self._runs.setdefault(part.order.key, SiteRun(part.order, part.kept))
        self._seen(self.reach())

    def _put_keeper(self) -> None:
        """Put the keeper where all machines of the site see it."""
        for path in KEEPING.parent.glob("*.py"):
            (private_folder(self.home / KEEPER) / path.name).write_bytes(path.read_bytes())

    def look(self) -> Snapshot:
        self._check()
        self._hear()
        shown = {key: self._status(run) for key, run in self._runs.items() if run.ours or run.sent == "yes"}
        return Snapshot(self._machines, shown)

    def start(self, order: Order) -> None:
        self._check()
        known = self._runs.get(order.key)
        if any(part.machine not in self._machines for part in order.parts):
            return
        if known is None or not (known.ours or known.sent == "yes"):
            run = self._runs[order.key] = SiteRun(order, self._write(order), ours=True)
            self._hand_over(run)

    def resize(self, key: RunKey, order: Order) -> bool:
        """Return that it cannot be: a job of a site has the GPUs that it was given there."""
        return False

    def retry(self, machine: str, gpu: int) -> None:  # noqa: B027
        """Do nothing: the site itself watches the health of its GPUs."""

    def bring_logs(self, app: str, seconds: float) -> None:  # noqa: B027
        """Do nothing: the folders of jobs are those that the arbiter reads."""

    def stop(self, key: RunKey) -> None:
        self._check()
        run = self._runs.get(key)
        if run is not None and run.asked_at is None:
            run.asked_at = time.monotonic()
            for folder in self._folders(run.order):
                mark(folder / STOP)
            self._tell(self.ask, key)

    def forget(self, key: RunKey) -> None:
        self._check()
        run = self._runs.pop(key, None)
        if run is not None:
            for folder in self._folders(run.order):
                mark(folder / CLOSED)
            self._tell(self.remove, key)

    def close(self) -> None:
        """Leave; orders that were not yet given are given by the next arbiter."""
        self._thread.shutdown(cancel_futures=True)

    def run_name(self, key: RunKey) -> str:
        return f"{self.prefix}-{key.app}-{key.job}-{key.run}"

    def run_key(self, name: str) -> RunKey | None:
        """Return the run of a name; None where it is not one of ours."""
        prefix, *numbers = name.rsplit("-", 3)
        ours = prefix == self.prefix and len(numbers) == 3 and all(number.isdigit() for number in numbers)
        return RunKey(*map(int, numbers)) if ours else None

    def _check(self) -> None:
        newest = read_file(self.home / EPOCH, int) or 0
        if newest > self._epoch:
            raise Fenced(f"arbiter {self._epoch} was superseded by arbiter {newest}")

    def _folders(self, order: Order) -> list[Path]:
        return [part_folder(self.home, order, place) for place in range(len(order.active))]

    def _write(self, order: Order) -> float:
        """Write down what keepers shall do, before the site is told: a run whose arbiter dies in between is
        found. GPUs of a part are counted from 0: which they are is the site's choice."""
        resume = newest_checkpoint(self.home, order)
        parts = tuple(RunPart(part.machine, tuple(range(len(part.gpus)))) for part in order.parts)
        address = self.address(order)
        port = self._port(order.key)
        app_folder(self.home, app_name(order.key.app, order.app), {})
        for place, folder in enumerate(self._folders(order)):
            part = PartOrder(order, place, resume.checkpoint, resume.kept, address, port, self.grace.job,
                             self._least, 0, self._env, 0, resume.run)  # fmt: skip
            seen = msgspec.structs.replace(part, order=msgspec.structs.replace(order, parts=parts))
            private_folder(folder)
            written = {
                **written_order(self.home, seen, lock_files(self.home, seen, []), {}, site=True),
                "part": msgspec.to_builtins(part),
            }
            write_whole(folder / ORDER, written)
        return resume.kept

    def _port(self, key: RunKey) -> int:
        """Return a port that another run of the job will not be given: it may be taken there."""
        digest = hashlib.sha256(self.run_name(key).encode()).digest()
        return PORTS[int.from_bytes(digest[:4]) % len(PORTS)]

    def _hand_over(self, run: SiteRun) -> None:
        def send() -> None:
            if run.asked_at is None:  # else it was given up before
                self.submit(run.order)

        def sent(done: Future[Any]) -> None:
            try:
                done.result()
            except SiteSilent:
                run.sent = "no"
            except SiteRefused as error:
                run.refused = str(error)
            else:
                run.sent = "yes"

        run.sent = "queued"
        self._pending.append((self._thread.submit(send), sent))

    def _tell(self, order: Callable[[RunKey], None], key: RunKey) -> None:
        """Give an order; one that the site did not hear is given again when it answers."""

        def heard(done: Future[Any]) -> None:
            try:
                done.result()
            except SiteSilent:
                self._unheard.append((order, key))
            except SiteRefused:
                pass  # there is nothing left to stop or to remove

        self._pending.append((self._thread.submit(order, key), heard))

    def _hear(self) -> None:
        """Take the answers that are there, in the order of the questions, and ask again."""
        while self._pending and self._pending[0][0].done():
            done, then = self._pending.pop(0)
            then(done)
        if time.monotonic() - self._asked_at > self._scan:
            self._asked_at = float("inf")
            self._pending.append((self._thread.submit(self.poll), self._answered))

    def _answered(self, done: Future[SiteView]) -> None:
        self._asked_at = time.monotonic()
        with suppress(SiteSilent, SiteRefused):
            self._seen(done.result())

    def _seen(self, view: SiteView) -> None:
        """Compare what the site has with what it was handed before it was asked."""
        self._machines = view.machines
        unheard = self._unheard
        self._unheard = []
        for order, key in unheard:
            self._tell(order, key)
        for key, run in self._runs.items():
            job = view.jobs.get(key)
            run.job = job or run.job
            if run.sent == "no" and (job is not None or self._begun(run.order)):
                run.sent = "yes"
            elif run.sent == "no" and run.ours:
                self._hand_over(run)
            if run.sent == "yes":
                run.gone_at = None if job is not None and job.lives else run.gone_at or time.monotonic()

    def _status(self, run: SiteRun) -> RunStatus:
        order = run.order
        parts = [self._part(run, folder) for folder in self._folders(order)]  # before what was told last
        claims = [read_claims(folder) for folder in self._folders(order)]
        far = [how_far(claim, run.kept) for claim in claims]
        ended = together(ending for ending, _ in parts)
        if not ended:
            self._press(run, any(ending in WORST[:3] for ending, _ in parts))
        error = next((words for ending, words in parts if ending == ended and words), "")
        progress = max(done for done, _ in far)
        kept = max(saved for _, saved in far)
        trouble = next((claim.trouble for claim in claims if claim.trouble), "") if not ended else ""
        return RunStatus(order.gpus, ended, progress, kept, error, trouble=trouble)

    def _press(self, run: SiteRun, broken: bool) -> None:
        """Stop the rest of a gang of which a part has failed, and end a run that was asked and stays."""
        if broken:
            self.stop(run.order.key)
        late = run.asked_at is not None and time.monotonic() > run.asked_at + self._longest
        if late and not run.forced:
            run.forced = True
            self._tell(self.kill, run.order.key)

    def _part(self, run: SiteRun, folder: Path) -> tuple[Ending, str]:
        outcome = read_file(folder / OUTCOME, Outcome)
        if outcome is None:
            return self._verdict(run)
        ended, error = ending(outcome)
        if ended == "stopped" and outcome.asked and not (folder / STOP).exists():
            return "lost", f"{self.name} has ended it"
        return ended, error

    def _verdict(self, run: SiteRun) -> tuple[Ending, str]:
        """Return how a part without an outcome has ended, if it has."""
        job = run.job
        given_up = run.asked_at is not None
        if run.refused:
            return "failed", run.refused
        if run.gone_at is None:
            return "", ""
        if given_up and (job is None or not job.began) and not self._begun(run.order):
            return "unstarted", ""
        if time.monotonic() < run.gone_at + self._patience:
            return "", ""
        if given_up:  # it left before it could tell, or was killed
            return "stopped", ""
        folder = order_folder(self.home, run.order)
        known = job is not None and not job.lives
        state = job.state if job is not None else ""
        if job.failed if job is not None and known else (folder / EXIT).exists():
            words = _last_line(folder / LOG)
            return "failed", ", ".join(reason for reason in (state if known else "", words) if reason)
        return "lost", f"{self.name}: {state if known else 'it is not known there any more'}"

    def _begun(self, order: Order) -> bool:
        return any((folder / BEGUN).exists() for folder in self._folders(order))


def _last_line(path: Path) -> str:
    """Return the last line of what a site has said of a run; nothing, where it has said nothing."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_END))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:LAST_WORDS] if lines else ""
