"""A trial as the tuning level knows it: some iterations of one candidate, as a member of a group."""

from __future__ import annotations

import msgspec


class Trial(msgspec.Struct, frozen=True, gc=False):
    """A candidate (a choice of hyperparameters) trains for so many iterations, from where its last one ended.

    A group is what a search algorithm wants to know together before it goes on, such as a rung of successive
    halving: it is done when its last trial is.
    """

    id: int
    group: int
    candidate: int
    iterations: int
    begins: int = 0  # iterations that are in the checkpoint it begins with; 0: there is none
    source: int | None = (
        None  # the candidate whose checkpoint that is, where it is not its own: the one it had
    )
    # after `begins` iterations, for it may be training on already

    @property
    def total(self) -> int:
        """Iterations that are in the checkpoint it ends with."""
        return self.begins + self.iterations
