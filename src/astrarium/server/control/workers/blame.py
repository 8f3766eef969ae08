"""Who is to blame for a lost worker."""

from __future__ import annotations

from typing import NamedTuple


class Loss(NamedTuple):
    """How a worker was lost: *by_its_work*, as far as one can tell, and by which batch, if it named one."""

    reason: str
    by_its_work: bool
    tag: int = -1


class Blame(NamedTuple):
    """A model is to blame for a lost worker, which ran so many of its calls (0: it was loading it).

    It is not *certain* where somebody outside may have ended the worker.
    """

    model: int
    calls: int
    certain: bool = True
