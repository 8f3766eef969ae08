"""This backend runs jobs on machines whose agents connect to the arbiter, and which share no folder with it.

A machine that is silent for *patience* is lost, and its jobs go on elsewhere from the newest checkpoint that
can be reached: the copy that lies here, if the machine was the only one that had it. If the machine comes
back, it has a new number, and stops what it still runs.

A run begins when the checkpoint that it is given lies on all of its machines. Until then no machine shows it,
the order is given again and again, and its lease does not run.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from astrarium.cluster.live.backend import Fenced, MachineStatus, Order, RunKey, RunStatus, Snapshot
from astrarium.cluster.live.backends.fleet import AgentHandle, MachineFleet
from astrarium.cluster.live.backends.hosts.checkpoints import Checkpoint, send_pieces
from astrarium.cluster.live.backends.hosts.copies import COPIES, CopyStore, write_within
from astrarium.cluster.live.backends.hosts.handle import HostHandle
from astrarium.cluster.live.backends.hosts.messages import (
    Accepted,
    ClearCheckpoint,
    FetchCheckpoint,
    GetCheckpoint,
    Join,
    LogPiece,
    PutCheckpoint,
    PutLogs,
    Refusal,
    Report,
    SendCheckpoint,
    SendLogs,
    Welcome,
)
from astrarium.cluster.live.machine.as_owner import LONGEST_LOG
from astrarium.cluster.live.machine.folders import APPS, Resume, job_name, read_file
from astrarium.cluster.live.machine.keeping.grace import GRACE, PATIENCE
from astrarium.cluster.live.machine.keeping.job_files import CHECKPOINT
from astrarium.cluster.live.machine.keeping.records import private_folder, write_whole
from astrarium.cluster.live.wire.channel import Channel

_LOG = re.compile(r"job-\d+/run-\d+/part-\d+/log-\d+\.txt")


class HostRecord(msgspec.Struct, frozen=True):
    """A machine by its name: under which *number* it was last here, with what, and whether it still is."""

    number: int
    machine: MachineStatus
    there: bool = True


class HostRegister(msgspec.Struct):
    """All machines that were ever here, in a file of the arbiter's folder."""

    cluster: str
    hosts: dict[str, HostRecord] = {}


class _Logs(NamedTuple):
    """Logs of an app that a machine was asked for."""

    app: str
    came: threading.Event
    given_up: threading.Event
    here: dict[str, int]  # bytes of each log that lie at the arbiter


class AgentsBackend(MachineFleet):
    """A backend over agents that connect. With *copies*, the arbiter has a copy of every job's newest
    checkpoint, and no work is lost with a machine but what was done since."""

    def __init__(
        self,
        home: Path,
        grace: float = GRACE,
        least: float = 0.0,
        patience: float = PATIENCE,
        env: Mapping[str, str] | None = None,
        copies: bool = True,
        every: float = 0.2,
    ) -> None:
        super().__init__(home, grace, least, env)
        private_folder(home)
        self._patience = patience
        self._copied = copies
        self._every = every
        self._epoch = 0
        self._file = home / "hosts.json"
        self._register = read_file(self._file, HostRegister) or HostRegister(secrets.token_hex(8))
        self._store = CopyStore(home)
        self._agents: dict[str, HostHandle] = {}
        self._unstarted: dict[RunKey, RunStatus] = {}  # their checkpoints could not be brought
        self._logs: dict[int, _Logs] = {}
        self._read: set[str] = set()  # apps whose logs somebody has asked for
        self._lock = threading.RLock()
        self._entered = threading.Event()
        self._fenced = ""

    def enter(self, epoch: int) -> None:
        """Take over: machines that were here have the time to come back before anything is decided."""
        self._epoch = epoch
        self._found |= {order.key: order for order in self._store.unclosed()}
        self._entered.set()
        ends = time.monotonic() + self._patience
        while self._awaited() and time.monotonic() < ends:
            time.sleep(0.05)
        with self._lock:
            for name in self._awaited():
                self._given_up(name)

    def _awaited(self) -> list[str]:
        hosts = self._register.hosts.items()
        there = self.reachable()
        return [name for name, host in hosts if host.there and f"{name}.{host.number}" not in there]

    def reachable(self) -> Mapping[str, AgentHandle]:
        return self._present()

    def _present(self) -> dict[str, HostHandle]:
        with self._lock:
            return {name: agent for name, agent in self._agents.items() if agent.answered}

    def look(self) -> Snapshot:
        if self._fenced:
            raise Fenced(self._fenced)
        self._drop_silent()
        self._copy()
        snapshot = super().look()
        return Snapshot(snapshot.machines, {**snapshot.runs, **self._unstarted})

    def forget(self, key: RunKey) -> None:
        order = self._ordered.get(key) or self._found.get(key)
        if order is not None:
            self._store.close(order)
        self._unstarted.pop(key, None)
        super().forget(key)

    def close(self) -> None:
        """Leave when all checkpoints have been copied, or do not come, and the logs that somebody has asked
        for; agents wait for the next arbiter."""
        ends = time.monotonic() + self._patience
        while self._copy() and time.monotonic() < ends:
            self._drop_silent()
            time.sleep(0.05)
        ends = time.monotonic() + self._patience
        for app in list(self._read):
            self.bring_logs(app, max(0.0, ends - time.monotonic()))

    def resume(self, order: Order) -> Resume | None:
        best = self._newest(job_name(order))
        if best is not None and not self._brought(best, order):
            return None
        self._store.begin(order, best)
        if best is None:
            return Resume()
        return Resume(f"{APPS}/{best.job}/run-{best.run}/{CHECKPOINT}", best.kept, best.run)

    def kept(self, order: Order) -> float:
        best = self._newest(job_name(order))
        return best.kept if best is not None else 0.0

    def _newest(self, job: str) -> Checkpoint | None:
        """Return the newest checkpoint of a job that can be reached."""
        candidates = [agent.held[job] for agent in self._present().values() if job in agent.held]
        copy = self._store.newest(job)
        candidates = [one for one in candidates if self._store.counts(one)] + ([copy] if copy else [])
        return max(candidates, key=lambda one: (*one.age, one.kept), default=None)

    def _brought(self, best: Checkpoint, order: Order) -> bool:
        """Return whether a checkpoint lies on all machines of an order, and see to it that it will."""
        there = self._present()
        copy = self._store.newest(best.job)
        copied = copy is not None and copy.name == best.name
        missing = [part.machine for part in order.active if not _has(there.get(part.machine), best)]
        for name in (machine for machine in missing if copied and machine in there):
            there[name].ask(FetchCheckpoint(best, order.task))
            if why := there[name].troubles.pop(best.name, ""):
                error = f"its checkpoint could not be brought to {name}: {why}"
                self._unstarted[order.key] = RunStatus(order.gpus, "failed", best.kept, best.kept, error)
        for agent in there.values() if missing and not copied else ():
            if _has(agent, best):
                agent.ask(SendCheckpoint(best))
        return not missing

    def _copy(self) -> bool:
        """Ask for checkpoints that are newer than their copies, and return whether there are any."""
        due = [(agent, one) for agent in self._present().values() for one in self._due(agent)]
        for agent, one in due:
            agent.ask(SendCheckpoint(one))
        return bool(due)

    def _due(self, agent: HostHandle) -> Iterator[Checkpoint]:
        for one in list(agent.held.values()):
            copy = self._store.newest(one.job)
            if copy is not None and copy.name == one.name:
                self._store.take_kept(one)
            elif self._store.is_old(one):
                del agent.held[one.job]
                agent.give(ClearCheckpoint(one))
            elif self._store.waits(one):
                continue
            elif self._copied and self._store.counts(one) and (copy is None or copy.age < one.age):
                yield one

    def serve(self, channel: Channel) -> None:
        """Serve an agent that has connected, or a checkpoint or logs that it brings or wants."""
        if not self._entered.wait(self._patience):
            return
        match channel.receive(Join | PutCheckpoint | GetCheckpoint | PutLogs):
            case Join() as join:
                self._serve_agent(channel, join)
            case PutCheckpoint(one):
                wanted = self._store.counts(one)
                self._answered(channel, partial(self._store.receive, channel, one) if wanted else None)
            case GetCheckpoint(one):
                self._send_copy(channel, one)
            case PutLogs(number):
                asked = self._logs.get(number)
                self._answered(channel, partial(self._take_logs, channel, asked) if asked else None)

    def _answered(self, channel: Channel, work: Callable[[], None] | None) -> None:
        if work is None:
            channel.send(Refusal("nobody wants it any more"))
            return
        channel.send(Accepted())
        try:
            work()
        except OSError as error:
            channel.send(Refusal(str(error)))
        else:
            channel.send(Accepted())

    def _send_copy(self, channel: Channel, one: Checkpoint) -> None:
        try:
            file = self._store.archive(one)
        except OSError as error:
            channel.send(Refusal(str(error)))
            return
        with file:
            channel.send(Accepted())
            send_pieces(channel, file.read)

    def _serve_agent(self, channel: Channel, join: Join) -> None:
        with self._lock:
            admitted = self._admitted(join, channel)
        if isinstance(admitted, Refusal):
            channel.send(admitted)
            return
        name, agent = admitted
        number = int(name.rpartition(".")[2])
        channel.send(Welcome(self._register.cluster, number, self._epoch, self._every))
        while True:
            report: Report | Refusal = channel.receive(Report | Refusal)
            with self._lock:
                if self._agents.get(name) is not agent or agent.channel is not channel:
                    return
            if isinstance(report, Refusal):
                self._fenced = report.why
                return
            channel.send(agent.exchange(report))

    def _admitted(self, join: Join, channel: Channel) -> tuple[str, HostHandle] | Refusal:
        """Return the name of a machine, with a number that is new unless it was here all the time."""
        known = self._register.hosts.get(join.name)
        before = f"{join.name}.{known.number}" if known else ""
        ours = known is not None and (join.cluster, join.number) == (self._register.cluster, known.number)
        same = ours and not join.fresh and known == HostRecord(join.number, join.machine)
        if not ours and before in self._agents:
            return Refusal(f"another machine here has the name {join.name}; give another one with --name")
        if not same and before in self._agents:
            self._given_up(join.name)  # it has come back without its jobs, or with other GPUs
        if not same:
            self._note(join.name, HostRecord(known.number + 1 if known else 1, join.machine))
        name = f"{join.name}.{self._register.hosts[join.name].number}"
        agent = self._agents.setdefault(name, HostHandle(join))
        agent.joined(join, channel)
        return name, agent

    def _drop_silent(self) -> None:
        """Give up machines that have been silent for too long."""
        now = time.monotonic()
        with self._lock:
            for name, agent in list(self._agents.items()):
                if now - agent.heard_at > self._patience:
                    self._given_up(name.rpartition(".")[0])

    def _given_up(self, host: str) -> None:
        record = self._register.hosts[host]
        agent = self._agents.pop(f"{host}.{record.number}", None)
        self._note(host, msgspec.structs.replace(record, there=False))
        if agent is not None and agent.channel is not None:
            agent.channel.close()

    def _note(self, host: str, record: HostRecord) -> None:
        self._register.hosts[host] = record
        write_whole(self._file, msgspec.to_builtins(self._register))

    def bring_logs(self, app: str, seconds: float) -> None:
        """Bring what an app has written here; *app*: the name of its folder. Machines that do not answer in
        time are left out."""
        self._read.add(app)
        top = self._home / COPIES / app
        have = {path.relative_to(top).as_posix(): path.stat().st_size for path in top.glob("job-*/*/*/log-*")}
        asked = {}
        for agent in self._present().values():
            number = secrets.randbits(62)
            asked[number] = self._logs[number] = _Logs(app, threading.Event(), threading.Event(), dict(have))
            agent.give(SendLogs(app, number, have))
        ends = time.monotonic() + seconds
        for number, logs in asked.items():
            logs.came.wait(max(0.0, ends - time.monotonic()))
            logs.given_up.set()
            del self._logs[number]

    def _take_logs(self, channel: Channel, asked: _Logs) -> None:
        """Take what a machine sends of an app's logs; all that it wrote, on all machines, is bounded here."""
        piece: LogPiece
        try:
            while (piece := channel.receive(LogPiece)).path:
                if not _LOG.fullmatch(piece.path) or piece.offset != asked.here.get(piece.path, 0):
                    raise OSError(f"{piece.path!r} from {piece.offset} is not what was asked for")
                if asked.given_up.is_set():  # what has come is here, and whoever asks again gets the rest
                    raise OSError(f"nobody waits for the logs of {asked.app} any more")
                if sum(asked.here.values()) + len(piece.body) > LONGEST_LOG:
                    raise OSError(f"the logs of {asked.app} are longer than {LONGEST_LOG} bytes")
                self._take_piece(asked, piece)
        finally:
            asked.came.set()

    def _take_piece(self, asked: _Logs, piece: LogPiece) -> None:
        path = self._home / COPIES / asked.app / piece.path
        private_folder(path.parent)
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b") as file:
            file.seek(piece.offset)
            write_within(file, piece.body)
        asked.here[piece.path] = piece.offset + len(piece.body)


def _has(agent: HostHandle | None, one: Checkpoint) -> bool:
    known = agent.held.get(one.job) if agent is not None else None
    return known is not None and known.name == one.name
