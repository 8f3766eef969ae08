"""The agent of a machine that shares no folder with the arbiter: it connects to it, reports, and obeys.

The agent reports several times a second, and each answer has the orders that it has not yet carried out; one
that comes twice is carried out once. One thread does what touches the disk, so that a slow one does not make
the machine silent; checkpoints and logs go over connections of their own.

Every time that the arbiter has given a machine up, the machine has a new number when it comes back. What it
ran under an earlier number is stopped then, and nobody looks at it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from astrarium.cluster.live.backend import MachineStatus, RunKey
from astrarium.cluster.live.backends.fleet import free_ports
from astrarium.cluster.live.backends.hosts.checkpoints import Checkpoint
from astrarium.cluster.live.backends.hosts.machine_checkpoints import (
    all_held,
    clear_before,
    held,
    note_cleared,
    packed,
    receive_held,
)
from astrarium.cluster.live.backends.hosts.messages import (
    AGENT,
    Accepted,
    ClearCheckpoint,
    FetchCheckpoint,
    ForgetRun,
    GetCheckpoint,
    HostOrder,
    Join,
    LogPiece,
    Orders,
    PutCheckpoint,
    PutLogs,
    Refusal,
    Report,
    RetryGpu,
    SendCheckpoint,
    SendLogs,
    StartPart,
    StopRun,
    Welcome,
)
from astrarium.cluster.live.machine.agent import MachineAgent
from astrarium.cluster.live.machine.as_owner import log_names, read_logs
from astrarium.cluster.live.machine.disk_thread import DiskThread
from astrarium.cluster.live.machine.folders import LOCKS, ORDERS, job_name, read_file
from astrarium.cluster.live.machine.health.watch import HealthWatch
from astrarium.cluster.live.machine.keeping.records import (
    CLOSED,
    STOP,
    locked_file,
    mark,
    private_folder,
    write_whole,
)
from astrarium.cluster.live.machine.owners import PASSABLE, ROOT
from astrarium.cluster.live.machine.parts import PartStatus, left_behind
from astrarium.cluster.live.wire.channel import Channel, WireError
from astrarium.cluster.live.wire.handshake import Place, connected
from astrarium.core.errors import InputError

AGAIN = 1.0  # seconds until the next try to connect
SILENCE = 10.0  # seconds without an answer, after which a connection is given up
PORTS = 4  # gangs that may begin on a machine between two reports


class KnownArbiter(msgspec.Struct, frozen=True):
    """What an agent remembers of its arbiter, in its folder."""

    cluster: str = ""
    number: int = 0
    epoch: int = 0


KNOWN = "machine.json"


class HostAgent:
    """It connects to the arbiter again and again, and carries out its orders on this machine.

    *with_agent*: jobs end with it; else the next agent here finds them.
    """

    def __init__(
        self,
        folder: Path,
        arbiter: Place,
        key: bytes,
        name: str,
        machine: MachineStatus,
        address: str = "",
        device_base: int = 0,
        with_agent: bool = False,
        tell: Callable[[str], None] = lambda words: print(words, file=sys.stderr, flush=True),
    ) -> None:
        private_folder(folder)
        self._folder = folder
        self._arbiter = arbiter
        self._key = key
        self._tell = tell
        self._name = name
        self._machine = machine
        self._address = address
        self._base = device_base
        self._with_agent = with_agent
        self._lock = _locked(folder)
        self._known = read_file(folder / KNOWN, KnownArbiter) or KnownArbiter()
        self._home = folder  # of the jobs of this cluster, once it is known
        self._agent: MachineAgent | None = None
        self._thread = ThreadPoolExecutor(1)
        self._health = HealthWatch()
        self._failed: dict[RunKey, PartStatus] = {}
        self._busy: dict[object, Any] = {}  # what is on its way, and what was asked for meanwhile
        self._news: list[Checkpoint] = []  # checkpoints that have come
        self._troubles: list[tuple[Checkpoint, str]] = []
        self._guard = threading.Lock()
        self._said = ""

    def run(self, leaving: threading.Event) -> None:
        """Serve the arbiter until it is time for leaving; whenever the connection breaks, try again."""
        while not leaving.is_set():
            try:
                with connected(self._arbiter, AGENT, self._key, SILENCE) as channel:
                    self._serve(channel, leaving)
            except (WireError, OSError) as error:
                self._say(f"{error}; trying again")
                leaving.wait(AGAIN)

    def _say(self, words: str) -> None:
        if words != self._said:
            self._said = words
            self._tell(words)

    def _serve(self, channel: Channel, leaving: threading.Event) -> None:
        agent, every = self._enter(channel)
        disk = DiskThread(partial(self._look, agent), self._thread)
        try:
            while not leaving.is_set():
                channel.send(self._report(disk))
                answer: Orders = channel.receive(Orders)
                for number, order in answer.orders:
                    disk.order(number, partial(self._carry_out, agent, order))
                leaving.wait(every)
        finally:
            disk.close()  # orders that are not begun are given again

    def _enter(self, channel: Channel) -> tuple[MachineAgent, float]:
        self._address = self._address or str(channel.socket.getsockname()[0])
        known = self._known
        lies = list(all_held(self._home_of(known.cluster))) if known.cluster else []
        fresh = self._with_agent and self._agent is None
        machine = self._name, self._machine, self._address, self._base
        channel.send(Join(*machine, known.cluster, known.number, fresh, lies))
        answer: Welcome | Refusal = channel.receive(Welcome | Refusal)
        if isinstance(answer, Refusal):
            raise WireError(f"the arbiter refuses: {answer.why}")
        if answer.cluster == known.cluster and answer.epoch < known.epoch:
            reason = f"arbiter {answer.epoch} was superseded by arbiter {known.epoch}"
            channel.send(Refusal(reason))
            raise WireError(reason)
        return self._thread.submit(self._taken_in, answer).result(), answer.every

    def _taken_in(self, answer: Welcome) -> MachineAgent:
        machine = f"{self._name}.{answer.number}"
        same = (answer.cluster, answer.number) == (self._known.cluster, self._known.number)
        self._home = self._home_of(answer.cluster)
        known = KnownArbiter(answer.cluster, answer.number, answer.epoch)
        write_whole(self._folder / KNOWN, msgspec.to_builtins(known))
        self._say(f"arbiter {answer.epoch} knows this machine as {machine}, with {self._machine.gpus} GPUs")
        if self._agent is None or not same:
            self._abandon(machine)
            self._failed.clear()
            self._agent = MachineAgent(str(self._home), machine, self._with_agent)
        self._known = known  # not before: what finds no room on the disk is done when it connects again
        return self._agent

    def _home_of(self, cluster: str) -> Path:
        """Return the folder of the jobs of a cluster; locks of GPUs are the same for all clusters. Owners of
        apps pass through the folder of an agent that is root, to theirs, and see nothing of it."""
        if os.geteuid() == ROOT:
            self._folder.chmod(PASSABLE)
        home = private_folder(self._folder / cluster)
        private_folder(self._folder / LOCKS)
        if not (home / LOCKS).exists():
            (home / LOCKS).symlink_to(Path("..", LOCKS))
        return home

    def _abandon(self, machine: str) -> None:
        """Stop what runs here and was begun when this machine had another number."""
        homes = [path for path in self._folder.iterdir() if (path / ORDERS).is_dir()]
        for part, folder in (left for home in homes for left in left_behind(home)):
            if not folder.is_relative_to(self._home) or part.part.machine != machine:
                mark(folder / STOP)
                mark(folder / CLOSED)
                self._tell(f"{part.order.app}: run {part.order.key.run} is stopped: it was given up")

    def _look(self, agent: MachineAgent) -> tuple[list[PartStatus], list[Checkpoint]]:
        parts = {**agent.look(), **self._failed}
        mine = [status.order for status in parts.values() if status.place == 0]
        checkpoints = [held(self._home, job_name(order), order.key.run) for order in mine]
        return list(parts.values()), [checkpoint for checkpoint in checkpoints if checkpoint is not None]

    def _report(self, disk: DiskThread[tuple[list[PartStatus], list[Checkpoint]]]) -> Report:
        (parts, lies), machine = disk.look(), self._health.seen(self._machine, self._base)
        with self._guard:
            news = self._news
            self._news = []
            troubles = self._troubles
            self._troubles = []
        ports = free_ports("", PORTS)
        return Report(disk.done, parts, lies + news, ports, troubles, machine.sick, machine.watched)

    def _carry_out(self, agent: MachineAgent, order: HostOrder) -> None:
        match order:
            case StartPart():
                self._start(agent, order)
            case StopRun(key):
                agent.stop(key)
            case ForgetRun(key):
                self._failed.pop(key, None)
                agent.forget(key)
            case SendCheckpoint(one):
                self._beside(("send", one.job), self._send, one)
            case FetchCheckpoint(one):
                self._beside(("fetch", one.job), self._fetch, order)
            case ClearCheckpoint(one):
                self._beside(("clear", one.job), self._clear, one)
            case SendLogs():
                self._beside(("logs", order.app), self._send_logs, order)
            case RetryGpu(gpu):
                self._health.retry(self._base + gpu)

    def _start(self, agent: MachineAgent, order: StartPart) -> None:
        part = order.part
        resume = str(self._home / part.resume) if part.resume else ""
        try:
            note_cleared(self._home, job_name(part.order), part.order.key.run, part.resumed_run)
            agent.start(msgspec.structs.replace(part, resume=resume))
        except OSError as error:
            reason = f"it could not be started: {error}"
            failed = PartStatus(part.order, part.place, "failed", part.kept, part.kept, reason)
            self._failed[part.order.key] = failed

    def _beside(self, what: object, work: Callable[[Any], None], about: Any) -> None:
        """Do it in a thread; if it is being done, do what was asked for last afterwards."""
        with self._guard:
            if what in self._busy:
                self._busy[what] = about
                return
            self._busy[what] = None
        threading.Thread(target=self._do, args=[what, work, about], daemon=True).start()

    def _do(self, what: object, work: Callable[[Any], None], about: Any) -> None:
        while about is not None:
            try:
                work(about)
            except WireError as error:  # the arbiter asks again, if it still wants it
                self._say(str(error))
            except Exception as error:  # of one job: what others want is done all the same
                self._say(f"{what}: {error if isinstance(error, OSError) else repr(error)}")
            with self._guard:
                about = self._busy[what]
                if about is None:
                    del self._busy[what]
                else:
                    self._busy[what] = None

    def _clear(self, one: Checkpoint) -> None:
        clear_before(self._home, one.job, one.run + 1)

    def _send(self, one: Checkpoint) -> None:
        """Send the checkpoint of a run, as it is now."""
        present = held(self._home, one.job, one.run)
        if present is None:
            return
        with packed(self._home, present) as (now, send), self._open(PutCheckpoint(now)) as channel:
            send(channel)
            _agreed(channel)

    def _fetch(self, order: FetchCheckpoint) -> None:
        one = order.held
        try:
            present = held(self._home, one.job, one.run)
            if present is None or present.stamp != one.stamp:
                with self._open(GetCheckpoint(one)) as channel:
                    receive_held(channel, self._home, one, order.task)
        except OSError as error:
            with self._guard:
                self._troubles.append((one, str(error)))
        else:
            with self._guard:
                self._news.append(one)

    def _send_logs(self, order: SendLogs) -> None:
        with self._open(PutLogs(order.number)) as channel:
            names = log_names(self._home, order.app)
            for piece in read_logs(self._home, order.app, {name: order.have.get(name, 0) for name in names}):
                channel.send(LogPiece(*piece))
            channel.send(LogPiece())
            _agreed(channel)

    def _open(self, first: PutCheckpoint | GetCheckpoint | PutLogs) -> Channel:
        channel = connected(self._arbiter, AGENT, self._key)
        try:
            channel.send(first)
            _agreed(channel)
        except BaseException:
            channel.close()
            raise
        return channel


def _agreed(channel: Channel) -> None:
    answer: Accepted | Refusal = channel.receive(Accepted | Refusal)
    if isinstance(answer, Refusal):
        raise WireError(f"the arbiter refuses: {answer.why}")


def _locked(folder: Path) -> int:
    held = locked_file(folder / "agent.lock")
    if held is None:
        raise InputError("--folder", str(folder), "a folder that no other agent has")
    return held
