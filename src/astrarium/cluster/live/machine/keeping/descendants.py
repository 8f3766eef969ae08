"""All that a process has started can be ended from here, wherever it has hidden.

A keeper is the parent of whatever its job leaves behind, so nothing of a job is anywhere but below it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

MOST_AT_ONCE = 400  # processes that are ended, or reaped, at one look; those are held by descriptors


def only_dead_are_left() -> bool:
    """Return whether all children of ours are dead, and so is whatever they had started.

    A child that dies leaves us its own children, perhaps after we asked for ours: so who is known to be dead
    must still be all there is.
    """
    dead = {child for child in _own_children() if _is_dead(child)}
    return dead.issuperset(_own_children())


def _own_children() -> list[int]:
    with contextlib.ExitStack() as held:
        return _children(os.getpid(), _held(os.getpid(), held))


def _is_dead(process: int) -> bool:
    """Return whether a child of ours runs no longer, in none of its threads; nobody has reaped it yet."""
    try:
        tasks = [Path("/proc", str(process), "task", name) for name in os.listdir(f"/proc/{process}/task")]
        states = [(task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] for task in tasks]
    except OSError:  # it is ending just now
        return False
    return all(state in "ZX" for state in states)


def end_descendants() -> None:
    """End the processes below this one, those nearest to it first; of very many, some at a time.

    The number of a process may be another's by the time that it is ended. So each is held by its folder in
    /proc, which stays that of one process, and counts only if it is still a child of its parent then.
    """
    with contextlib.ExitStack() as held:
        processes = [(os.getpid(), _held(os.getpid(), held))]
        for process, folder in processes:
            some = _children(process, folder)[: MOST_AT_ONCE - len(processes)]
            children = [(child, _held(child, held)) for child in some]
            still = set(_children(process, folder))
            processes += [child for child in children if child[0] in still]
            if process != os.getpid():
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(folder, signal.SIGKILL)


def _held(process: int, held: contextlib.ExitStack) -> int:
    """Return the folder of a process in /proc, held open; none, -1, of one that is gone."""
    try:
        folder = os.open(f"/proc/{process}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1
    held.callback(os.close, folder)
    return folder


def _children(process: int, folder: int) -> list[int]:
    """Return the children of a process, as the kernel tells."""
    try:
        file = os.open(f"task/{process}/children", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:  # it is gone, or a kernel that does not tell
        return [child for child, parent in _parents() if parent == process] if process == os.getpid() else []
    except OSError:
        return []
    with open(file, "rb", buffering=0) as opened, contextlib.suppress(OSError):
        return [int(number) for number in opened.read().split()]
    return []


def _parents() -> Iterator[tuple[int, int]]:
    """Yield every process with its parent."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            status = Path("/proc", name, "stat").read_text(errors="replace")
            yield int(name), int(status.rpartition(")")[2].split()[1])
