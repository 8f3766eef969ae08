"""A plan is what a placement policy answers: replicas, and what it could not place and why."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from astrarium.core.errors import BrokenBooks, InputError, one_of
from astrarium.core.quantities import write_bytes
from astrarium.placement.problem import ALONE, PlacedModel, Problem, Shape

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
    try:
        check_possible(plan, problem)
    except InputError as error:
        raise BrokenBooks(f"the plan of {plan.policy}: {error}") from None


def check_possible(plan: Plan, problem: Problem) -> None:
    """Raise an InputError with the field of a plan, as a file has it, that does not go with the problem."""
    models = {model.index: model for model in problem.models}
    for place, replica in enumerate(plan.replicas):
        _check_replica(replica, f"replicas[{place}]", models, problem)
    if plan.attainment is not None and not 0 <= plan.attainment <= 1:
        raise InputError("attainment", plan.attainment, "a share from 0 to 1")
    _check_models(plan, models)
    _check_memory(plan, problem)
    _check_shares(plan, problem)


def _check_replica(replica: Replica, field: str, models: Mapping[int, PlacedModel], problem: Problem) -> None:
    model = models.get(replica.model)
    if model is None:
        raise InputError(f"{field}.model", replica.model, "a model that is there")
    if replica.shape not in model.forms:
        known = one_of([str(shape) for shape in sorted(model.forms)], str(replica.shape))
        raise InputError(
            f"{field}.shape", str(replica.shape), f"a shape that {model.name} can run in: {known}"
        )
    _check_gpus(replica.gpus, replica.shape, f"{field}.gpus", problem)
    largest = model.forms[replica.shape].max_batch
    if not 1 <= replica.batch <= largest:
        raise InputError(f"{field}.batch", replica.batch, f"1 to {largest}, as {model.name} can run")
    if not 0 < replica.share <= 1:
        raise InputError(f"{field}.share", replica.share, "a share above 0 and up to 1")


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
    return one_of([str(number) for number in known])


def _check_models(plan: Plan, models: Mapping[int, PlacedModel]) -> None:
    """Check that every model is placed or missing, and none is both."""
    placed = {replica.model for replica in plan.replicas}
    for index, model in models.items():
        if index in placed and index in plan.missing:
            raise InputError(f"missing.{model.name}", plan.missing[index], "no such entry: it has a replica")
        if index not in placed and index not in plan.missing:
            expected = f"a replica of {model.name}, or an entry under `missing` that says why there is none"
            raise InputError("replicas", None, expected)
    if strangers := sorted(plan.missing.keys() - models.keys()):
        raise InputError("missing", strangers, "models that somebody asked for")


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
