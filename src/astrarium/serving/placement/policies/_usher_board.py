"""Who stands where while Usher places a group: what is left of each GPU, and which GPU comes next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from astrarium.serving.placement.policies._requirements import WHOLE, Needs, Option

HEAVY = 1.2  # times the other resource


class Choice(msgspec.Struct, frozen=True):
    """A model's part of a configuration: so many replicas with batches of a size."""

    needs: Needs
    option: Option
    replicas: int

    @property
    def goodput(self) -> int:
        return self.of(self.replicas)

    def of(self, replicas: int) -> int:
        """No model gives more than is asked of it."""
        return min(self.needs.rate, replicas * self.option.goodput)


class Board:
    """*begun* are GPUs that somebody stands on, *ours* those of the present group."""

    def __init__(self, memory: Sequence[int]) -> None:
        self.compute = [WHOLE] * len(memory)
        self.memory = list(memory)
        self.begun = [False] * len(memory)
        self.ours: set[int] = set()

    def copy(self) -> Board:
        twin = Board.__new__(Board)
        twin.compute, twin.memory = self.compute.copy(), self.memory.copy()
        twin.begun, twin.ours = self.begun.copy(), self.ours.copy()
        return twin

    def used(self) -> int:
        return sum(self.begun)

    def put(self, choice: Choice) -> list[int]:
        """Its replicas, each on another GPU, as many as there is room for: their GPUs."""
        placed: list[int] = []
        for gpu in self._in_order():
            if len(placed) == choice.replicas:
                break
            if self._fits(choice.option, gpu):
                self._take(choice.option, gpu)
                placed.append(gpu)
        return placed

    def _in_order(self) -> Iterator[int]:
        """GPUs of the same group, then those that others have begun, then new ones."""
        count = range(len(self.memory))
        ours = [gpu for gpu in count if gpu in self.ours]
        begun = [gpu for gpu in count if self.begun[gpu] and gpu not in self.ours]
        new = [gpu for gpu in count if not self.begun[gpu]]
        return iter(ours + begun + new)

    def _fits(self, option: Option, gpu: int) -> bool:
        return option.compute <= self.compute[gpu] and option.memory <= self.memory[gpu]

    def _take(self, option: Option, gpu: int) -> None:
        self.compute[gpu] -= option.compute
        self.memory[gpu] -= option.memory
        self.begun[gpu] = True
        self.ours.add(gpu)


def placing_order(choices: Sequence[Choice]) -> list[Choice]:
    """Memory- and compute-heavy models by turns, the neutral ones last; the most demanding of each first."""
    ranked = sorted(choices, key=lambda choice: -(choice.option.compute + choice.option.memory_share))
    by_memory = [choice for choice in ranked if is_memory_heavy(choice.option)]
    by_compute = [choice for choice in ranked if is_compute_heavy(choice.option)]
    neutral = [choice for choice in ranked if choice not in by_memory and choice not in by_compute]
    return _by_turns(by_memory, by_compute) + neutral


def is_memory_heavy(option: Option) -> bool:
    return option.memory_share >= HEAVY * option.compute


def is_compute_heavy(option: Option) -> bool:
    return option.compute >= HEAVY * option.memory_share


def _by_turns(first: list[Choice], second: list[Choice]) -> list[Choice]:
    both = min(len(first), len(second))
    turns = [choice for pair in zip(first[:both], second[:both], strict=True) for choice in pair]
    return turns + first[both:] + second[both:]
