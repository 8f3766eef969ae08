"""The folder of the cluster of faults.py: what all can read, what nobody may touch, a disk of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from _fault_laws import Seen, state
from _fault_users import USERS

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what all benchmarks share

from _measure import ROOT
from astrarium.cluster.live.machine.owners import NO_GROUP

SMALL_MB = 48  # the disk of jobs
PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")


@contextmanager
def cluster_place() -> Iterator[Path]:
    """Hand out a folder that everybody can pass, with a copy of the package that everybody can read."""
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as name:
        place = Path(name)
        place.chmod(0o755)
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / "src" / "astrarium", place / "package" / "astrarium", ignore=ignored)
        shutil.copy(Path(__file__).with_name("_fault_job.py"), place / "job.py")
        subprocess.run(("chmod", "-R", "a+rX", str(place)), check=True)
        yield place


class GuardedFiles:
    """Files that nobody may read or change, each with a token in it that must appear nowhere else."""

    def __init__(self, place: Path, token: str) -> None:
        self._places = [place / "canary", *(place / f"home-{user}" for user in USERS)]
        for user in USERS:
            for kind in ("home", "seen"):
                (place / f"{kind}-{user}").mkdir(mode=0o700)
                os.chown(place / f"{kind}-{user}", user, -1)
        for path in (place / "canary", *(place / f"home-{user}" / "precious" for user in USERS)):
            path.write_text(token)
            path.chmod(0o600)
        self._before = self._state()

    def touched(self) -> int:
        """Return how many have been read, changed or added since."""
        now = self._state()
        changed = sum(now.get(name) != seen for name, seen in self._before.items())
        return changed + len(now.keys() - self._before)

    def _state(self) -> Seen:
        return {name: seen for place in self._places for name, seen in state(place).items()}


def make_marks(place: Path, gpus: int) -> None:
    """Make the files that a job locks while it holds a GPU, a file for each, which all jobs can write."""
    (place / "marks").mkdir()
    for gpu in range(gpus):
        (place / "marks" / f"gpu-{gpu}").touch()
        (place / "marks" / f"gpu-{gpu}").chmod(0o666)


def reachable_python(place: Path) -> str:
    """Return a Python that users can run, and that can run their jobs."""
    words = ("-c", "import astrarium.cluster_job")
    for python in (sys.executable, *PYTHONS):
        with suppress(OSError):
            done = subprocess.run(
                (python, *words), user=next(iter(USERS)), group=NO_GROUP, extra_groups=[], cwd="/",
                env={"PYTHONPATH": str(place / "package")}, capture_output=True,
            )  # fmt: skip
            if done.returncode == 0:
                return python
    sys.exit(f"users need a Python of 3.11 or newer that they can reach: none of {', '.join(PYTHONS)} is one")


def mounted(folder: Path) -> bool:
    """Return whether a small file system could be made; without one, no disk is full."""
    folder.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", f"size={SMALL_MB}m,mode=755", "tmpfs", str(folder))
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        print(f"nobody here may mount a small file system, and no disk is full: {done.stderr.strip()}")
    return done.returncode == 0
