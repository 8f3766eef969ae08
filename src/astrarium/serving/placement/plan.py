"""What a placement policy answers: replicas, and what it could not place and why."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from astrarium.core.errors import BrokenBooks
from astrarium.serving.placement.problem import ALONE, Problem, Shape


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


def check(plan: Plan, problem: Problem) -> None:
    """Whatever a policy answers must be possible."""
    known = {model.index: model for model in problem.models}
    gpus = {gpu.id: gpu for gpu in problem.gpus}
    for replica in plan.replicas:
        _check_replica(replica, known[replica.model].forms.keys(), gpus.keys())
    for gpu in problem.gpus:
        used = memory_on(plan, problem, gpu.id)
        if used > gpu.memory:
            raise BrokenBooks(f"GPU {gpu.id} has {gpu.memory} bytes, and the plan puts {used} on it")
    lost = known.keys() - {replica.model for replica in plan.replicas} - plan.missing.keys()
    if lost:
        names = ", ".join(known[index].name for index in sorted(lost))
        raise BrokenBooks(f"neither placed nor said to be missing: {names}")


def _check_replica(replica: Replica, shapes: Collection[Shape], gpus: Collection[int]) -> None:
    if replica.shape not in shapes or len(replica.gpus) != replica.shape.gpus:
        raise BrokenBooks(f"{replica}: the model cannot run in this shape")
    if not set(replica.gpus) <= set(gpus) or len(set(replica.gpus)) != len(replica.gpus):
        raise BrokenBooks(f"{replica}: GPUs that are not there, or one of them twice")
    if not 0 < replica.share <= 1 or replica.batch < 1:
        raise BrokenBooks(f"{replica}: a share in (0, 1] and batches of at least 1")
