"""How a part of a run has ended, and with which error, by the exit codes that its keeper has left behind."""

from __future__ import annotations

import signal

import msgspec

from astrarium.cluster.live.backend import Ending
from astrarium.cluster.live.machine.keeping.runner import NOT_FOUND
from astrarium.cluster.live.machine.session import STOPPED


class Outcome(msgspec.Struct, frozen=True):
    """What a keeper has left behind: the exit codes of its processes, which of them failed *first*, and with
    which last *words*; *oom*: how many processes of the machine the kernel killed for memory meanwhile."""

    codes: list[int]
    asked: bool
    first: int
    oom: int = 0
    words: str = ""


def ending(outcome: Outcome | None) -> tuple[Ending, str]:
    """Return how a part of a run has ended, from what its keeper has left behind, and with which error."""
    if outcome is None:
        return "lost", "its keeper was killed"
    codes = outcome.codes
    if codes and all(code == 0 for code in codes):
        return "finished", ""
    if outcome.asked or not codes or all(code in (0, STOPPED) for code in codes):
        return "stopped", ""
    code = codes[outcome.first]
    words = outcome.words
    ended: Ending = "not found" if code == NOT_FOUND else "failed"
    return ended, f"{_exit(code)}{_memory(code, outcome.oom)}{f', {words}' if words else ''}"


def _exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _memory(code: int, oom: int) -> str:
    """Return what is known of a SIGKILL that nobody here has sent; a shell passes it on as a code."""
    if code not in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return ""
    return f" (out of memory: the kernel killed {oom} here meanwhile)" if oom else " (out of memory?)"
