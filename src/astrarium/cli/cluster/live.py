"""astrarium cluster run FILE"""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astrarium.cli.cluster.state import State, disk_errors
from astrarium.cli.options import Json, Overrides, ScenarioFile

if TYPE_CHECKING:
    from astrarium.cluster.live.arbiter import ArbiterProcess, ArbiterSetup
    from astrarium.cluster.live.backend import Backend
    from astrarium.cluster.scenario.read import ClusterScenario


Stay = Annotated[
    bool, typer.Option("--stay", help="Wait for apps that are submitted later, when all others have ended.")
]
ChosenPolicy = Annotated[
    str | None, typer.Option("-p", "--policy", metavar="POLICY", help="Instead of the file's policy.")
]


def run(
    file: ScenarioFile,
    policy: ChosenPolicy = None,
    override: Overrides = None,
    state: State = None,
    stay: Stay = False,
    json: Json = False,
) -> None:
    """Run the apps of a file on real machines. Ctrl-C has them write checkpoints; run it again to go on."""
    from astrarium.cli.cluster.status import told
    from astrarium.cli.output import emit
    from astrarium.cluster.live.arbiter import ArbiterProcess
    from astrarium.run.waiting import waiting

    scenario = _loaded(file, policy, override)
    home = (state or Path(scenario.live.state or file.with_suffix(".state").name)).resolve()
    setting = settings(scenario)
    jobs = Path(scenario.live.jobs or home).resolve()
    with disk_errors(home), ExitStack() as closing:
        with waiting(f"looking for the machines ({scenario.live.backend})"):
            backend = backend_of(scenario, jobs)  # before our signals: Ray sets its own
            office = ArbiterProcess(home, setting, backend)
        # Who is interrupted before leaves all as it is: agents that have not answered may have jobs to keep.
        closing.callback(getattr(backend, "close", _nothing_to_close))
        closing.callback(office.close)
        with _Drain() as drain:
            _announce(scenario, home, office)
            _turns(office, stay, scenario.live.look / 1e9, drain)
            status = office.status(alive=False)
    emit(json, status, told(status), None)
    if drain.asked:
        again = " ".join(["astrarium cluster run", *_again(file, policy, override, state, stay)])
        print(f"drained; `{again}` goes on", file=sys.stderr)
    elif any(app["outcome"] == "failed" for app in status["apps"]):
        raise typer.Exit(1)


def _nothing_to_close() -> None:
    """Not all backends hold something."""


def _again(
    file: Path, policy: str | None, override: list[str] | None, state: Path | None, stay: bool
) -> Iterator[str]:
    """The words of the command that goes on."""
    yield shlex.quote(str(file))
    if policy is not None:
        yield f"--policy {shlex.quote(policy)}"
    for each in override or []:
        yield f"--override {shlex.quote(each)}"
    if state is not None:
        yield f"--state {shlex.quote(str(state))}"
    if stay:
        yield "--stay"


def _loaded(file: Path, policy: str | None, override: list[str] | None) -> ClusterScenario:
    from astrarium.cli.cluster.app import variants
    from astrarium.cluster.scenario.read import load

    [scenario] = variants(load(file, override or []), [policy] if policy else []).values()
    return scenario


def settings(scenario: ClusterScenario) -> ArbiterSetup:
    """All that an arbiter needs of a file; every app is checked before the first is started."""
    import msgspec

    from astrarium.cluster.live.arbiter import ArbiterSetup, ChosenPolicy, PlannedApp
    from astrarium.cluster.live.memory import Options
    from astrarium.cluster.scenario.apps import live_apps
    from astrarium.cluster.scenario.build import slowdowns
    from astrarium.cluster.scenario.read import allocator

    live, home = scenario.live, Path(scenario.source).parent
    written = scenario.raw["apps"] if isinstance(scenario.raw["apps"], list) else []
    planned = []
    for place, (entry, raw) in enumerate(zip(_listed(scenario), written, strict=True)):
        _checked(raw, scenario, home, f"apps[{place}]")
        for number, name in enumerate(entry.names):
            body = {key: value for key, value in raw.items() if key not in ("count", "every", "arrival")}
            planned.append(PlannedApp(entry.arrival + number * entry.every, name, {**body, "name": name}))
    spec = msgspec.json.encode({"name": scenario.policy, **scenario.parameters}).decode()
    return ArbiterSetup(
        policy=ChosenPolicy(spec, allocator(scenario.policy, scenario.parameters)),
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
    from astrarium.cluster.scenario.apps import live_apps
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


def _announce(scenario: ClusterScenario, home: Path, office: ArbiterProcess) -> None:
    how = "begins" if office.epoch == 1 else f"goes on (arbiter {office.epoch})"
    print(f"{scenario.policy} on {scenario.live.backend} machines {how}; state in {home}", file=sys.stderr)
    if office.known_before:
        names = ", ".join(office.known_before)
        print(f"here before, and taken as they were then: {names}", file=sys.stderr)
    print("Ctrl-C has all jobs write a checkpoint and leaves", file=sys.stderr, flush=True)


def _turns(office: ArbiterProcess, stay: bool, look: float, drain: _Drain) -> None:

    from astrarium.cli.cluster.progress import Lines

    lines = Lines(office)
    while not drain.asked and (stay or not office.idle):
        office.turn()
        lines.show()
        time.sleep(look)
    while not office.drain():
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
