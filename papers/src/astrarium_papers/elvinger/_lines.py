"""Who is compared, the plans they make, and what the plans are worth in the thesis's cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.core.random_streams import stream
from astrarium.placement.evaluation import Evaluation, evaluate
from astrarium.placement.plan import Plan, check
from astrarium.placement.policies import Judge, Search, placement_policies
from astrarium.placement.problem import PlacementRequests, Problem
from astrarium_papers.elvinger._world import WARMUP, SharedSms, path, poisson
from astrarium_papers.findings import Effort, Row

VISION = ("alexnet", "densenet121", "efficientnet_b7", "resnet50", "vgg19")
MIXED = ("resnet50", "mobilenet_v2", "bert", "gpt2")
JUDGING_SEED = 1
PLANNING_SEED = 2
PLANNER = "planner"
QUICK_PLANNER = {"effort": 1.0, "judged": 4}
PLANNED_WITH = 5 * SECOND
OURS = "Astrarium's planner"


class System(msgspec.Struct, frozen=True):
    """A policy with its parameters. *sizes* are batch sizes that the thesis prints where the program's best
    answers tie, by model: another solver may break a tie otherwise."""

    label: str
    policy: str
    parameters: dict[str, Any] = {}
    sizes: Mapping[str, Sequence[int]] = {}
    shares: bool = True  # False: replicas may use all SMs, whatever the policy says


# Observation 2 of 6.2.1, Figure 6.3: one of three matchings that are equally good.
WAO_GROUPS = (("alexnet", "resnet50", "vgg19"), ("densenet121", "efficientnet_b7"))
USHER = System("Usher", "usher")
WAO = System("WAO-Usher", "wao-usher")
WAO_FREE = System("WAO-Usher, no shares", "wao-usher", {"groups": WAO_GROUPS}, shares=False)
WAO_PRINTED = System("WAO-Usher", "wao-usher", {"groups": WAO_GROUPS})
AO_PRINTED = System("AO-MILP", "ao-milp", sizes={"efficientnet_b7": [64], "resnet50": [64]})
WSM_PRINTED = System("WSM-MILP", "wsm-milp", sizes={"efficientnet_b7": [64], "densenet121": [32, 64, 128]})
AO, WSM = (System(name, name.lower(), {"ties": "solver"}) for name in ("AO-MILP", "WSM-MILP"))
AO_SMALLER = System("AO-MILP, smaller batches", "ao-milp")
WSM_SMALLER = System("WSM-MILP, smaller batches", "wsm-milp")
OUR_PLANNER = System(OURS, PLANNER)
IGNITER = System("iGniter", "igniter", {"leftovers": "truncate"})


def planned(system: System, problem: Problem, effort: Effort) -> Plan:
    """Every policy is told the targets; `planner` plans with requests at these rates, and hears from a judge
    what becomes of a plan in this cluster."""
    factory: Any = placement_policies.get(system.policy)
    parameters = system.parameters | (QUICK_PLANNER if effort.quick and system.policy == PLANNER else {})
    policy = factory(msgspec.convert(parameters, factory.Parameters))
    search = Search()
    if system.policy == PLANNER:
        arrivals = poisson(problem, PLANNED_WITH, stream(PLANNING_SEED, "planning").random)
        problem = msgspec.structs.replace(problem, requests=arrivals)
        search = Search(judge(problem))
    plan: Plan = policy.place(_with_sizes(problem, system.sizes), search)
    if not system.shares:
        replicas = tuple(msgspec.structs.replace(replica, share=1.0) for replica in plan.replicas)
        plan = msgspec.structs.replace(plan, replicas=replicas)
    check(plan, problem)
    return plan


def judge(problem: Problem) -> Judge:
    """Return a judge, who says what becomes of a plan in the thesis's cluster."""

    def judged(plan: Plan, requests: PlacementRequests) -> list[float]:
        attained = (model.attainment for model in travelled(problem, plan, requests, warmup=0).models)
        return [1.0 if part is None else part for part in attained]

    return judged


def _with_sizes(problem: Problem, sizes: Mapping[str, Sequence[int]]) -> Problem:
    """Return the problem where some models choose among these batch sizes only."""
    models = tuple(
        msgspec.structs.replace(
            model,
            demands={b: d for b, d in model.demands.items() if b in sizes.get(model.name, model.demands)},
        )
        for model in problem.models
    )
    return msgspec.structs.replace(problem, models=models)


def travelled(problem: Problem, plan: Plan, requests: PlacementRequests, warmup: Time = WARMUP) -> Evaluation:
    interference = SharedSms(problem.models)
    return evaluate(problem, plan, requests, interference, warmup=warmup, path=path(problem))


def goodputs(requests: PlacementRequests, evaluation: Evaluation) -> dict[str, float]:
    """Return requests in time, by model, for each second in which its client was at work."""
    ends = dict(zip(requests.models, requests.times, strict=True))  # the last of each
    return {
        model.name: model.in_time * SECOND / (ends[model.model] - WARMUP)
        for model in evaluation.models
        if model.model in ends
    }


def submitted(problem: Problem, requests: PlacementRequests) -> dict[str, float]:
    """Return what the clients submitted: the thesis's `ideal`."""
    ends = dict(zip(requests.models, requests.times, strict=True))
    counted = Counter(
        model for at, model in zip(requests.times, requests.models, strict=True) if at >= WARMUP
    )
    return {
        model.name: counted[model.index] * SECOND / (ends[model.index] - WARMUP) for model in problem.models
    }


def stands(plan: Plan, problem: Problem) -> list[list[tuple[str, int]]]:
    """Return names and batch sizes, by GPU."""
    names = {model.index: model.name for model in problem.models}
    return [
        sorted((names[replica.model], replica.batch) for replica in plan.on_gpu(gpu.id))
        for gpu in problem.gpus
    ]


def bar(system: System, problem: Problem, requests: PlacementRequests, effort: Effort) -> dict[str, Any]:
    """Return one bar of a figure, as plain data."""
    plan = planned(system, problem, effort)
    evaluation = travelled(problem, plan, requests)
    return {
        "goodput": goodputs(requests, evaluation),
        "placement": stands(plan, problem),
        "promised": plan.attainment,
        "execution_ms": {
            model.name: model.stages["execution"].mean / MILLISECOND
            for model in evaluation.models
            if model.stages
        },
    }


def gpus_in_words(gpus: int | str) -> str:
    return f"{gpus} GPU" if int(gpus) == 1 else f"{gpus} GPUs"


def used(bar: Mapping[str, Any]) -> int:
    """Return how many GPUs serve any model."""
    return sum(bool(there) for there in bar["placement"])


def total(bar: Mapping[str, Any]) -> float:
    return float(sum(bar["goodput"].values()))


def of_ideal(bars: Mapping[str, Any], ideal: float) -> list[Row]:
    """Return shares of the ideal, which the thesis draws and does not print."""
    return [
        Row(f"{label}, {gpus_in_words(gpus)}: goodput of the ideal", total(there) / ideal)
        for label, by_gpus in bars.items()
        for gpus, there in by_gpus.items()
    ]


def sizes_of(bar: Mapping[str, Any], model: str) -> list[int]:
    return [batch for there in bar["placement"] for name, batch in there if name == model]
