"""What the benchmarks of our own server share: its metrics, its workers, and a goodput to measure against."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from _shared import say
from peers import Running
from processes import Stat
from search import Plan, goodput

LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")


def metrics(url: str, headers: Mapping[str, str] = MappingProxyType({})) -> dict[str, float]:
    """Return each metric summed over its labels (`name`), and by each label alone (`name{label="value"}`)."""
    request = urllib.request.Request(f"{url}/metrics", headers=dict(headers))
    with urllib.request.urlopen(request, timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    values: dict[str, float] = {}
    for match in filter(None, map(LINE.match, lines)):
        name = match[1]
        labels = match[2] or ""
        value = float(match[3])
        for key in (name, *(f"{name}{{{label}}}" for label in labels.split(",") if label)):
            values[key] = values.get(key, 0.0) + value
    return values


def grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def workers(server: Running) -> list[Stat]:
    """Return the worker processes of a server, one for each GPU, oldest first; the one in reserve is none of
    them."""
    processes = [process for process in server.tree.stats() if "live.worker" in command_line(process.pid)]
    return [process for process in processes if not is_reserve(process.pid)]


def is_reserve(pid: int) -> bool:
    """Return whether a worker process has no place yet: neither among its arguments nor in its name."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return len(command_line(pid).split()) < 8 and not name.startswith("astra-gpu")


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def reached(server: Running, gpus: int, known: float | None) -> float:
    """Return the goodput that shares are taken of: as given, or by a quick search now."""
    if known:
        return known
    rate = goodput(server, 300.0 * gpus, Plan(seconds=4.0, tolerance=0.03, repeats=1)).median
    say(f"goodput with {gpus} GPU{'s' * (gpus > 1)}: about {rate:.0f} requests/s")
    if not rate:
        raise SystemExit("the server has no goodput to measure against; is the machine busy?")
    return rate
