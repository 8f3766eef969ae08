"""A job that can tell whether anything of it was lost, a folder that nothing outlives, an echo to talk to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.echo import Echo
from tests.support.cluster.jobs import end_keepers

SUM = """\
import sys, time
from astrarium import cluster_job
total, pause = int(sys.argv[1]), float(sys.argv[2])
with cluster_job.session() as session:
    values = session.restore() or []
    for step in session.steps(total):
        time.sleep(pause)
        values.append(step * step)
        session.checkpoint(values)
    session.result({"sum": sum(values), "count": len(values)})
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "sum.py"
    path.write_text(SUM)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Any:
    yield tmp_path / "here.state"
    end_keepers(tmp_path / "here.state")


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """Folders of tests are for their user alone; somebody else must be able to pass."""
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o711)
    return tmp_path


@pytest.fixture
def echo() -> Iterator[Echo]:
    one = Echo()
    yield one
    one.listener.close()
