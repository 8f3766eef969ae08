"""A Slurm for tests (see slurm_commands.py), whose nodes can be lost and whose controller can fall silent."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.live.backends.slurm import SlurmBackend
from tests.support.cluster.sites import slurm_commands


class FakeSlurm:
    """*nodes* by name, each with `gpus`, and maybe `state`, `gres`, `features` and `partitions`."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, nodes: dict[str, dict[str, Any]]
    ) -> None:
        self.folder = folder
        self._backends = list[SlurmBackend]()
        (folder / "bin").mkdir(parents=True)
        for name in ("sbatch", "squeue", "scancel", "scontrol", "srun"):
            path = folder / "bin" / name
            path.write_text(f'#!/bin/sh\nexec {sys.executable} -S {slurm_commands.__file__} {name} "$@"\n')
            path.chmod(0o755)
        known = {
            "next": 1,
            "jobs": {},
            "nodes": {name: {"state": "IDLE", **node} for name, node in nodes.items()},
        }
        (folder / "state.json").write_text(json.dumps(known))
        monkeypatch.setenv("FAKE_SLURM", str(folder))
        monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(slurm_commands, "HOME", folder)

    def backend(self, home: Path, epoch: int = 1, *, grace: float = 20.0, **options: Any) -> SlurmBackend:
        one = SlurmBackend(home, grace=grace, **{"patience": 1.0, "scan": 0.1, **options})
        self._backends.append(one)
        one.enter(epoch)
        return one

    def jobs(self) -> list[dict[str, Any]]:
        with slurm_commands.state() as known:
            return list(known["jobs"].values())

    def submitted(self) -> list[list[str]]:
        """The words of every sbatch."""
        path = self.folder / "sbatch.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def occupy(self, node: str, gpus: int) -> None:
        """Somebody else has GPUs of a node."""
        with slurm_commands.state() as known:
            groups = [{"nodes": [node], "gpus": gpus}]
            gpus_of_node = {node: list(range(gpus))}
            known["jobs"]["other"] = {
                "name": "my|own",
                "state": "RUNNING",
                "groups": groups,
                "given": gpus_of_node,
            }

    def change(self, node: str, **facts: Any) -> None:
        with slurm_commands.state() as known:
            known["nodes"][node].update(facts)

    def lose(self, node: str) -> None:
        """What ran there is gone at once; the controller ends the rest of those jobs."""
        with slurm_commands.state() as known:
            known["nodes"][node]["state"] = "DOWN+NOT_RESPONDING"
            for number, job in known["jobs"].items():
                if job["state"] == "RUNNING" and node in job["given"]:
                    job["state"] = "NODE_FAIL"
                    self._kill(self.folder / "tasks" / number / node)

    def close(self) -> None:
        for one in self._backends:
            one.close()
        with slurm_commands.state() as known:  # whoever supervises a job sees it, and ends it
            for job in known["jobs"].values():
                job["state"] = "NODE_FAIL" if job["state"] in ("RUNNING", "PENDING") else job["state"]

    def _kill(self, path: Path) -> None:
        if path.exists():
            root = int(path.read_text())
            for process in (root, *slurm_commands.descendants(root)):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
