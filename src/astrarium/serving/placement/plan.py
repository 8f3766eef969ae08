"""What a placement policy answers: replicas, and what it could not place and why."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from astrarium.core.errors import BrokenBooks
from astrarium.serving.placement.problem import ALONE, Form, PlacedModel, Problem, Shape

ROUNDING = 1e-9  # shares are sums of floats


class Replica(msgspec.Struct, frozen=True):
    """A model on some GPUs: *gpus* in the order of its stages, those of a stage together.

    *batch* is the largest it runs, *share* the part of each GPU's SMs that it may use. *why* is for people.
    """

    model: int
    gpus: tuple[int, ...]
    shape: Shape = ALONE
    batch: int = 1
    share: float = 1.0
    why: str = ""


class Plan(msgspec.Struct, frozen=True):
    """*missing* says for each model without a replica what it would have taken. *attainment* is what the
    policy expects, from 0 to 1, where it has an opinion."""

    policy: str
    replicas: tuple[Replica, ...]
    missing: dict[int, str] = {}
    attainment: float | None = None

    def of_model(self, model: int) -> Iterator[Replica]:
        return (replica for replica in self.replicas if replica.model == model)

    def on_gpu(self, gpu: int) -> Iterator[Replica]:
        return (replica for replica in self.replicas if gpu in replica.gpus)

    def gpus(self) -> set[int]:
        """Those in use."""
        return {gpu for replica in self.replicas for gpu in replica.gpus}


def stage_of(replica: Replica, gpu: int) -> int:
    return replica.gpus.index(gpu) // replica.shape.operators


def memory_on(plan: Plan, problem: Problem, gpu: int) -> int:
    """Bytes that the plan puts on a GPU. Stages of one pipeline lie on different GPUs."""
    forms = {model.index: model.forms for model in problem.models}
    return sum(
        forms[replica.model][replica.shape].memory(stage_of(replica, gpu), replica.batch)
        for replica in plan.on_gpu(gpu)
    )


def shares_on(plan: Plan, gpu: int) -> list[float]:
    return [replica.share for replica in plan.on_gpu(gpu)]


def shares_fit(shares: Collection[float]) -> bool:
    """Replicas that have all of a GPU take turns; parts are had at the same time."""
    return all(share == 1 for share in shares) or sum(shares) <= 1 + ROUNDING


def check(plan: Plan, problem: Problem) -> None:
    """Whatever a policy answers must be possible."""
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
    """Every model is placed or missing, and never both."""
    placed = {replica.model for replica in plan.replicas}
    for lost, why in (
        (known.keys() - placed - plan.missing.keys(), "neither placed nor said to be missing"),
        (placed & plan.missing.keys(), "placed and said to be missing"),
    ):
        if lost:
            raise BrokenBooks(f"{why}: {', '.join(known[index].name for index in sorted(lost))}")
    if strangers := sorted(plan.missing.keys() - known.keys()):
        raise BrokenBooks(f"said to be missing, and nobody asked for them: {strangers}")
