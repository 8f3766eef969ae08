"""Two ways to say what may stand on GPUs, for the same program with the same best goodput."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

from astrarium.placement.policies._requirements import WHOLE, ModelNeeds
from astrarium.placement.policies.goodput_milp.program import GoodputProgram, Holding, Member

MIB = 2**20  # whole numbers: the solver's tolerance then admits nothing that does not fit

Contents = dict[int, list[tuple[int, int]]]  # by position of a GPU: position of a model, batch size


def by_gpu(needs: Sequence[ModelNeeds], memory: Sequence[int], most_replicas: int) -> GoodputProgram:
    holdings = [
        Holding(gpu, ((model, option),))
        for model, model_needs in enumerate(needs)
        for option in model_needs.usable
        for gpu in range(len(memory))
        if option.memory <= memory[gpu]
    ]
    program = GoodputProgram(needs, holdings, most_replicas)
    for gpu, room in enumerate(memory):
        _fit(program, gpu, room)
    return program


def _fit(program: GoodputProgram, gpu: int, memory: int) -> None:
    here = [(at, holding.members[0]) for at, holding in enumerate(program.holdings) if holding.place == gpu]
    program.keep({at: float(option.compute) for at, (_, option) in here}, float(WHOLE))
    program.keep({at: float(-(-option.memory // MIB)) for at, (_, option) in here}, float(memory // MIB))
    for model in range(len(program.needs)):
        program.keep({at: 1.0 for at, (other, _) in here if other == model}, 1.0)


def by_contents(
    needs: Sequence[ModelNeeds], memory: Sequence[int], most_replicas: int, most_sets: int
) -> GoodputProgram | None:
    """Return the program over sets of replicas on GPUs of equal memory; None if over *most_sets* sets."""
    holdings = [
        Holding(kind, members, memory.count(room))
        for kind, room in enumerate(kinds(memory))
        for members in islice(sets_that_fit(needs, room), most_sets + 1)
    ]
    if len(holdings) > most_sets:
        return None
    program = GoodputProgram(needs, holdings, most_replicas)
    for kind, room in enumerate(kinds(memory)):
        alike = {at: 1.0 for at, holding in enumerate(holdings) if holding.place == kind}
        program.keep(alike, float(memory.count(room)))
    return program


def kinds(memory: Sequence[int]) -> list[int]:
    return sorted(set(memory))


def sets_that_fit(needs: Sequence[ModelNeeds], memory: int) -> Iterator[tuple[Member, ...]]:
    """Yield the sets of replicas that fit on a GPU, with at most one of a model and at least one in all."""
    return islice(_sets(needs, 0, WHOLE, memory), 1, None)


def _sets(needs: Sequence[ModelNeeds], first: int, compute: int, memory: int) -> Iterator[tuple[Member, ...]]:
    yield ()
    for model in range(first, len(needs)):
        for option in needs[model].usable:
            if option.compute <= compute and option.memory <= memory:
                left = _sets(needs, model + 1, compute - option.compute, memory - option.memory)
                yield from (((model, option), *others) for others in left)


def contents_by_gpu(chosen: Sequence[Holding], memory: Sequence[int]) -> Contents:
    at_gpus: Contents = defaultdict(list)
    for holding in chosen:
        at_gpus[holding.place] += [(model, option.batch) for model, option in holding.members]
    return _in_order([(memory[gpu], sorted(there)) for gpu, there in at_gpus.items()], memory)


def contents_by_kind(chosen: Sequence[Holding], memory: Sequence[int]) -> Contents:
    room = kinds(memory)
    stands = [
        (room[holding.place], sorted((model, option.batch) for model, option in holding.members))
        for holding in chosen
    ]
    return _in_order(stands, memory)


def _in_order(stands: Sequence[tuple[int, list[tuple[int, int]]]], memory: Sequence[int]) -> Contents:
    """Sort GPUs that are alike by their contents, empty ones last, so that equal plans look equal."""
    ordered: Contents = {}
    for room in kinds(memory):
        alike = [gpu for gpu, capacity in enumerate(memory) if capacity == room]
        ordered.update(zip(alike, sorted(there for size, there in stands if size == room), strict=False))
    return ordered
