"""What `astrarium run` does with a file of apps: an arbiter runs them on real machines."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import typer

from astrarium.cli.cluster.state import disk_errors
from astrarium.cli.cluster.status import told
from astrarium.cli.output import command_line, emit
from astrarium.cluster.live.access import AccessSection
from astrarium.cluster.live.arbiter import ANY, ArbiterProcess, ArbiterSetup, ChosenPolicy, PlannedApp
from astrarium.cluster.live.backend import Backend, MachineStatus, Options
from astrarium.cluster.live.backends.fleet import LocalBackend
from astrarium.cluster.live.backends.hosts import AgentsBackend
from astrarium.cluster.live.backends.remote import AGENT
from astrarium.cluster.live.backends.site import SiteOptions
from astrarium.cluster.live.backends.wire import (
    Admission,
    Channel,
    Listener,
    read_key,
    read_place,
    server_tls,
    tcp_listener,
)
from astrarium.cluster.live.limits import Connections, Pool, fitting, raised_descriptors
from astrarium.cluster.live.machine.folders import APPS
from astrarium.cluster.live.machine.keeping.records import private_folder
from astrarium.cluster.live.machine.keeping.runner import SELDOM
from astrarium.cluster.live.machine.owners import ROOT, check_above, impassable
from astrarium.cluster.live.service import Service, read_keys, unix_listener, user_name
from astrarium.cluster.live.store import FILE, connected, rows, waits
from astrarium.cluster.live.watching.events import ClusterEvent
from astrarium.cluster.live.watching.forecast import ForecastProcess
from astrarium.cluster.live.watching.hooks import Hook, Hooks, named
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.scenario.build import first_machines, live_apps, slowdowns
from astrarium.cluster.scenario.calendar import Calendar
from astrarium.cluster.scenario.read import ClusterScenario
from astrarium.cluster.scenario.schema import Address, command_words, read_address
from astrarium.cluster.scenario.sharing import check_member, shared, team_rules
from astrarium.cluster.state import AppRow
from astrarium.cluster.teams import Rules
from astrarium.core.choice import chosen
from astrarium.core.errors import InputError, from_extra, read_from
from astrarium.core.units import Time, to_seconds
from astrarium.run.pools import signals_to
from astrarium.run.report import ranges
from astrarium.run.waiting import waiting


def arbitrate(
    context: typer.Context,
    file: Path,
    scenario: ClusterScenario,
    state: Path | None,
    stay: bool,
    json: bool,
    metrics: str | None = None,
) -> None:
    """Run the apps of a file on real machines. Ctrl-C has them write checkpoints; run it again to go on."""
    home = (state or Path(scenario.live.state or file.with_suffix(".state").name)).resolve()
    foresight, hooks = ForecastProcess(), hooks_of(scenario)
    where = _metrics_address(scenario, metrics)
    with disk_errors(home):
        setting = settings(scenario, origin_of(home))._replace(foresight=foresight)
    jobs = Path(scenario.live.jobs or home).resolve()
    access = _with_us(scenario)
    with disk_errors(home), ExitStack() as closing:
        _close_folders(home, jobs, access is not None, scenario.live.backend == "local")
        with waiting(f"looking for the machines ({scenario.live.backend})"):
            if where is not None:
                setting = setting._replace(observe=closing.enter_context(_measured(home, *where)))
            backend = backend_of(scenario, jobs)  # before our signals: Ray sets its own
            service = Service(home, access, getattr(backend, "bring_logs", lambda app, seconds: None))
            connections = Connections(fitting(raised_descriptors()), service.is_operator)
            if scenario.live.listen is not None:
                closing.callback(listening(scenario, backend, service, connections).close)
            arbiter = ArbiterProcess(home, setting, backend)
        # Who is interrupted before leaves all as it is: agents that have not answered may have jobs to keep.
        closing.callback(getattr(backend, "close", lambda: None))  # not all backends hold something
        closing.callback(arbiter.close)
        admission = Admission(connections.of, service.refuse, connections.limits.strangers)
        closing.callback(unix_listener(home, service.serve, access is not None, admission).close)
        arbiter.store.put("jobs", scenario.live.jobs and str(jobs))  # where logs are
        closing.callback(foresight.close)
        room = Room(home, arbiter, setting.observe)
        drain = _Drain(room)
        ended_before = {row.app.name for row in arbiter.state.ledger.rows.values() if not row.open}
        with signals_to(drain.ask):
            _announce(scenario, home, arbiter)
            sender = Hooks(home, arbiter.store, hooks)
            _turns(arbiter, stay, scenario.live.look / 1e9, drain, room, sender)
            if sender.close(arbiter.now):
                print("hooks: what is not delivered yet is left for the next arbiter", file=sys.stderr)
            status = arbiter.status(alive=False)
    emit(json, status, told(status), None)
    if drain.asked:
        print(f"drained; `{command_line(context)}` goes on", file=sys.stderr)
    elif any(app["outcome"] == "failed" and app["app"] not in ended_before for app in status["apps"]):
        raise typer.Exit(1)


def origin_of(home: Path) -> int:
    """When the first arbiter of a state folder began, by the wall clock; now, where there was none."""
    if not (home / FILE).exists():
        return time.time_ns()
    with closing(connected(home / FILE, read_only=True)) as db:
        begun = rows(db, "SELECT name FROM sqlite_master WHERE name = 'meta'")
        found = rows(db, "SELECT value FROM meta WHERE key = 'origin'") if begun else []
    return int(found[0]["value"]) if found else time.time_ns()


def settings(scenario: ClusterScenario, origin: int | None = None) -> ArbiterSetup:
    """All that an arbiter needs of a file; every app is checked before the first is started. *origin*: what
    the wall clock said when the run began, if it is not new."""
    if not isinstance(scenario.apps, tuple):
        told = "a list of apps with commands: what is drawn, or comes from a trace, can only be simulated"
        raise InputError("apps", None, told, scenario.source)
    live, planned, now = scenario.live, list[PlannedApp](), time.time_ns()
    largest = ANY if live.backend != "local" else sum(each.gpus for each in machines_of(scenario).values())
    rules = team_rules(
        scenario, None if largest == ANY else largest, Calendar(now if origin is None else origin, now)
    )
    read = partial(_runnable_apps, scenario, rules)
    for place, (entry, raw) in enumerate(zip(scenario.apps, scenario.raw["apps"], strict=True)):
        with read_from(scenario.source):
            read(raw, largest, field=f"apps[{place}]")
        for number, name in enumerate(entry.names):
            body = {key: value for key, value in raw.items() if key not in ("count", "every", "arrival")}
            planned.append(PlannedApp(entry.arrival + number * entry.every, name, {**body, "name": name}))
    spec = msgspec.json.encode(scenario.policy.plain()).decode() + ("" if rules is None else ", for teams")
    return ArbiterSetup(
        policy=ChosenPolicy(spec, shared(chosen(cluster_policies, scenario.policy), rules)),
        read=read,
        wall=time.time_ns,
        clock=time.monotonic_ns,
        slowdowns=slowdowns(scenario, believed=True),
        startup=scenario.costs.startup,
        options=Options(live.retries, live.progress, handover=2 * live.grace),
        planned=planned,
        learns=not scenario.slowdowns.told,
    )


def hooks_of(scenario: ClusterScenario) -> list[Hook]:
    """Return the hooks of a file; a program that is not there is refused before anything is started."""
    found, directory = list[Hook](), Path(scenario.source).resolve().parent
    for place, entry in enumerate(scenario.live.hooks):
        words, url = command_words(entry.command) if entry.command else (), entry.url or ""
        with read_from(scenario.source):
            _check_program(words[:1], directory, None, f"live.hooks[{place}].command")
        name, timeout = named(place, words, url), entry.timeout / 1e9
        found.append(Hook(name, entry.on, words, url, str(directory), timeout, entry.retries))
    return found


def _metrics_address(scenario: ClusterScenario, option: str | None) -> Address | None:
    if option is None:
        return scenario.live.metrics
    try:
        return read_address(option)
    except ValueError as error:
        raise InputError("--metrics", option, str(error)) from None


@contextmanager
def _measured(home: Path, host: str, port: int) -> Iterator[Callable[[str, int], None]]:
    """Serve metrics for the time of the block; what the arbiter takes is told to what this yields."""
    with from_extra("serve"):
        from astrarium.cluster.live.watching.metrics import Metrics
    metrics = Metrics(home)
    try:
        server = metrics.serve(host, port)
    except OSError as error:
        raise InputError(
            "--metrics", f"{host}:{port}", f"an address that is free: {error.strerror}"
        ) from None
    print(f"metrics at http://{host}:{server.server_port}/metrics", file=sys.stderr, flush=True)
    try:
        yield metrics.observe
    finally:
        server.shutdown()
        server.server_close()


def _runnable_apps(
    scenario: ClusterScenario,
    rules: Rules | None,
    raw: dict[str, Any],
    largest: int,
    owner: str = "",
    field: str = "app",
) -> Any:
    """Read an app, and refuse one whose folder or program is not there. On other machines only starting it
    tells, and so it is with programs of others, whose folders are not for us to look into; an app of the file
    was checked before the first was started, and comes with ANY."""
    found = live_apps(raw, largest, Path(scenario.source).parent, field)
    for app, _ in found:
        check_member(rules, app, field)
    ours = owner in ("", user_name(os.geteuid()))
    for _, task in found if ours and scenario.live.backend == "local" and largest != ANY else ():
        if not Path(task.directory).is_dir():
            raise InputError(f"{field}.directory", task.directory, "a folder that is there")
        _check_program(task.command[:1], task.directory, task.env.get("PATH"), f"{field}.command")
    return found


def _check_program(words: Sequence[str], directory: str | Path, path: str | None, field: str) -> None:
    for name in words:
        place = str(Path(directory, name)) if "/" in name else name
        if shutil.which(place, path=path) is None:
            told = f"a program that is in PATH, or a path to one from {directory}"
            raise InputError(field, name, told)


def machines_of(scenario: ClusterScenario) -> dict[str, Any]:
    """Those of the file, by names that they keep."""
    with read_from(scenario.source):
        first = first_machines(scenario)
    return {f"machine-{one.id}": MachineStatus(one.gpus, one.rack, one.slot, one.network) for one in first}


def backend_of(scenario: ClusterScenario, home: Path) -> Backend:
    live = scenario.live
    env = {"ASTRARIUM_CHECKPOINTS": str(live.checkpoints / 1e9)}
    grace, least = live.grace / 1e9, live.least / 1e9
    if live.backend == "ray":
        from astrarium.cluster.live.backends.ray import RayBackend

        return RayBackend(home, live.address or "auto", grace, least, live.patience / 1e9, env)
    if live.backend == "agents":
        copies = live.copies is not False
        return AgentsBackend(home, grace, least, live.patience / 1e9, env, copies, live.look / 1e9)
    site = SiteOptions(grace=grace, least=least, patience=live.patience / 1e9, env=env)
    if live.backend == "kubernetes" and live.kubernetes is not None:
        from astrarium.cluster.live.backends.kubernetes import KubernetesBackend

        return KubernetesBackend(home, live.kubernetes, live.address or "", **site)
    if live.backend == "slurm":
        from astrarium.cluster.live.backends.slurm import SlurmBackend

        return SlurmBackend(home, live.partition or "", live.account or "", live.options or (), **site)
    return LocalBackend(home, machines_of(scenario), grace, least, env)


def listening(
    scenario: ClusterScenario, backend: Backend, service: Service, connections: Connections
) -> Listener:
    """Hear agents and users who connect; files that the scenario names are looked for beside it."""
    live, beside = scenario.live, Path(scenario.source).parent
    with read_from(scenario.source):
        keys = dict(read_keys("live.keys", str(beside / live.keys))) if live.keys else {}
        if isinstance(backend, AgentsBackend):
            keys[AGENT] = read_key("live.key", beside / str(live.key))
        tls = server_tls(str(beside / live.tls.certificate), str(beside / live.tls.key)) if live.tls else None
        where = read_place("live.listen", str(live.listen))

    def serve(channel: Channel, name: str) -> None:
        if name == AGENT and isinstance(backend, AgentsBackend):
            backend.serve(channel)
        else:
            service.serve(channel, name)

    def pool(name: str) -> Pool:
        return connections.agents if name == AGENT else connections.of(name)

    admission = Admission(pool, service.refuse, connections.limits.strangers)
    with read_from(scenario.source):
        return tcp_listener(where, keys.get, serve, tls, admission=admission)


def _with_us(scenario: ClusterScenario) -> AccessSection | None:
    """The user of the arbiter can do all anyway, and so can root."""
    access, backend = scenario.live.access, scenario.live.backend
    if access is None:
        return None
    if backend == "slurm" and os.geteuid() == 0:
        told = "an arbiter that is not root beside access: apps of all users would run as root on Slurm"
        raise InputError("live.backend", backend, told, scenario.source)
    return msgspec.structs.replace(access, operators=(*access.operators, "root", user_name(os.geteuid())))


def _close_folders(home: Path, jobs: Path, shared: bool, local: bool) -> None:
    """Make the folders of a cluster for our user alone. Where it is *shared*, others reach the socket, and
    those whose apps run here (*local*) as theirs the folders of these."""
    owners = shared and local and os.geteuid() == ROOT
    for folder in (home, jobs, jobs / APPS):
        if shared:
            check_above("live.state" if folder == home else "live.jobs", folder)
        seen = stat.S_IMODE(private_folder(folder).stat().st_mode) & ~0o007
        with suppress(PermissionError):  # it is another's, who may share it with us
            folder.chmod(seen | (0o011 if owners or (shared and folder == home) else 0))
    for path in home.glob(f"{FILE}*"):
        path.chmod(0o600)


def _announce(scenario: ClusterScenario, home: Path, arbiter: ArbiterProcess) -> None:
    how = "begins" if arbiter.epoch == 1 else f"goes on (arbiter {arbiter.epoch})"
    machines = f"{scenario.policy.label} on {scenario.live.backend} machines"
    print(f"{machines} {how}; state in {home}", file=sys.stderr)
    if scenario.live.access is not None and scenario.live.backend == "kubernetes":
        print("apps of all users run as the user of their image", file=sys.stderr)
    elif scenario.live.access is not None and os.geteuid() != 0:
        told = "only an arbiter that is root runs apps as their owners"
        print(f"apps of all users run as {user_name(os.geteuid())}: {told}", file=sys.stderr)
    elif scenario.live.access is not None and (wall := impassable(home)) is not None:
        print(f"no other user can reach {home}: they may not pass {wall}", file=sys.stderr)
    if arbiter.known_before:
        names = ", ".join(arbiter.known_before)
        print(f"here before, and taken as they were then: {names}", file=sys.stderr)
    print("Ctrl-C has all jobs write a checkpoint and leaves", file=sys.stderr, flush=True)


def _turns(arbiter: ArbiterProcess, stay: bool, look: float, drain: _Drain, room: Room, hooks: Hooks) -> None:
    lines = Lines(arbiter)
    while not drain.asked:
        with room.waited_for():
            if not stay and arbiter.idle:
                break
            arbiter.turn()
            hooks.keep(arbiter.now())
            lines.show()
        time.sleep(max(look, SELDOM) if room.missing else look)
    while True:
        with room.waited_for():
            if arbiter.drain():
                break
        time.sleep(look)


class Room:
    """What an arbiter does when the disk of its store is full, or cannot be written: it waits, says so, once
    and then now and then, and when it goes on. Events of both are written as soon as they can be."""

    SAY, SLOW = 60.0, 5.0  # seconds: between words about the same, and of a turn that tells of a slow disk

    def __init__(self, home: Path, office: ArbiterProcess, observe: Callable[[str, Time], None]) -> None:
        self._home, self._office, self._observe, self._said_at = home, office, observe, -self.SAY
        self._failed, self._since = 0, 0  # turns in a row, and since when it waits
        self._events: list[ClusterEvent] = []  # that are not written yet

    @property
    def missing(self) -> bool:
        """Return whether it waits. At the first turn that fails, the store makes room by itself if it can."""
        return self._failed > 1

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if not waits(error):
                raise
            self._failed += 1
            if self.missing:
                self._wait(f"{self._home} cannot be written ({error}); {self._needs()}")
            return
        if self.missing:
            self._go_on()
        elif time.monotonic() - began > self.SLOW:
            self._say(f"a turn took {time.monotonic() - began:.0f} s: the disk of {self._home} is slow")
        self._failed = 0
        self._tell()

    def _wait(self, reason: str) -> None:
        told = "nothing is decided until then, and jobs run on; Ctrl-C leaves them to the next arbiter"
        self._say(f"the arbiter waits: {reason}; {told}")
        if self._failed == 2:  # the first turn since it waits
            self._since = self._office.now()
            self._events.append(self._office.event("arbiter_waits", reason))
        self._observe("wait", self._office.now() - self._since)
        self._tell()

    def _go_on(self) -> None:
        _print(f"{self._home} can be written again: the arbiter goes on")
        self._said_at = -self.SAY
        waited = to_seconds(self._office.now() - self._since)
        self._events.append(self._office.event("arbiter_goes_on", f"it has waited {waited:.0f} s"))
        self._observe("wait", 0)

    def _tell(self) -> None:
        with suppress(sqlite3.Error):  # no room for that either: the next turn tries again
            if self._events:
                self._office.store.tell(*self._events)
                self._events.clear()

    def _needs(self) -> str:
        free, needs = shutil.disk_usage(self._home).free, self._office.store.needs
        return f"{free / 1e6:.2f} MB are free there, about {needs / 1e6:.2f} MB are needed"

    def _say(self, words: str) -> None:
        if time.monotonic() - self._said_at >= self.SAY:
            self._said_at = time.monotonic()
            _print(words)


def _print(words: str) -> None:
    """Tell the operator, unless stderr goes to the same full disk."""
    with suppress(OSError):
        print(words, file=sys.stderr, flush=True)


class _Drain:
    """Ctrl-C once is a wish; twice, or where there is no room for checkpoints, and we leave at once: jobs run
    on, and can be found again."""

    asked = False

    def __init__(self, room: Room) -> None:
        self._room = room

    def ask(self, *_: object) -> None:
        if self.asked or self._room.missing:
            raise KeyboardInterrupt
        self.asked = True
        print("draining: jobs write checkpoints", file=sys.stderr, flush=True)


# What happens on a live cluster is told line by line, on stderr.


class Lines:
    """Only what has changed since the last look."""

    def __init__(self, office: ArbiterProcess) -> None:
        self._office = office
        self._apps: dict[int, tuple[bool, tuple[int, ...]]] = {}
        self._machines: dict[int, str] = {}
        self._failed: set[int] = set()
        self._held_up: dict[Any, str] = {}
        self._troubled: set[Any] = set()  # runs whose trouble was told

    def show(self) -> None:
        now = to_seconds(self._office.now())
        for line in (*self._of_machines(), *self._of_gpus(), *self._of_runs(), *self._of_apps()):
            _print(f"{now:8.1f}s  {line}")

    def _of_machines(self) -> Iterator[str]:
        there = dict(self._office.live.memory.machines)
        for number in self._machines.keys() - there.keys():
            yield f"machine {number} ({self._machines[number]}) is gone"
        for number in there.keys() - self._machines.keys():
            gpus = self._office.state.floor.gpus_of[number]
            yield f"machine {number} ({there[number]}) is there: GPUs {ranges(gpus)}"
        self._machines = there

    def _of_gpus(self) -> Iterator[str]:
        state = self._office.state
        for gpu in sorted(state.failed.keys() - self._failed):
            machine, number = state.floor.place(gpu)
            yield f"GPU {gpu} ({machine}:{number}) is out of use: {state.failed[gpu].why}"
        for gpu in sorted(self._failed - state.failed.keys()):
            yield f"GPU {gpu} is {'in use again' if state.floor.has(gpu) else 'gone'}"
        self._failed = set(state.failed)

    def _of_runs(self) -> Iterator[str]:
        """Those that did not end, or begin, as they should have."""
        rows, before = self._office.state.ledger.rows, self._held_up
        self._held_up = dict(self._office.live.held_up)
        for app, job, run in self._held_up.keys() - before.keys():
            why = self._held_up[app, job, run]
            yield f"{rows[app].app.name} job {job}, run {run} cannot begin yet: {why}"
        for (app, job, run), words in self._office.live.troubles.items():
            if (app, job, run) not in self._troubled:
                yield f"{rows[app].app.name} job {job}, run {run} goes on: {words}"
        self._troubled |= self._office.live.troubles.keys()
        for (app, job, run), seen in self._office.live.ended:
            if seen.ended in ("failed", "not found", "lost"):
                why = f": {seen.error}" if seen.error else ""
                yield f"{rows[app].app.name} job {job}, run {run} {seen.ended}{why}"

    def _of_apps(self) -> Iterator[str]:
        for number, row in self._office.state.ledger.rows.items():
            holds = row.open, tuple(sorted(row.leases))
            if self._apps.get(number) != holds:
                known = number in self._apps
                self._apps[number] = holds
                yield _told(row, known)


def _told(row: AppRow, known: bool) -> str:
    if not row.open:
        after = to_seconds(row.ended - row.arrived)
        why = f": {row.reason}" if row.reason else ""
        return f"{row.app.name} {row.outcome.name.lower()} after {after:.1f}s{why}"
    if row.leases:
        return f"{row.app.name} holds {ranges(sorted(row.leases))}"
    return f"{row.app.name} waits" if known else f"{row.app.name} has come, and waits"
