"""A plan is what a placement policy answers: replicas, and what it could not place and why."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from astrarium.core.errors import BrokenBooks, InputError, one_of
from astrarium.core.quantities import write_bytes
from astrarium.placement.problem import ALONE, Form, PlacedModel, Problem, Shape

ROUNDING = 1e-9  # shares are sums of floats


class Replica(msgspec.Struct, frozen=True):
    """A replica is a model on some GPUs: *gpus* in the order of its stages, those of a stage together.

    *batch* is the largest it runs, *share* the part of each GPU's SMs that it may use. *why* is for people.
    """

    model: int
    gpus: tuple[int, ...]
    shape: Shape = ALONE
    batch: int = 1
    share: float = 1.0
    why: str = ""


class Plan(msgspec.Struct, frozen=True):
    """A plan has replicas; *missing* says for each model without one what it would have taken.

    *attainment* is what the policy expects, from 0 to 1, where it has an opinion.
    """

    policy: str
    replicas: tuple[Replica, ...]
    missing: dict[int, str] = {}
    attainment: float | None = None

    def of_model(self, model: int) -> Iterator[Replica]:
        return (replica for replica in self.replicas if replica.model == model)

    def on_gpu(self, gpu: int) -> Iterator[Replica]:
        return (replica for replica in self.replicas if gpu in replica.gpus)

    def gpus(self) -> set[int]:
        """Return the GPUs in use."""
        return {gpu for replica in self.replicas for gpu in replica.gpus}


def stage_of(replica: Replica, gpu: int) -> int:
    return replica.gpus.index(gpu) // replica.shape.operators


def memory_on(plan: Plan, problem: Problem, gpu: int) -> int:
    """Return the bytes that the plan puts on a GPU. Stages of one pipeline lie on different GPUs."""
    forms = {model.index: model.forms for model in problem.models}
    return sum(
        forms[replica.model][replica.shape].memory(stage_of(replica, gpu), replica.batch)
        for replica in plan.on_gpu(gpu)
    )


def shares_on(plan: Plan, gpu: int) -> list[float]:
    return [replica.share for replica in plan.on_gpu(gpu)]


def shares_fit(shares: Collection[float]) -> bool:
    """Whether replicas fit on a GPU: those that have all of it take turns, parts add up to at most 1."""
    return all(share == 1 for share in shares) or sum(shares) <= 1 + ROUNDING


def check(plan: Plan, problem: Problem) -> None:
    """Check that a policy's plan is possible."""
    known = {model.index: model for model in problem.models}
    gpus = {gpu.id for gpu in problem.gpus}
    for replica in plan.replicas:
        if replica.model not in known:
            raise BrokenBooks(f"{replica}: a model that is not there")
        _check_replica(replica, known[replica.model].forms, gpus)
    for gpu in problem.gpus:
        used = memory_on(plan, problem, gpu.id)
        if used > gpu.memory:
            raise BrokenBooks(f"GPU {gpu.id} has {gpu.memory} bytes, and the plan puts {used} on it")
        if not shares_fit(shares := shares_on(plan, gpu.id)):
            raise BrokenBooks(f"GPU {gpu.id}: shares of {shares} are more than all of it")
    _check_missing(plan, known)


def _check_replica(replica: Replica, forms: Mapping[Shape, Form], gpus: Collection[int]) -> None:
    if replica.shape not in forms or len(replica.gpus) != replica.shape.gpus:
        raise BrokenBooks(f"{replica}: the model cannot run in this shape")
    if not set(replica.gpus) <= set(gpus) or len(set(replica.gpus)) != len(replica.gpus):
        raise BrokenBooks(f"{replica}: GPUs that are not there, or one of them twice")
    largest = forms[replica.shape].max_batch
    if not 0 < replica.share <= 1 or not 1 <= replica.batch <= largest:
        raise BrokenBooks(f"{replica}: a share in (0, 1] and batches of 1 to {largest}")


def _check_missing(plan: Plan, known: Mapping[int, PlacedModel]) -> None:
    """Check that every model is placed or missing, and none is both."""
    placed = {replica.model for replica in plan.replicas}
    for lost, why in (
        (known.keys() - placed - plan.missing.keys(), "neither placed nor said to be missing"),
        (placed & plan.missing.keys(), "placed and said to be missing"),
    ):
        if lost:
            raise BrokenBooks(f"{why}: {', '.join(known[index].name for index in sorted(lost))}")
    if strangers := sorted(plan.missing.keys() - known.keys()):
        raise BrokenBooks(f"said to be missing, and nobody asked for them: {strangers}")


# Plans as plain data, for files: models by name, shapes as op2pp4. Reading checks them against a problem.


_SHAPE = re.compile(r"op([1-9]\d*)pp([1-9]\d*)\Z")
SHAPE_FORM = "a shape such as op2pp4: 4 stages, each over 2 GPUs"


class ReplicaEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str
    gpus: tuple[int, ...]
    shape: str = str(ALONE)
    batch: int = 1
    share: float = 1.0
    why: str = ""


class PlanEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan entry is a plan as a file has it."""

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
        _replica(one, f"replicas[{place}]", models, problem) for place, one in enumerate(entry.replicas)
    )
    for name in entry.missing:
        _model(name, f"missing.{name}", models)
    missing = {models[name].index: why for name, why in entry.missing.items()}
    if entry.attainment is not None and not 0 <= entry.attainment <= 1:
        raise InputError("attainment", entry.attainment, "a share from 0 to 1")
    plan = Plan(entry.policy, replicas, missing, entry.attainment)
    _check_models(plan, problem)
    _check_memory(plan, problem)
    _check_shares(plan, problem)
    return plan


def parse_shape(text: str, field: str) -> Shape:
    found = _SHAPE.match(text)
    if found is None:
        raise InputError(field, text, SHAPE_FORM)
    return Shape(stages=int(found[2]), operators=int(found[1]))


def _replica(one: ReplicaEntry, field: str, models: dict[str, PlacedModel], problem: Problem) -> Replica:
    model = _model(one.model, f"{field}.model", models)
    shape = parse_shape(one.shape, f"{field}.shape")
    if shape not in model.forms:
        known = one_of([str(each) for each in sorted(model.forms)], one.shape)
        raise InputError(f"{field}.shape", one.shape, f"a shape that {model.name} can run in: {known}")
    _check_gpus(one.gpus, shape, f"{field}.gpus", problem)
    largest = model.forms[shape].max_batch
    if not 1 <= one.batch <= largest:
        raise InputError(f"{field}.batch", one.batch, f"1 to {largest}, as {model.name} can run")
    if not 0 < one.share <= 1:
        raise InputError(f"{field}.share", one.share, "a share above 0 and up to 1")
    return Replica(model.index, tuple(one.gpus), shape, one.batch, one.share, one.why)


def _model(name: str, field: str, models: dict[str, PlacedModel]) -> PlacedModel:
    if name not in models:
        raise InputError(field, name, f"a model of the scenario: {one_of(list(models), name)}")
    return models[name]


def _check_gpus(gpus: Sequence[int], shape: Shape, field: str, problem: Problem) -> None:
    known = [gpu.id for gpu in problem.gpus]
    for place, gpu in enumerate(gpus):
        if gpu not in known:
            raise InputError(f"{field}[{place}]", gpu, f"a GPU of the cluster: {_numbers(known)}")
        if gpu in gpus[:place]:
            raise InputError(f"{field}[{place}]", gpu, "another GPU: it stands in the list already")
    if len(gpus) != shape.gpus:
        raise InputError(field, list(gpus), f"{shape.gpus} GPUs, as {shape} says")


def _numbers(known: list[int]) -> str:
    if known and known == list(range(known[0], known[-1] + 1)):
        return f"{known[0]} to {known[-1]}"
    return one_of([str(each) for each in known])


def _check_models(plan: Plan, problem: Problem) -> None:
    placed = {replica.model for replica in plan.replicas}
    for model in problem.models:
        if model.index in placed and model.index in plan.missing:
            raise InputError(
                f"missing.{model.name}", plan.missing[model.index], "no such entry: it has a replica"
            )
        if model.index not in placed and model.index not in plan.missing:
            expected = f"a replica of {model.name}, or an entry under `missing` that says why there is none"
            raise InputError("replicas", None, expected)


def _check_memory(plan: Plan, problem: Problem) -> None:
    """Check memory in the order of the file, so that the first replica that finds no room is named."""
    left = {gpu.id: gpu.memory for gpu in problem.gpus}
    forms = {model.index: model.forms for model in problem.models}
    for place, replica in enumerate(plan.replicas):
        for gpu in replica.gpus:
            needed = forms[replica.model][replica.shape].memory(stage_of(replica, gpu), replica.batch)
            if needed > left[gpu]:
                room = f"at most {write_bytes(left[gpu])} on GPU {gpu}, what the replicas before it leave"
                raise InputError(f"replicas[{place}]", write_bytes(needed), room)
            left[gpu] -= needed


def _check_shares(plan: Plan, problem: Problem) -> None:
    for gpu in problem.gpus:
        if not shares_fit(shares_on(plan, gpu.id)):
            place, last = [(at, one) for at, one in enumerate(plan.replicas) if gpu.id in one.gpus][-1]
            others = round(sum(shares_on(plan, gpu.id)) - last.share, 9)
            expected = f"a share that goes with the {others:g} that others have of GPU {gpu.id}: 1 in all"
            raise InputError(f"replicas[{place}].share", last.share, expected)
