"""Jobs as processes of this machine, ordered without an arbiter."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from astrarium.cluster.live.backend import (
    Backend,
    JobCommand,
    MachineStatus,
    Order,
    RunKey,
    RunPart,
    RunStatus,
)
from astrarium.cluster.live.backends.local import LocalBackend
from tests.support.cluster.jobs import results


def words(script: Path, total: int = 20, pause: float = 0.01) -> tuple[str, ...]:
    return (sys.executable, str(script), str(total), str(pause))


def order(run: int, task: JobCommand, gpus: tuple[int, ...] = (0,), parts: tuple[RunPart, ...] = ()) -> Order:
    return Order(RunKey(0, 0, run), "app", gpus, parts or (RunPart("left", gpus),), task)


def backend(home: Path, grace: float = 20.0) -> LocalBackend:
    return LocalBackend(home, {"left": MachineStatus(2), "right": MachineStatus(2)}, grace)


def seen(
    one: Backend, run: int, until: Callable[[RunStatus], bool] = lambda run: bool(run.ended)
) -> RunStatus:
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        status = one.look().runs.get(RunKey(0, 0, run))  # another arbiter may first have to look for it
        if status is not None and until(status):
            return status
        time.sleep(0.02)
    raise AssertionError(one.look())


def result(home: Path) -> Any:
    [only] = results(home).values()
    return only
