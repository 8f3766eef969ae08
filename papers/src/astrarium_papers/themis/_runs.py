"""Runs of policies on Themis's apps: what is asked, what is measured, and how it is told over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import msgspec

from astrarium.cluster import level
from astrarium.cluster.contract import App, AppArrived, Event, MachineJoined
from astrarium.cluster.machines import Machine
from astrarium.cluster.record import ClusterRecord
from astrarium.cluster.report.summary import AppSummary, summarize_apps
from astrarium.cluster.scenario.build import Built
from astrarium.cluster.scenario.read import ClusterScenario, parse
from astrarium.cluster.workloads.apps import DrawnApp
from astrarium.cluster.workloads.themis import clusters, models
from astrarium.core.errors import InputError, one_of
from astrarium.core.quantities import Time
from astrarium.run.pools import processes
from astrarium_papers.findings import Effort
from astrarium_papers.themis._workloads import Drawing, drawn

THEMIS = "Themis"
# As named in the paper, in its order
RIVALS = {
    "Gandiva": "gandiva",
    "SLAQ": "slaq",
    "Tiresias": "tiresias",
    "SRTF": "srtf",
    "SRSF": "srsf",
    "Optimus": "optimus",
}
COLORS = {
    THEMIS: "#0072B2",
    "Gandiva": "#D55E00",
    "SLAQ": "#CC79A7",
    "Tiresias": "#009E73",
    "SRTF": "#E69F00",
    "SRSF": "#F0D080",
    "Optimus": "#56B4E9",
}
STARTUP = "40s"  # section 6.2.3: 35 s for another allocation, and 5 s for the checkpoint before it
SETTINGS = {
    "startup": f"what a start costs, {STARTUP} unless said",
    "network": "whose slowdowns jobs have that lie apart: k80 unless said, p100, v100 or fast",
}
CLUSTERS: dict[str, tuple[Machine, ...]] = {
    "testbed": clusters.MACHINES["themis-testbed"],
    "half of the testbed": clusters.machines(((4, 2, 2), (6, 4, 2))),
    "quarter of the testbed": clusters.machines(((2, 2, 2), (3, 4, 2))),
    "simulator": clusters.MACHINES["themis-simulator"],
}

Parameters = tuple[tuple[str, Any], ...]


def bids(name: str, definition: str) -> Parameters:
    """Return parameters with which Themis bids by the definition that it is measured by."""
    return (("definition", definition),) if name == THEMIS else ()


class Task(NamedTuple):
    """One run. *sized_for*: the cluster whose size the load of the drawing is of, where that is another
    one."""

    drawing: Drawing
    policy: str = "themis"
    parameters: Parameters = ()
    cluster: str = "testbed"
    sized_for: str = ""
    startup: str = STARTUP

    def __str__(self) -> str:
        parameters = ", ".join(f"{name} {value}" for name, value in self.parameters)
        policy = self.policy + (f" ({parameters})" if parameters else "")
        return f"{policy}: workload {self.drawing.workload}, seed {self.drawing.seed}, {self.cluster}"


class Measured(msgspec.Struct, frozen=True):
    """The numbers of a run: *rho* by definition, for all apps; *scores*: allocations, and GPU-hours, by
    placement score."""

    rho: dict[str, list[float]]
    took_s: list[float]
    gpu_hours: float
    contention: float
    scores: dict[float, tuple[int, float]]

    def worst(self, definition: str) -> float:
        return max(self.rho[definition])


_KNOWN: dict[Task, Measured] = {}  # figures share runs


def measured(tasks: Sequence[Task], effort: Effort) -> dict[Task, Measured]:
    """Run all tasks, with what the effort switches. Simulations are pure Python: several at a time need
    processes."""
    switched = {task: _switched(task, effort.settings) for task in tasks}
    new = [task for task in dict.fromkeys(switched.values()) if task not in _KNOWN]
    if effort.jobs > 1 and len(new) > 1:
        with processes(effort.jobs) as pool:
            _gather(new, pool.map(measure, new), effort)
    else:
        _gather(new, map(measure, new), effort)
    return {task: _KNOWN[known] for task, known in switched.items()}


def _switched(task: Task, settings: Mapping[str, str]) -> Task:
    network = settings.get("network", task.drawing.network)
    known = list(dict.fromkeys(network for _, network in models.SLOWDOWNS))
    if network not in known:
        raise InputError("network", network, one_of(known, network))
    drawing = msgspec.structs.replace(task.drawing, network=network)
    return task._replace(drawing=drawing, startup=settings.get("startup", task.startup))


def _gather(tasks: Sequence[Task], measured: Iterable[Measured], effort: Effort) -> None:
    answers = iter(measured)
    for number, task in enumerate(tasks, 1):
        effort.say(f"{number} of {len(tasks)}: {task}")
        _KNOWN[task] = next(answers)


def measure(task: Task) -> Measured:
    sized = CLUSTERS[task.sized_for or task.cluster]
    apps = drawn(task.drawing, gpus(sized))
    return summed(record_of(task, apps))


def gpus(cluster: Sequence[Machine]) -> int:
    return sum(machine.gpus for machine in cluster)


def record_of(task: Task, apps: Sequence[DrawnApp]) -> ClusterRecord:
    posed = scenario(task.policy, dict(task.parameters), task.startup)
    return level.run(posed, built=built(apps, task.cluster, task.drawing.network))


def scenario(policy: str, parameters: Mapping[str, Any], startup: str = STARTUP) -> ClusterScenario:
    """Return what does not depend on the apps: costs, slowdowns and the policy. Its own apps are not used."""
    return parse(
        {
            "machines": "themis-testbed",
            "apps": {"themis": 1},
            "slowdowns": {"table": "themis"},
            "costs": {"startup": startup},
            "policy": {"name": policy, **parameters},
        }
    )


def built(apps: Sequence[DrawnApp], where: str, network: str = "k80") -> Built:
    machines = [msgspec.structs.replace(machine, network=network) for machine in CLUSTERS[where]]
    size = gpus(machines)
    arrivals = [(app.arrival, _numbered(app, number)) for number, app in enumerate(apps)]
    events: list[tuple[Time, Event]] = [(0, MachineJoined(machine)) for machine in machines]
    events += [(at, AppArrived(app)) for at, app in arrivals]
    ends = arrivals[-1][0] + sum(app.work for _, app in arrivals) // size
    named = {app.name: app for _, app in arrivals}
    return Built(events, named, {machine.id: machine for machine in machines}, size, ends)


def _numbered(app: DrawnApp, number: int) -> App:
    return msgspec.structs.replace(msgspec.convert(app, App, from_attributes=True), id=number)


def summed(record: ClusterRecord) -> Measured:
    apps = summarize_apps(record)
    assert all(app.rho for app in apps), "an app did not finish"
    return Measured(
        rho={name: [app.rho[name] for app in apps] for name in apps[0].rho},
        took_s=[_took(app) for app in apps],
        gpu_hours=sum(app.gpu_hours for app in apps),
        contention=sum(app.contention for app in apps) / len(apps),
        scores=_scores(record),
    )


def _took(app: AppSummary) -> float:
    assert app.took_s is not None
    return app.took_s


def _scores(record: ClusterRecord) -> dict[float, tuple[int, float]]:
    scores: dict[float, tuple[int, float]] = {}
    for run in record.ran:
        score = round(run.score, 3)
        count, hours = scores.get(score, (0, 0.0))
        scores[score] = count + 1, hours + len(run.gpus) * (run.end - run.start) / 3.6e12
    return dict(sorted(scores.items()))


class Over(NamedTuple):
    """A number that was measured with several seeds."""

    median: float
    least: float
    most: float
    seeds: int

    def __str__(self) -> str:
        if self.seeds == 1:
            return "one seed"
        return f"{self.least:.3g} to {self.most:.3g} over {self.seeds} seeds"


def over(values: Iterable[float]) -> Over:
    numbers = list(values)
    return Over(median(numbers), min(numbers), max(numbers), len(numbers))


def jain(values: Sequence[float]) -> float:
    """Return Jain's index. 1: all are alike; 1/n: one has all."""
    return sum(values) ** 2 / len(values) / sum(value * value for value in values)
