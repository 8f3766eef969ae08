"""Two ways to say what may stand on GPUs, for the same program with the same best goodput.

`by_gpu` is the thesis's: a column for a model, a batch size and a GPU; the replicas of a GPU fit together.
GPUs that are alike make it slow, since any of them can stand for any other. `by_contents` has a column for
every set of replicas that fits on a GPU, and counts how many GPUs hold it. That is far quicker, as long as
the sets can be listed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

from astrarium.serving.placement.policies._goodput_program import Holding, Member, Program
from astrarium.serving.placement.policies._requirements import WHOLE, Needs

MIB = 2**20  # whole numbers: the solver's tolerance then admits nothing that does not fit

Contents = dict[int, list[tuple[int, int]]]  # by position of a GPU: position of a model, batch size


def by_gpu(needs: Sequence[Needs], memory: Sequence[int], most_replicas: int) -> Program:
    holdings = [
        Holding(gpu, ((model, option),))
        for model, each in enumerate(needs)
        for option in each.usable
        for gpu in range(len(memory))
        if option.memory <= memory[gpu]
    ]
    program = Program(needs, holdings, most_replicas)
    for gpu, room in enumerate(memory):
        _fit(program, gpu, room)
    return program


def _fit(program: Program, gpu: int, memory: int) -> None:
    here = [(at, holding.members[0]) for at, holding in enumerate(program.holdings) if holding.place == gpu]
    program.keep({at: float(option.compute) for at, (_, option) in here}, float(WHOLE))
    program.keep({at: float(-(-option.memory // MIB)) for at, (_, option) in here}, float(memory // MIB))
    for model in range(len(program.needs)):
        program.keep({at: 1.0 for at, (other, _) in here if other == model}, 1.0)


def by_contents(
    needs: Sequence[Needs], memory: Sequence[int], most_replicas: int, most_sets: int
) -> Program | None:
    """None where there are more than *most_sets* sets. GPUs with the same memory are alike."""
    holdings = [
        Holding(kind, members, memory.count(room))
        for kind, room in enumerate(kinds(memory))
        for members in islice(sets_that_fit(needs, room), most_sets + 1)
    ]
    if len(holdings) > most_sets:
        return None
    program = Program(needs, holdings, most_replicas)
    for kind, room in enumerate(kinds(memory)):
        alike = {at: 1.0 for at, holding in enumerate(holdings) if holding.place == kind}
        program.keep(alike, float(memory.count(room)))
    return program


def kinds(memory: Sequence[int]) -> list[int]:
    return sorted(set(memory))


def sets_that_fit(needs: Sequence[Needs], memory: int) -> Iterator[tuple[Member, ...]]:
    """With at most one replica of a model; the empty set is left out."""
    return islice(_sets(needs, 0, WHOLE, memory), 1, None)


def _sets(needs: Sequence[Needs], first: int, compute: int, memory: int) -> Iterator[tuple[Member, ...]]:
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
    """GPUs that are alike, in the order of what stands on them; empty ones last. Equal plans look equal."""
    ordered: Contents = {}
    for room in kinds(memory):
        alike = [gpu for gpu, each in enumerate(memory) if each == room]
        ordered.update(zip(alike, sorted(there for size, there in stands if size == room), strict=False))
    return ordered
