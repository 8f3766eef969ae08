"""Trees of processes, read from /proc: who descends from whom, what they cost and how large they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Stat(NamedTuple):
    pid: int
    name: str
    parent: int
    cpu_s: float  # its own
    waited_s: float  # of children that it has waited for
    rss: int  # bytes


def stat(pid: int) -> Stat | None:
    """Return the state of a process; none if there is no such process (any more)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    f = text[text.rindex(")") + 2 :].split()
    own = int(f[11]) + int(f[12])
    waited = int(f[13]) + int(f[14])
    return Stat(pid, name, int(f[1]), own / TICKS, waited / TICKS, int(f[21]) * PAGE)


def descendants(root: int) -> list[int]:
    """Return all processes below *root*, parents before their children."""
    children: dict[int, list[int]] = {}
    for folder in os.listdir("/proc"):
        if folder.isdigit() and (process := stat(int(folder))):
            children.setdefault(process.parent, []).append(process.pid)
    below = list(children.get(root, []))
    for pid in below:  # grows while it is walked
        below += children.get(pid, [])
    return below


class Tree:
    """A command and everything below it, under a keeper that ends all of it."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._keeper = subprocess.Popen(
                [sys.executable, str(HERE / "keeper.py"), *command],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def alive(self) -> bool:
        return self._keeper.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def stats(self) -> list[Stat]:
        return [process for pid in descendants(self._keeper.pid) if (process := stat(pid))]

    def cpu_s(self) -> float:
        """Return the CPU seconds of all processes, dead ones included if their parents waited for them."""
        keeper = stat(self._keeper.pid)
        return sum(s.cpu_s + s.waited_s for s in self.stats()) + (keeper.waited_s if keeper else 0.0)

    def stop(self) -> None:
        if self.alive:
            self._keeper.terminate()
        self._keeper.wait()
