"""Scenario files whose subject is apps on a cluster: read, overridden, checked in every part.

machines:
  - {count: 4, gpus: 4}
apps:
  - {name: vision, gpus: 4, length: 2h, model: VGG16}
  - {name: search, kind: halving, jobs: 8, budget: 8h, arrival: 10min}
policy: {name: themis, lease: 10min}
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import yaml

from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.scenario.schema import (
    AppEntry,
    Change,
    Costs,
    LiveSection,
    MachineKind,
    SlowdownSection,
    TaskEntry,
    ThemisApps,
    TraceApps,
    simulated,
    task_entry,
)
from astrarium.core.choice import DEFAULT_SEED, Choice, chosen, read_choice
from astrarium.core.decode import Decoder, check_keys, overridden, read_yaml
from astrarium.core.errors import InputError, one_of

DEFAULT_POLICY = "themis"
SECTIONS = ("machines", "apps", "policy", "slowdowns", "costs", "changes", "seed", "live")
CLUSTERS = ["themis-testbed", "themis-simulator", "themis-printed", "themis-truth-telling"]
Seed = Annotated[int, msgspec.Meta(ge=0)]


class ClusterScenario(msgspec.Struct, frozen=True):
    """Apps on a cluster: machines, apps, what spreading costs, and the policy that leases GPUs."""

    level: ClassVar[str] = "cluster"
    machines: tuple[MachineKind, ...] | str  # a name: one of CLUSTERS
    apps: tuple[AppEntry, ...] | ThemisApps | TraceApps
    policy: Choice
    slowdowns: SlowdownSection
    costs: Costs
    changes: tuple[Change, ...]
    seed: int
    live: LiveSection
    tasks: tuple[TaskEntry | None, ...]  # of apps that are listed: what they run, if that is said
    raw: dict[str, Any]  # as written, overrides included
    source: str = ""

    def with_policy(self, name: str, **parameters: Any) -> ClusterScenario:
        choice = Choice(name, parameters)
        chosen(cluster_policies, choice)
        return msgspec.structs.replace(self, policy=choice, raw={**self.raw, "policy": choice.plain()})

    def with_seed(self, seed: int) -> ClusterScenario:
        return msgspec.structs.replace(self, seed=seed, raw={**self.raw, "seed": seed})

    def to_yaml(self) -> str:
        return str(yaml.safe_dump(self.raw, sort_keys=False))


def load(path: str | Path, overrides: Sequence[str] = ()) -> ClusterScenario:
    try:
        return parse(overridden(read_yaml(Path(path)), overrides), Path(path))
    except InputError as error:
        raise error.read_from(str(path)) from None


def parse(raw: Any, path: Path = Path()) -> ClusterScenario:
    """Files that the scenario names are looked for beside it."""
    if not isinstance(raw, dict) or "apps" not in raw:
        told = "a mapping with machines and apps"
        raise InputError("", _keys(raw), told)
    check_keys(raw, list(SECTIONS), "")
    raw = {**raw, "apps": _with_files(raw["apps"], path.parent)}
    decode = Decoder().decode
    choice = read_choice(raw.get("policy"), "policy", DEFAULT_POLICY)
    chosen(cluster_policies, choice)
    return ClusterScenario(
        machines=_machines(raw.get("machines"), decode),
        apps=_apps(raw["apps"], decode),
        policy=choice,
        slowdowns=decode(SlowdownSection, _or_empty(raw.get("slowdowns")), "slowdowns"),
        costs=decode(Costs, _or_empty(raw.get("costs")), "costs"),
        changes=_changes(raw.get("changes"), decode),
        seed=decode(Seed, raw.get("seed", DEFAULT_SEED), "seed"),
        live=decode(LiveSection, _or_empty(raw.get("live")), "live"),
        tasks=_tasks(raw["apps"]),
        raw=raw,
        source=str(path),
    )


def _keys(raw: Any) -> Any:
    return ", ".join(map(str, raw)) if isinstance(raw, dict) else "nothing" if raw is None else raw


def _or_empty(raw: Any) -> Any:
    return {} if raw is None else raw


def _machines(raw: Any, decode: Any) -> tuple[MachineKind, ...] | str:
    if isinstance(raw, str):
        if raw not in CLUSTERS:
            raise InputError("machines", raw, f"a list of machines, or {one_of(CLUSTERS, raw)}")
        return raw
    if not isinstance(raw, list) or not raw:
        told = f"a list such as [{{count: 4, gpus: 8}}], or {one_of(CLUSTERS)}"
        raise InputError("machines", raw, told)
    found: tuple[MachineKind, ...] = decode(tuple[MachineKind, ...], raw, "machines")
    return found


def _apps(raw: Any, decode: Any) -> tuple[AppEntry, ...] | ThemisApps | TraceApps:
    if isinstance(raw, dict):
        kinds = {"themis": ThemisApps, "trace": TraceApps}
        kind = next((kinds[name] for name in kinds if name in raw), None)
        if kind is None:
            raise InputError("apps", _keys(raw), "a list of apps, {themis: 1, ...} or {trace: FILE, ...}")
        drawn: ThemisApps | TraceApps = decode(kind, raw, "apps")
        return drawn
    if not isinstance(raw, list) or not raw:
        raise InputError("apps", raw, "a list of apps, {themis: 1, ...} or {trace: FILE, ...}")
    plain = [simulated(each, f"apps[{place}]") for place, each in enumerate(raw)]
    entries: tuple[AppEntry, ...] = decode(tuple[AppEntry, ...], plain, "apps")
    taken: set[str] = set()
    for place, entry in enumerate(entries):
        for name in dict.fromkeys([entry.name, *entry.names]):
            if name in taken:
                raise InputError(f"apps[{place}].name", name, "a name that no other app has")
            taken.add(name)
    return entries


def _tasks(raw: Any) -> tuple[TaskEntry | None, ...]:
    entries = raw if isinstance(raw, list) else []
    return tuple(task_entry(each, f"apps[{place}]") for place, each in enumerate(entries))


def _with_files(apps: Any, home: Path) -> Any:
    """A run is made again from another folder: its files are named in full."""
    if not isinstance(apps, dict):
        return apps
    found = {name: apps[name] for name in ("trace", "sweeps") if isinstance(apps.get(name), str)}
    return {**apps, **{name: str((home / file).resolve()) for name, file in found.items()}}


def _changes(raw: Any, decode: Any) -> tuple[Change, ...]:
    found: tuple[Change, ...] = decode(tuple[Change, ...], [] if raw is None else raw, "changes")
    for place, (before, change) in enumerate(pairwise(found), 1):
        if change.at < before.at:
            raise InputError(f"changes[{place}].at", raw[place]["at"], "moments in order: the earliest first")
    return found
