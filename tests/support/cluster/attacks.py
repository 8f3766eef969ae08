"""What an attacker runs on a shared cluster of this machine, as a user who is a bare number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium.cluster.live.backend import JobCommand, MachineStatus
from astrarium.cluster.live.backends.local import LocalBackend
from tests.support.cluster.backend import order, seen
from tests.support.cluster.users import MALLORY

HEAD = "import json, os, pathlib, sys, time; at = pathlib.Path(os.environ['ASTRARIUM_FOLDER'])\n"


def evil(code: str, user: int = MALLORY, **options: Any) -> JobCommand:
    """Return a job of Mallory's."""
    words = ("/usr/bin/env", "python3", "-c", HEAD + code)
    return JobCommand(words, owner=str(user), directory="/", **options)


def machines(home: Path) -> LocalBackend:
    return LocalBackend(home, {"left": MachineStatus(2), "right": MachineStatus(2)}, grace=20.0)


def finished(home: Path, code: str, run: int = 1, user: int = MALLORY, **options: Any) -> LocalBackend:
    """Run a job of Mallory's, which must finish."""
    backend = machines(home)
    backend.start(order(run, evil(code, user, **options)))
    status = seen(backend, run)
    assert status.ended == "finished", status
    return backend
