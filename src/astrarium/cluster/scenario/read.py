"""Scenario files whose subject is apps on a cluster: read, overridden, checked in every part.

machines:
  - {count: 4, gpus: 4}
apps:
  - {name: vision, gpus: 4, length: 2h, model: VGG16}
  - {name: search, kind: halving, jobs: 8, budget: 8h, arrival: 10min}
policy: {name: themis, lease: 10min}
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.scenario import schema, tasks
from astrarium.cluster.scenario.calendar import Moment, read_moment
from astrarium.cluster.scenario.live import Address, LiveSection, read_address
from astrarium.cluster.teams import Team
from astrarium.cluster.workloads.themis.clusters import MACHINES
from astrarium.core.choice import DEFAULT_SEED, Seed, WrittenScenario, read_policy
from astrarium.core.decode import Decoder, check_keys, check_names, keys_of
from astrarium.core.errors import InputError, one_of

DEFAULT_POLICY = "themis"
SECTIONS = (
    "machines", "apps", "teams", "reservations", "sharing", "policy", "slowdowns", "costs", "changes", "seed",
    "live",
)  # fmt: skip


class ClusterScenario(WrittenScenario, frozen=True, kw_only=True):
    """Apps on a cluster: machines, apps, what spreading costs, and the policy that leases GPUs."""

    level: ClassVar[str] = "cluster"
    policies = cluster_policies
    machines: tuple[schema.MachineKind, ...] | str  # a name: one of MACHINES
    apps: tuple[schema.AppEntry, ...] | schema.ThemisApps | schema.TraceApps
    slowdowns: schema.SlowdownSection
    costs: schema.Costs
    changes: tuple[schema.Change, ...]
    teams: dict[str, Team]
    reservations: tuple[schema.ReservationEntry, ...]
    sharing: schema.SharingSection | None
    live: LiveSection
    tasks: tuple[tasks.TaskEntry | None, ...]  # of apps that are listed: what they run, if that is said


def parse(raw: Any, path: Path = Path()) -> ClusterScenario:
    """Files that the scenario names are looked for beside it."""
    if not isinstance(raw, dict) or "apps" not in raw:
        expected = "a mapping with machines and apps"
        raise InputError("", keys_of(raw), expected)
    check_keys(raw, list(SECTIONS), "")
    raw = {**raw, "apps": _with_files(raw["apps"], path.parent)}
    decode = Decoder({Address: lambda raw, field: read_address(raw), Moment: read_moment}).decode
    fields = {name: value for name, value in raw.items() if value is not None}
    return ClusterScenario(
        machines=_machines(raw.get("machines"), decode),
        apps=_apps(raw["apps"], decode),
        policy=read_policy(raw.get("policy"), cluster_policies, DEFAULT_POLICY),
        slowdowns=decode(schema.SlowdownSection, fields.get("slowdowns", {}), "slowdowns"),
        costs=decode(schema.Costs, fields.get("costs", {}), "costs"),
        changes=_changes(raw.get("changes"), decode),
        teams=decode(dict[str, Team], fields.get("teams", {}), "teams"),
        reservations=decode(
            tuple[schema.ReservationEntry, ...], fields.get("reservations", []), "reservations"
        ),
        sharing=decode(schema.SharingSection, fields["sharing"], "sharing") if "sharing" in fields else None,
        seed=decode(Seed, raw.get("seed", DEFAULT_SEED), "seed"),
        live=_live(fields, decode),
        tasks=_tasks(raw["apps"]),
        raw=raw,
        source=str(path),
    )


def _live(fields: dict[str, Any], decode: Any) -> LiveSection:
    """Where teams are listed, users belong to one of those."""
    section: LiveSection = decode(LiveSection, fields.get("live", {}), "live")
    known = fields.get("teams") or {}
    for team in section.access.teams if section.access is not None and known else ():
        if team not in known:
            raise InputError("live.access.teams", team, f"a team of the file: {one_of(list(known), team)}")
    return section


def _machines(raw: Any, decode: Any) -> tuple[schema.MachineKind, ...] | str:
    if isinstance(raw, str):
        if raw not in MACHINES:
            raise InputError("machines", raw, f"a list of machines, or {one_of(list(MACHINES), raw)}")
        return raw
    if not isinstance(raw, list) or not raw:
        expected = f"a list such as [{{count: 4, gpus: 8}}], or {one_of(list(MACHINES))}"
        raise InputError("machines", raw, expected)
    machines: tuple[schema.MachineKind, ...] = decode(tuple[schema.MachineKind, ...], raw, "machines")
    return machines


def _apps(raw: Any, decode: Any) -> tuple[schema.AppEntry, ...] | schema.ThemisApps | schema.TraceApps:
    if isinstance(raw, dict):
        kinds = {"themis": schema.ThemisApps, "trace": schema.TraceApps}
        kind = next((kinds[name] for name in kinds if name in raw), None)
        if kind is None:
            raise InputError("apps", keys_of(raw), "a list of apps, {themis: 1, ...} or {trace: FILE, ...}")
        drawn: schema.ThemisApps | schema.TraceApps = decode(kind, raw, "apps")
        return drawn
    if not isinstance(raw, list) or not raw:
        raise InputError("apps", raw, "a list of apps, {themis: 1, ...} or {trace: FILE, ...}")
    plain = [tasks.simulated(entry, f"apps[{place}]") for place, entry in enumerate(raw)]
    entries: tuple[schema.AppEntry, ...] = decode(tuple[schema.AppEntry, ...], plain, "apps")
    check_names(entries, "apps", "app")
    return entries


def _tasks(raw: Any) -> tuple[tasks.TaskEntry | None, ...]:
    entries = raw if isinstance(raw, list) else []
    return tuple(tasks.task_entry(entry, f"apps[{place}]") for place, entry in enumerate(entries))


def _with_files(apps: Any, home: Path) -> Any:
    """A run is made again from another folder: its files are named in full."""
    if not isinstance(apps, dict):
        return apps
    files = {name: apps[name] for name in ("trace", "sweeps") if isinstance(apps.get(name), str)}
    return {**apps, **{name: str((home / file).resolve()) for name, file in files.items()}}


def _changes(raw: Any, decode: Any) -> tuple[schema.Change, ...]:
    changes: tuple[schema.Change, ...] = decode(
        tuple[schema.Change, ...], [] if raw is None else raw, "changes"
    )
    for place, (before, change) in enumerate(pairwise(changes), 1):
        if change.at < before.at:
            raise InputError(f"changes[{place}].at", raw[place]["at"], "moments in order: the earliest first")
    return changes
