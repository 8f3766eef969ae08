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
