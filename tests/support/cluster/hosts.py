"""Machines that share no folder: agents as threads of a test, or as processes, maybe in another network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from astrarium.cluster.live.backend import JobCommand, MachineStatus, Order, RunKey, RunPart, RunStatus
from astrarium.cluster.live.backends.hosts.agent import HostAgent
from astrarium.cluster.live.backends.hosts.backend import AgentsBackend
from astrarium.cluster.live.backends.hosts.messages import AGENT
from astrarium.cluster.live.wire.handshake import Place
from astrarium.cluster.live.wire.listener import Listener, tcp_listener
from tests.support.cluster.jobs import end_keepers

KEY = b"k" * 32


class Office:
    """An arbiter's backend that listens on a port of its own, and can be begun again on the same one."""

    def __init__(self, home: Path, **options: Any) -> None:
        self._home = home
        self.options = {"patience": 40.0, "every": 0.02, **options}
        self.port = 0
        self.epoch = 0
        self.backend = self._begun()

    def _begun(self) -> AgentsBackend:
        self.epoch += 1
        backend = AgentsBackend(self._home, **self.options)
        self.listener: Listener = tcp_listener(
            Place("127.0.0.1", self.port), {AGENT: KEY}.get, lambda channel, _: backend.serve(channel)
        )
        self.port = self.listener.address[1]
        backend.enter(self.epoch)
        return backend

    def again(self) -> None:
        self.listener.close()
        self.backend = self._begun()

    def seen(self, run: int, until: Callable[[RunStatus], bool] = lambda run: bool(run.ended)) -> RunStatus:
        status: RunStatus = waited(lambda: self._run_until(run, until), lambda: self.backend.look())
        return status

    def _run_until(self, run: int, until: Callable[[RunStatus], bool]) -> RunStatus | None:
        status = self.backend.look().runs.get(RunKey(0, 0, run))
        return status if status is not None and until(status) else None

    def started(self, order: Order) -> None:
        """Order a run as the cluster does: again and again, until a machine shows it."""

        def ordered() -> bool:
            self.backend.start(order)
            return order.key in self.backend.look().runs

        waited(ordered, lambda: self.backend.look())

    def forget(self, run: int) -> None:
        """Forget a run as the cluster does: as long as a machine shows it."""

        def forgotten() -> bool:
            self.backend.forget(RunKey(0, 0, run))
            return RunKey(0, 0, run) not in self.backend.look().runs

        waited(forgotten, lambda: self.backend.look())

    def lose(self, host: AgentThread, name: str) -> None:
        """A machine leaves, and has been silent for too long: its jobs run on, and nobody hears of it."""
        host.leave()
        self.backend._agents[name].heard_at -= 1000
        assert name not in self.backend.look().machines

    def machines(self, names: Sequence[str]) -> None:
        waited(lambda: sorted(self.backend.look().machines) == sorted(names), lambda: self.backend.look())


def waited(until: Callable[[], Any], describe: Callable[[], object] = lambda: "") -> Any:
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        if value := until():
            return value
        time.sleep(0.02)
    raise AssertionError(describe())


class AgentThread:
    """The agent of a machine as a thread, which can leave and come back."""

    def __init__(self, folder: Path, port: int, name: str, gpus: int = 2, with_agent: bool = False) -> None:
        self.folder = folder
        self.words = list[str]()
        self._given = Place("127.0.0.1", port), KEY, name, MachineStatus(gpus)
        self._with_agent = with_agent
        self.start()

    def start(self) -> None:
        self._leaving = threading.Event()
        self._agent = HostAgent(
            self.folder, *self._given, with_agent=self._with_agent, tell=self.words.append
        )
        self._thread = threading.Thread(target=self._agent.run, args=[self._leaving], daemon=True)
        self._thread.start()

    def leave(self) -> None:
        self._leaving.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        os.close(self._agent._lock)
        for keeper in self._agent._agent._keepers.values() if self._agent._agent else ():
            if keeper.stdin is not None:
                keeper.stdin.close()  # as when the process ends

    def files(self, pattern: str, tree: str = "apps") -> list[Path]:
        return sorted(self.folder.glob(f"*/{tree}/*/job-*/{pattern}"))


@contextmanager
def two_hosts(folder: Path, **options: Any) -> Iterator[tuple[Office, AgentThread, AgentThread]]:
    office = Office(folder / "arbiter", **options)
    hosts = [AgentThread(folder / name, office.port, name) for name in ("left", "right")]
    try:
        office.machines(["left.1", "right.1"])
        yield office, hosts[0], hosts[1]
    finally:
        for host in hosts:
            host._leaving.set()
        office.listener.close()
        end_keepers(folder)


def on(run: int, task: JobCommand, *machines: str) -> Order:
    """A run on one GPU of each of these machines."""
    parts = tuple(RunPart(machine, (0,)) for machine in machines)
    return Order(RunKey(0, 0, run), "app", tuple(range(len(machines))), parts, task)


class AgentProcess:
    """`astrarium cluster agent` in a process of its own; *inside*: words before the command."""

    def __init__(self, folder: Path, arbiter: str, key: Path, inside: Sequence[str] = ()) -> None:
        self.folder = folder
        self.words = folder.with_suffix(".txt")
        self._command = [
            *inside, sys.executable, "-m", "astrarium", "cluster", "agent", "--arbiter", arbiter,
            "--key-file", str(key), "--name", folder.name, "--gpus", "2", "--folder", str(folder),
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        with self.words.open("ab") as words:
            self.process = subprocess.Popen(self._command, stdout=words, stderr=words)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def squares(count: int) -> dict[str, int]:
    return {"sum": sum(n * n for n in range(count)), "count": count}


def result_of(host: AgentThread) -> Any:
    [path] = host.files("run-*/result.json")
    return json.loads(path.read_text())


def stopped_after(office: Office, run: int, progress: float = 0.1) -> RunStatus:
    office.seen(run, lambda seen: seen.progress > progress)
    office.backend.stop(RunKey(0, 0, run))
    return office.seen(run)


def copied_progress(office: Office) -> float:
    office.backend.look()
    copy = office.backend._store.newest("0-app/job-0")
    return copy.kept if copy else 0.0
