"""A plan in a file is plain data: models by name, shapes as op2pp4. Reading checks it against a problem."""

from __future__ import annotations

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.placement.plan import Plan, Replica, check_possible
from astrarium.placement.problem import ALONE, PlacedModel, Problem, parse_shape


class ReplicaEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str
    gpus: tuple[int, ...]
    shape: str = str(ALONE)
    batch: int = 1
    share: float = 1.0
    why: str = ""


class PlanEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan's file says this, models by name and nothing checked yet: `read` holds it against a problem."""

    policy: str
    replicas: tuple[ReplicaEntry, ...]
    missing: dict[str, str] = {}
    attainment: float | None = None


def written(plan: Plan, problem: Problem) -> PlanEntry:
    names = {model.index: model.name for model in problem.models}
    replicas = tuple(
        ReplicaEntry(names[one.model], one.gpus, str(one.shape), one.batch, one.share, one.why)
        for one in plan.replicas
    )
    missing = {names[index]: why for index, why in plan.missing.items()}
    return PlanEntry(plan.policy, replicas, missing, plan.attainment)


def read(entry: PlanEntry, problem: Problem) -> Plan:
    """Return the plan of a file; InputError names the field that does not go with the problem."""
    models = {model.name: model for model in problem.models}
    replicas = tuple(
        Replica(
            _model(one.model, f"replicas[{place}].model", models).index,
            one.gpus,
            parse_shape(one.shape, f"replicas[{place}].shape"),
            one.batch,
            one.share,
            one.why,
        )
        for place, one in enumerate(entry.replicas)
    )
    missing = {_model(name, f"missing.{name}", models).index: why for name, why in entry.missing.items()}
    plan = Plan(entry.policy, replicas, missing, entry.attainment)
    check_possible(plan, problem)
    return plan


def _model(name: str, field: str, models: dict[str, PlacedModel]) -> PlacedModel:
    if name not in models:
        raise InputError(field, name, f"a model of the scenario: {one_of(list(models), name)}")
    return models[name]
