"""What `astrarium run` does with a file of apps: an arbiter runs them on real machines."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from astrarium.cli.cluster.state import disk_errors

if TYPE_CHECKING:
    from astrarium.cluster.live.arbiter import ArbiterProcess, ArbiterSetup
    from astrarium.cluster.live.backend import Backend
    from astrarium.cluster.scenario.read import ClusterScenario


def arbitrate(
    context: typer.Context, file: Path, scenario: ClusterScenario, state: Path | None, stay: bool, json: bool
) -> None:
    """Run the apps of a file on real machines. Ctrl-C has them write checkpoints; run it again to go on."""
    from astrarium.cli.cluster.status import told
    from astrarium.cli.output import command_line, emit
    from astrarium.cluster.live.arbiter import ArbiterProcess
    from astrarium.run.waiting import waiting

    home = (state or Path(scenario.live.state or file.with_suffix(".state").name)).resolve()
    setting = settings(scenario)
    jobs = Path(scenario.live.jobs or home).resolve()
    with disk_errors(home), ExitStack() as closing:
        with waiting(f"looking for the machines ({scenario.live.backend})"):
            backend = backend_of(scenario, jobs)  # before our signals: Ray sets its own
            arbiter = ArbiterProcess(home, setting, backend)
        # Who is interrupted before leaves all as it is: agents that have not answered may have jobs to keep.
        closing.callback(getattr(backend, "close", _nothing_to_close))
        closing.callback(arbiter.close)
        with _Drain() as drain:
            _announce(scenario, home, arbiter)
            _turns(arbiter, stay, scenario.live.look / 1e9, drain)
            status = arbiter.status(alive=False)
    emit(json, status, told(status), None)
    if drain.asked:
        print(f"drained; `{command_line(context)}` goes on", file=sys.stderr)
    elif any(app["outcome"] == "failed" for app in status["apps"]):
        raise typer.Exit(1)


def _nothing_to_close() -> None:
    """Not all backends hold something."""


def settings(scenario: ClusterScenario) -> ArbiterSetup:
    """All that an arbiter needs of a file; every app is checked before the first is started."""
    import msgspec

    from astrarium.cluster.live.arbiter import ArbiterSetup, ChosenPolicy, PlannedApp
    from astrarium.cluster.live.backend import Options
    from astrarium.cluster.policies import cluster_policies
    from astrarium.cluster.scenario.build import live_apps, slowdowns
    from astrarium.core.choice import chosen

    live, home = scenario.live, Path(scenario.source).parent
    written = scenario.raw["apps"] if isinstance(scenario.raw["apps"], list) else []
    planned = []
    for place, (entry, raw) in enumerate(zip(_listed(scenario), written, strict=True)):
        _checked(raw, scenario, home, f"apps[{place}]")
        for number, name in enumerate(entry.names):
            body = {key: value for key, value in raw.items() if key not in ("count", "every", "arrival")}
            planned.append(PlannedApp(entry.arrival + number * entry.every, name, {**body, "name": name}))
    spec = msgspec.json.encode(scenario.policy.plain()).decode()
    return ArbiterSetup(
        policy=ChosenPolicy(spec, chosen(cluster_policies, scenario.policy)),
        read=lambda body, largest: live_apps(body, largest, home),
        wall=time.time_ns,
        clock=time.monotonic_ns,
        slowdowns=slowdowns(scenario, believed=True),
        startup=scenario.costs.startup,
        options=Options(live.retries, live.progress, handover=2 * live.grace),
        planned=planned,
    )


def _listed(scenario: ClusterScenario) -> Any:
    from astrarium.core.errors import InputError

    if not isinstance(scenario.apps, tuple):
        told = "a list of apps with commands: what is drawn, or comes from a trace, can only be simulated"
        raise InputError("apps", None, told, scenario.source)
    return scenario.apps


def _checked(raw: dict[str, Any], scenario: ClusterScenario, home: Path, field: str) -> None:
    from astrarium.cluster.live.arbiter import ANY
    from astrarium.cluster.scenario.build import live_apps
    from astrarium.core.errors import InputError

    try:
        live_apps(raw, ANY if scenario.live.backend == "ray" else _size(scenario), home, field)
    except InputError as error:
        raise error.read_from(scenario.source) from None


def _size(scenario: ClusterScenario) -> int:
    return sum(machine.gpus for machine in machines_of(scenario).values())


def machines_of(scenario: ClusterScenario) -> dict[str, Any]:
    """Those of the file, by names that they keep."""
    from astrarium.cluster.contract import MachineJoined
    from astrarium.cluster.live.backend import MachineStatus
    from astrarium.cluster.scenario.build import build

    first = [
        event.machine
        for at, event in build(scenario).arrivals
        if at == 0 and isinstance(event, MachineJoined)
    ]
    return {
        f"machine-{each.id}": MachineStatus(each.gpus, each.rack, each.slot, each.network) for each in first
    }


def backend_of(scenario: ClusterScenario, home: Path) -> Backend:
    live = scenario.live
    env = {"ASTRARIUM_CHECKPOINTS": str(live.checkpoints / 1e9)}
    grace, least = live.grace / 1e9, live.least / 1e9
    if live.backend == "ray":
        from astrarium.cluster.live.ray import RayBackend

        return RayBackend(home, live.address or "auto", grace, least, live.patience / 1e9, env)
    from astrarium.cluster.live.fleet import LocalBackend

    return LocalBackend(home, machines_of(scenario), grace, least, env)


def _announce(scenario: ClusterScenario, home: Path, arbiter: ArbiterProcess) -> None:
    how = "begins" if arbiter.epoch == 1 else f"goes on (arbiter {arbiter.epoch})"
    print(
        f"{scenario.policy.label} on {scenario.live.backend} machines {how}; state in {home}", file=sys.stderr
    )
    if arbiter.known_before:
        names = ", ".join(arbiter.known_before)
        print(f"here before, and taken as they were then: {names}", file=sys.stderr)
    print("Ctrl-C has all jobs write a checkpoint and leaves", file=sys.stderr, flush=True)


def _turns(arbiter: ArbiterProcess, stay: bool, look: float, drain: _Drain) -> None:

    from astrarium.cli.cluster.progress import Lines

    lines = Lines(arbiter)
    while not drain.asked and (stay or not arbiter.idle):
        arbiter.turn()
        lines.show()
        time.sleep(look)
    while not arbiter.drain():
        time.sleep(look)


class _Drain:
    """Ctrl-C once is a wish; twice, and we leave at once: jobs run on, and can be found again."""

    asked = False

    def __enter__(self) -> _Drain:
        self._before = {one: signal.signal(one, self._ask) for one in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("draining: jobs write checkpoints", file=sys.stderr, flush=True)
