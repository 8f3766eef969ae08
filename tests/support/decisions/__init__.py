"""What every policy of every level decides, as digests. `recorded.json` holds those that must not change.

Who changes decisions on purpose writes it again, and says in the commit who decides otherwise and why:

    python -m tests.support.decisions > tests/support/decisions/recorded.json

A digest is over every action of a run with its instant, in order; of the native simulators, which keep no
actions, over every batch and every request. It holds values only: names of classes, of timers and of modules,
and words for people, may change as they like.

Runs whose decisions hang on the last bit of a sum are not among them: Python 3.12 adds floats more exactly
than 3.11 does, and `astrarium` for tuning, `optimus` and `slaq` now and then decide otherwise there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from astrarium import _gate
from astrarium.cluster.contract import Grant, Revoke, Run, Stop
from astrarium.cluster.policies import Arbiter, cluster_policies
from astrarium.cluster.scenario.build import build as build_cluster
from astrarium.cluster.scenario.build import slowdowns
from astrarium.cluster.scenario.read import ClusterScenario
from astrarium.cluster.state import ClusterState
from astrarium.cluster.world import ClusterWorld
from astrarium.core.choice import Choice, parameters_of
from astrarium.core.choice import chosen as chosen_policy
from astrarium.core.engine import Engine
from astrarium.core.level import Watching
from astrarium.core.policy import SetTimer
from astrarium.core.quantities import SECOND, Time
from astrarium.core.trace import Step
from astrarium.device.contract import Admit, Refuse, RunIteration
from astrarium.device.policies import iteration_policies
from astrarium.device.scenario.job_arrivals import arrivals as job_arrivals
from astrarium.device.scenario.read import JobScenario
from astrarium.device.world import DeviceWorld
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.problem import Problem
from astrarium.run.experiment import recorded
from astrarium.run.experiment import simulate as simulate_level
from astrarium.run.simulate import simulate
from astrarium.serving.contract import Dispatch, Drop, Preempt
from astrarium.serving.level import LEVEL as SERVING
from astrarium.serving.level import run as run_serving
from astrarium.serving.planning.clusters import Speeds
from astrarium.serving.planning.search import Planning, PlanningGoals
from astrarium.serving.policies import serving_policies
from astrarium.serving.record import ServingRecord
from astrarium.serving.scenario import Scenario, build
from astrarium.serving.twin.live import LiveTwin, faster
from astrarium.serving.twin.native import has_twin
from astrarium.testing.cases import Case as ServingCase
from astrarium.tuning.contract import Pause, Put
from astrarium.tuning.level import LEVEL as TUNING
from astrarium.tuning.policies import tuning_policies
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.scenario.read import TuningScenario
from astrarium_papers.gate_simulation import Party, Sharing, share
from astrarium_papers.salus._settings import play
from tests.support.cases import run_case
from tests.support.decisions.scenarios import (
    CLUSTERS,
    SERVED,
    TUNED,
    cluster_example,
    drawn_jobs,
    jobs_example,
    measured_problem,
    planned_example,
    random_cluster,
    random_jobs,
    random_parties,
    random_problem,
    random_searches,
    random_serving,
    served_example,
    themis_cluster,
    tuned_example,
    tuned_searches,
    unsteady_serving,
)

Rows = list[list[Any]]  # decisions: an instant, what, and its values
Runs = Iterator[tuple[str, str, Rows]]  # of a policy, on an engine
Parameters = dict[str, Any]


class Case(NamedTuple):
    """A scenario, made when it is needed, and how all policies of a level are run on it."""

    level: str
    scenario: str
    runs: Callable[[Any], Runs]
    make: Callable[[], Any]
    thorough: bool = False

    @property
    def name(self) -> str:
        return f"{self.level}/{self.scenario}"

    def digests(self) -> dict[str, str]:
        return {
            f"{self.level}/{policy}/{engine}/{self.scenario}": digest(rows)
            for policy, engine, rows in self.runs(self.make())
        }

    def has(self, key: str) -> bool:
        """Whether a recorded digest is one of its own."""
        return key.startswith(f"{self.level}/") and key.endswith(f"/{self.scenario}")


def digest(rows: Rows) -> str:
    """How many decisions there are, and what they are."""
    assert rows, "a run without a decision tells nothing"
    text = json.dumps(rows, separators=(",", ":"))
    return f"{len(rows)} {sha256(text.encode()).hexdigest()}"


def rounded(value: float) -> float:
    """The last bits of logarithms and sums differ between processors and versions of Python."""
    return float(f"{value:.9g}")


def decided(steps: Iterable[Step]) -> Rows:
    """Timers are told apart, whatever they are called."""
    timers: dict[str, int] = {}
    return [[step.now, *values(action, timers)] for step in steps for action in step.actions]


def values(action: Any, timers: dict[str, int]) -> list[Any]:
    match action:
        case SetTimer():
            return ["timer", timers.setdefault(action.name, len(timers)), action.at]
        case Dispatch():
            return ["dispatch", action.gpu, action.requests, action.start]
        case Drop():
            return ["drop", action.request, action.reason]
        case Preempt():
            return ["preempt", action.gpu]
        case Admit():
            return ["admit", action.job, action.lane]
        case Refuse():
            return ["refuse", action.job]
        case RunIteration():
            return ["iterate", action.job]
        case Put():
            return ["put", action.trial, action.place.gpus, action.place.parts]
        case Pause():
            return ["pause", action.trial]
        case Grant():
            return ["grant", action.app, action.gpus, action.until]
        case Revoke():
            return ["revoke", action.app, action.gpus]
        case Run():
            return ["run", action.app, action.job, action.gpus]
        case Stop():
            return ["stop", action.app, action.job]
    raise TypeError(f"an action without a tag: {action}")


def variants(
    names: Iterable[str], others: Iterable[tuple[str, Parameters]]
) -> dict[str, tuple[str, Parameters]]:
    """By label: each policy as it is, and *others* with parameters."""
    found: dict[str, tuple[str, Parameters]] = {name: (name, {}) for name in names}
    for name, parameters in others:
        label = ",".join(f"{key}={value}" for key, value in parameters.items())
        found[f"{name}:{label}"] = (name, parameters)
    return found


# serving

OTHER_SERVING: list[tuple[str, Parameters]] = [
    ("astrarium", {"prefer": "few-gpus"}),
    ("astrarium", {"lookahead": False}),
    ("clipper", {"latency": "total"}),
    ("clockwork", {"sizes": "powers_of_two"}),
    ("deferred", {"gather": "fcfs"}),
    ("eager", {"gather": "fcfs"}),
    ("nexus", {"epoch": "300ms", "spread": False}),
    ("orloj", {"members": "own"}),
    ("shepherd", {"preempt": False}),
    ("timeout", {"timeout": "3ms", "gather": "fcfs"}),
]


def serving(scenario: Scenario, others: Iterable[tuple[str, Parameters]] = ()) -> Runs:
    """The scenario's own policy keeps its parameters."""
    for label, (name, parameters) in variants(serving_policies.names(), others).items():
        own = scenario.policy.name == name and not parameters
        chosen = scenario if own else scenario.with_policy(name, **parameters)
        policy = build.policy(chosen, build.setup(chosen))
        yield label, "python", decided(serving_steps(chosen))
        if has_twin(policy):
            yield label, "native", batches_and_requests(run_serving(chosen, "native"))
            if getattr(policy, "live_twin", False):
                yield label, "live-twin", decided(serving_steps(chosen, live_twin=True))


def serving_steps(scenario: Scenario, live_twin: bool = False) -> list[Step]:
    setup = build.setup(scenario)
    steps = list[Step]()
    policy = build.policy(scenario, setup)
    chosen = faster(policy, setup) if live_twin else policy
    assert isinstance(chosen, LiveTwin) is live_twin
    recorded(SERVING, scenario, chosen, "python", watching=Watching(trace=steps.append))
    return steps


def batches_and_requests(record: ServingRecord) -> Rows:
    sent = record.batches
    ended = record.requests
    columns = (sent.dispatched, sent.started, sent.finished, sent.gpu, sent.model, sent.size, sent.fate)
    rows: Rows = [["batch", *map(int, row)] for row in zip(*columns, strict=True)]
    for done, batch, outcome, reason in zip(
        ended.done, ended.batch, ended.outcome, ended.reason, strict=True
    ):
        rows.append(["request", int(done), int(batch), int(outcome), record.reasons[reason]])
    return rows


def unsteady(case: ServingCase) -> Runs:
    for name in serving_policies.names():
        factory = serving_policies.get(name)
        policy = factory(case.setup, parameters_of(factory)())
        yield name, "python", decided(run_case(case, policy).steps)
        twin = faster(policy, case.setup)
        if twin is not policy:
            yield name, "live-twin", decided(run_case(case, twin).steps)


# one GPU


def jobs(scenario: JobScenario) -> Runs:
    gpu = scenario.gpu
    arrivals = job_arrivals(scenario)
    for name in iteration_policies.names():
        steps: list[Step] = []
        play(name, arrivals, gpu.memory, DeviceWorld(gpu.switch, gpu.overhead, gpu.pause), steps.append)
        yield name, "python", decided(steps)


OTHER_KERNELS = {
    "orion:search": Sharing("orion", search_limit=0.2),
    "astrarium:taught": Sharing("astrarium", learn=False, knobs={"latency": 3_000_000}),
    "streams:priority": Sharing("streams", priority=True, one_interpreter=True),
}


def kernels(parties: list[Party]) -> Runs:
    """What the gate decides is seen by when requests end, and by what had to wait for which reason."""
    sharings = {name: Sharing(name) for name in _gate.policy_names()}
    for label, sharing in {**sharings, **OTHER_KERNELS}.items():
        yield label, "native", gated(parties, sharing)


def gated(parties: list[Party], sharing: Sharing, duration: Time = SECOND // 4) -> Rows:
    rows: Rows = []
    for number, client in enumerate(share(parties, sharing, duration).clients):
        ends = zip(client.latency_ms, client.service_ms, strict=True)
        rows += [["request", number, rounded(latency), rounded(service)] for latency, service in ends]
        rows.append(["client", number, client.launches, rounded(client.held_s), sorted(client.held.items())])
    return rows


# searches


def tuning(scenario: TuningScenario) -> Runs:
    for name in tuning_policies.names():
        own = scenario.policy.name == name
        chosen = scenario if own else scenario.with_policy(name)
        yield name, "python", trials(simulate_level(TUNING, chosen).record)


def searching(scenarios: dict[str, TuningScenario]) -> Runs:
    """Every policy with every search."""
    for search, scenario in scenarios.items():
        for name, engine, rows in tuning(scenario):
            yield f"{name}+{search}", engine, rows


def trials(record: TuningRecord) -> Rows:
    """What the policy decided, and what the search did: candidates, and how long each was trained."""
    rows = [[at, *values(action, {})] for at, action in record.decisions]
    rows += [
        ["trial", row.trial.id, row.trial.group, row.trial.candidate, row.trial.begins, row.trial.iterations,
         row.ended, int(row.outcome)]
        for row in record.rows
    ]  # fmt: skip
    for each in record.candidates:
        rows.append(["candidate", each.number, each.source, int(each.standing), _plain(each.values)])
    return rows


def _plain(known: dict[str, Any]) -> list[list[Any]]:
    return [
        [name, rounded(value) if isinstance(value, float) else value] for name, value in sorted(known.items())
    ]


# clusters

OTHER_CLUSTER: list[tuple[str, Parameters]] = [
    ("astrarium", {"definition": "share", "round": "5min"}),
    ("themis", {"f": 0.3, "lease": "5min", "definition": "equation-1"}),
    ("themis", {"error": 0.2, "leftovers": "worst"}),
    ("tiresias", {"lease": "5min", "gangs": "skip"}),
    ("tiresias-2d", {"promote": 2.0}),
]


def cluster(scenario: ClusterScenario, others: Iterable[tuple[str, Parameters]] = ()) -> Runs:
    for label, (name, parameters) in variants(cluster_policies.names(), others).items():
        own = scenario.policy.name == name and not parameters
        chosen = scenario if own else scenario.with_policy(name, **parameters)
        yield label, "python", decided(cluster_steps(chosen))


def cluster_steps(scenario: ClusterScenario) -> list[Step]:
    steps = list[Step]()
    costs = scenario.costs
    state = ClusterState(slowdowns(scenario, believed=True), costs.startup, checkpoints=costs.checkpoints)
    policy = Arbiter(chosen_policy(cluster_policies, scenario.policy))
    world = ClusterWorld(slowdowns(scenario), costs.startup, costs.checkpoints)
    simulate(Engine(state, policy, record=steps.append), build_cluster(scenario).arrivals, world)
    return steps


# placement

OTHER_PLACEMENT: list[tuple[str, Parameters]] = [
    ("alpaserve", {"runtime": {"dispatch": "queue", "max_batch": 4}}),
    ("alpaserve", {"selection": "whole", "beam": 2, "refine": 0}),
    ("ao-milp", {"sets": 0}),
    ("igniter", {"leftovers": "truncate"}),
    ("usher", {"cluster": "open"}),
]
USUAL: dict[str, Parameters] = {
    "planner": {"samples": 2, "sample": 600, "effort": 1.0, "judged": 6, "heard": 300},  # or it searches long
    "round-robin": {"stages": 1},  # the only shape that all models have
}
# They need to know what models use of a GPU, which the example does not say.
DEMANDING = {"ao-milp", "usher", "wao-usher", "wsm-milp"}


def placement(problem: Problem) -> Runs:
    for label, (name, parameters) in variants(placement_policies.names(), OTHER_PLACEMENT).items():
        yield label, "python", placed(name, {**USUAL.get(name, {}), **parameters}, problem, Search())


def placed(name: str, parameters: Parameters, problem: Problem, search: Search) -> Rows:
    factory: Any = placement_policies.get(name)
    return replicas(factory(msgspec.convert(parameters, factory.Parameters)).place(problem, search))


def replicas(plan: Plan) -> Rows:
    assert plan.replicas, f"a plan of {plan.policy} without a replica tells nothing: {plan.missing}"
    rows: Rows = [
        ["replica", each.model, each.gpus, each.shape.stages, each.shape.operators, each.batch]
        for each in plan.replicas
    ]
    rows += [["share", rounded(each.share)] for each in plan.replicas]
    expected = None if plan.attainment is None else rounded(plan.attainment)
    return [*rows, ["missing", sorted(plan.missing)], ["attainment", expected]]


def planned(scenario: Scenario) -> Runs:
    """Judged by what will run, as `astrarium plan` does."""
    for name in placement_policies.names():
        if name not in DEMANDING:
            parameters = USUAL.get(name, {})
            planning = Planning(scenario, Choice(name, parameters), PlanningGoals(seeds=1))
            [problem] = planning.problems(scenario.cluster.size, Speeds(scenario))
            search = Search(planning.judge(problem))
            yield name, "python", placed(name, parameters, problem, search)


# all of them


def cases() -> list[Case]:
    return [*_serving(), *_device(), *_tuning(), *_cluster(), *_placement()]


def _serving() -> Iterator[Case]:
    for name in SERVED:
        yield Case("serving", name, serving, partial(served_example, name))
    for seed in range(1, 19):
        varied = partial(serving, others=OTHER_SERVING)
        yield Case("serving", f"random-{seed}", varied, partial(random_serving, seed), seed > 6)
    yield Case("serving", "unsteady", unsteady, unsteady_serving)
    # As far as the first change of its times.
    yield Case("serving", "drift-longer", serving, partial(served_example, "drift", 4200), True)


def _device() -> Iterator[Case]:
    yield Case("device", "jobs", jobs, jobs_example)
    yield Case("device", "salus", jobs, partial(drawn_jobs, 1))
    for seed in range(1, 13):
        yield Case("device", f"random-{seed}", jobs, partial(random_jobs, seed), seed > 4)
        yield Case("device", f"kernels-{seed}", kernels, partial(random_parties, seed), seed > 4)


def _tuning() -> Iterator[Case]:
    for name in TUNED:
        yield Case("tuning", name, tuning, partial(tuned_example, name))
        yield Case("tuning", f"{name}-searches", searching, partial(tuned_searches, name))
    for seed in range(1, 6):
        yield Case("tuning", f"random-{seed}", searching, partial(random_searches, seed), seed > 3)


def _cluster() -> Iterator[Case]:
    for name in CLUSTERS:
        yield Case("cluster", name, cluster, partial(cluster_example, name))
    for seed in range(1, 6):
        varied = partial(cluster, others=OTHER_CLUSTER)
        yield Case("cluster", f"themis-{seed}", cluster, partial(themis_cluster, seed), seed > 1)
        yield Case("cluster", f"random-{seed}", varied, partial(random_cluster, seed), seed > 2)


def _placement() -> Iterator[Case]:
    yield Case("placement", "plan", planned, planned_example)
    for seed in range(1, 7):
        yield Case("placement", f"random-{seed}", placement, partial(random_problem, seed), seed > 2)
        yield Case("placement", f"measured-{seed}", placement, partial(measured_problem, seed), seed > 2)
