"""A run's folder, a secret outside of it, and a limit of time for who reads what a job put there."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from astrarium.cluster.live.machine.keeping.job_files import (
    CHECKPOINT,
    PROGRESS,
)
from tests.support.cluster.strange_files import (
    SECRET,
)

LONGEST = 60  # seconds, far more than any of these tests takes


@pytest.fixture
def nothing_blocks() -> Iterator[None]:
    """End a test that waits for what never comes, such as the other end of a pipe."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it has not come back for {LONGEST} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with a secret to which links of a job lead."""
    path = tmp_path / "outside"
    (path / CHECKPOINT).mkdir(parents=True)
    for file in (path / "secret", path / CHECKPOINT / "weights", path / PROGRESS):
        file.write_bytes(SECRET)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "app" / "job-0" / "run-1"
    path.mkdir(parents=True)
    return path
