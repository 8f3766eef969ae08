"""NVIDIA's MPS lets kernels of several processes run at the same time instead of in turns.

A daemon that is there already (the user's, or the machine's) is used. Otherwise the first launcher starts one
in the private folder; it stays for later launchers, until `stop`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

CONTROL = "nvidia-cuda-mps-control"
PIPE = "CUDA_MPS_PIPE_DIRECTORY"
LOG = "CUDA_MPS_LOG_DIRECTORY"
MACHINES_PIPE = "/tmp/nvidia-mps"  # where clients look unless told otherwise
PATIENCE = 20.0
# The daemon is not a client of the gate, and serves every GPU: its clients choose theirs.
NOT_THE_DAEMONS = ("LD_PRELOAD", "CUDA_VISIBLE_DEVICES")


class Mps(NamedTuple):
    """MPS runs or not; *variables* are what clients need to find it."""

    running: bool
    description: str
    variables: dict[str, str]


class Daemon:
    """A daemon listens, or would listen, in the folders of *variables*."""

    def __init__(self, control: str, environ: Mapping[str, str], variables: dict[str, str]) -> None:
        own = {name: value for name, value in environ.items() if name not in NOT_THE_DAEMONS}
        self._control = control
        self.variables = variables
        self._environ = own | variables

    def answers(self) -> bool:
        return self._ask("get_server_list")

    def quit(self) -> bool:
        return self._ask("quit")

    def _ask(self, question: str) -> bool:
        if not Path(self._environ[PIPE]).is_dir():
            return False  # no daemon was ever there
        try:
            answer = subprocess.run(
                [self._control],
                input=f"{question}\n",
                env=self._environ,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return answer.returncode == 0 and "Cannot find" not in answer.stdout + answer.stderr

    def start(self) -> str | None:
        """Start the daemon; return what went wrong, or None. It writes to a file: a pipe would stay open for
        as long as it lives."""
        for folder in self.variables.values():
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        written = Path(self.variables[LOG]) / "start.txt"
        try:
            code = self._detach(written)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        lines = written.read_text().strip().splitlines()
        return None if code == 0 else (lines[-1] if lines else f"{CONTROL} answered {code}")

    def _detach(self, written: Path) -> int:
        with written.open("w") as log:
            return subprocess.run(
                [self._control, "-d"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ,
                start_new_session=True,
                timeout=PATIENCE,
            ).returncode


def start(home: Path, environ: Mapping[str, str] = os.environ) -> Mps:
    """Return the daemon that is there, or one that is started now."""
    state, daemon = _state_and_daemon(home, environ)
    if daemon is None:
        return state
    with _alone(home):
        if daemon.answers():
            return Mps(True, "MPS", daemon.variables)
        problem = daemon.start()
    return (
        Mps(False, f"no MPS: {problem}", {}) if problem else Mps(True, "MPS, started now", daemon.variables)
    )


def status(home: Path, environ: Mapping[str, str] = os.environ) -> Mps:
    """Return the state of MPS without starting anything."""
    state, daemon = _state_and_daemon(home, environ)
    return Mps(True, "MPS", daemon.variables) if daemon is not None and daemon.answers() else state


def _state_and_daemon(home: Path, environ: Mapping[str, str]) -> tuple[Mps, Daemon | None]:
    """Return the state of MPS without a daemon of ours, and ours where there could be one."""
    control = _control(environ)
    if control is None:
        return Mps(False, f"no MPS: {CONTROL} is not installed", {}), None
    present = _present(control, environ)
    return (Mps(False, "no MPS", {}), _ours(control, environ, home)) if present is None else (present, None)


def without(home: Path) -> Mps:
    """Return variables with which clients find no daemon, also where this machine has one."""
    return Mps(False, "no MPS: not wanted", {PIPE: str(home / "no-mps")})


def stop(home: Path, environ: Mapping[str, str] = os.environ) -> bool:
    """End the daemon of the private folder; tell whether there was one."""
    control = _control(environ)
    if control is None:
        return False
    with _alone(home):
        daemon = _ours(control, environ, home)
        return daemon.answers() and daemon.quit()


def _control(environ: Mapping[str, str]) -> str | None:
    return shutil.which(CONTROL, path=environ.get("PATH"))


def _ours(control: str, environ: Mapping[str, str], home: Path) -> Daemon:
    folder = home / "mps"
    return Daemon(control, environ, {PIPE: str(folder / "pipe"), LOG: str(folder / "log")})


def _present(control: str, environ: Mapping[str, str]) -> Mps | None:
    """Return a daemon that is not ours: named by the environment, or in the usual place."""
    pipe = environ.get(PIPE)
    if Daemon(control, environ, {PIPE: pipe or MACHINES_PIPE}).answers():
        return Mps(True, f"MPS of {pipe or 'this machine'}", {PIPE: pipe or MACHINES_PIPE})
    return Mps(False, f"no MPS: no daemon answers in {pipe}", {}) if pipe else None


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Let in one launcher at a time; the lock goes with the process that holds it."""
    (home / "mps").mkdir(mode=0o700, exist_ok=True)
    with (home / "mps" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
