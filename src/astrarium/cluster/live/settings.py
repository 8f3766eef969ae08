"""What a file says of a live cluster becomes the setup of its arbiter, all checked before any app starts."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from astrarium.cluster.live.arbiter import ANY, ArbiterSetup, ChosenPolicy, PlannedApp
from astrarium.cluster.live.backend import MachineStatus
from astrarium.cluster.live.cluster import Options
from astrarium.cluster.live.machine.keeping.grace import Grace
from astrarium.cluster.live.service.identities import user_name
from astrarium.cluster.live.store import FILE, open_database, rows
from astrarium.cluster.live.watching.hooks import Hook, named
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.scenario.build import first_machines, slowdowns
from astrarium.cluster.scenario.calendar import Calendar
from astrarium.cluster.scenario.live_apps import live_apps
from astrarium.cluster.scenario.read import ClusterScenario
from astrarium.cluster.scenario.sharing import check_member, shared, team_rules
from astrarium.cluster.scenario.tasks import command_words
from astrarium.cluster.teams import Rules
from astrarium.core.choice import chosen
from astrarium.core.errors import InputError, read_from
from astrarium.core.quantities import SECOND


def origin_of(home: Path) -> int:
    """When the first arbiter of a state folder began, by the wall clock; now, where there was none."""
    if not (home / FILE).exists():
        return time.time_ns()
    with closing(open_database(home / FILE, read_only=True)) as db:
        begun = rows(db, "SELECT name FROM sqlite_master WHERE name = 'meta'")
        origins = rows(db, "SELECT value FROM meta WHERE key = 'origin'") if begun else []
    return int(origins[0]["value"]) if origins else time.time_ns()


def settings(scenario: ClusterScenario, origin: int | None = None) -> ArbiterSetup:
    """All that an arbiter needs of a file; every app is checked before the first is started. *origin*: what
    the wall clock said when the run began, if it is not new."""
    if not isinstance(scenario.apps, tuple):
        expected = "a list of apps with commands: what is drawn, or comes from a trace, can only be simulated"
        raise InputError("apps", None, expected, scenario.source)
    live = scenario.live
    planned = list[PlannedApp]()
    now = time.time_ns()
    largest = (
        ANY if live.backend != "local" else sum(machine.gpus for machine in machines_of(scenario).values())
    )
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
    handover = round(Grace(live.grace / SECOND).handover * SECOND)
    return ArbiterSetup(
        policy=ChosenPolicy(spec, shared(chosen(cluster_policies, scenario.policy), rules)),
        read=read,
        wall=time.time_ns,
        clock=time.monotonic_ns,
        slowdowns=slowdowns(scenario, believed=True),
        startup=scenario.costs.startup,
        options=Options(live.retries, live.progress, handover=handover),
        planned=planned,
        learns=not scenario.slowdowns.told,
    )


def hooks_of(scenario: ClusterScenario) -> list[Hook]:
    """Return the hooks of a file; a program that is not there is refused before anything is started."""
    hooks = list[Hook]()
    directory = Path(scenario.source).resolve().parent
    for place, entry in enumerate(scenario.live.hooks):
        words = command_words(entry.command) if entry.command else ()
        url = entry.url or ""
        with read_from(scenario.source):
            _check_program(words[:1], directory, None, f"live.hooks[{place}].command")
        name = named(place, words, url)
        timeout = entry.timeout / 1e9
        hooks.append(Hook(name, entry.on, words, url, str(directory), timeout, entry.retries))
    return hooks


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
    apps = live_apps(raw, largest, Path(scenario.source).parent, field)
    for app, _ in apps:
        check_member(rules, app, field)
    ours = owner in ("", user_name(os.geteuid()))
    for _, task in apps if ours and scenario.live.backend == "local" and largest != ANY else ():
        if not Path(task.directory).is_dir():
            raise InputError(f"{field}.directory", task.directory, "a folder that is there")
        _check_program(task.command[:1], task.directory, task.env.get("PATH"), f"{field}.command")
    return apps


def _check_program(words: Sequence[str], directory: str | Path, path: str | None, field: str) -> None:
    for name in words:
        place = str(Path(directory, name)) if "/" in name else name
        if shutil.which(place, path=path) is None:
            expected = f"a program that is in PATH, or a path to one from {directory}"
            raise InputError(field, name, expected)


def machines_of(scenario: ClusterScenario) -> dict[str, Any]:
    """Those of the file, by names that they keep."""
    with read_from(scenario.source):
        first = first_machines(scenario)
    return {f"machine-{one.id}": MachineStatus(one.gpus, one.rack, one.slot, one.network) for one in first}
