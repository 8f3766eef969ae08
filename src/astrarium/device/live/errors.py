"""Errors and warnings of a shared GPU name the job and say why."""

from __future__ import annotations

from astrarium.core.errors import AstrariumError


class JobEnded(AstrariumError):
    """The job is over: it was refused or withdrawn, or has failed."""


class OutOfTurn(AstrariumError):
    """A job's iterations do not follow one another in its one thread."""


class MemoryWarning(UserWarning):
    """A job keeps more memory, or takes more of its lane, than was known of it."""


def described(error: BaseException) -> str:
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
