"""A live cluster on a real Ray, of which a machine is killed, and so is the arbiter.

Whatever happens to them, jobs end with the result that they have when nothing happens.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.live.backends.fleet import free_ports
from tests.support.cluster.jobs import LONGEST, arbiter, check_accounts, results
from tests.support.paths import ROOT
from tests.support.tuning.ray_cluster import QUIET

pytestmark = [pytest.mark.long, pytest.mark.thorough]
pytest_plugins = ("tests.support.cluster.fixtures",)

TRAIN = ROOT / "examples" / "cluster" / "train.py"
# together longer than a lease: some must be stopped
STEPS = 60
PAUSE = 0.1
TEXT = """\
machines: [{{count: 3, gpus: 4}}]
apps:
  - {{name: eight, gpus: 8, length: 10s, processes: job, command: {sums}}}
  - {{name: four, gpus: 4, length: 10s, processes: job, command: {sums}}}
  - {{name: gang, gpus: 2, length: 10s, processes: gpu, command: {train}}}
  - {{name: other, gpus: 4, length: 10s, processes: job, arrival: 2s, command: {sums}}}
  - {{name: pair, gpus: 2, jobs: 2, length: 10s, processes: job, arrival: 3s, command: {sums}}}
  - {{name: single, length: 10s, arrival: 4s, command: {sums}}}
policy: {{name: tiresias, lease: 5s}}
live: {{backend: ray, address: "{address}", jobs: "{jobs}", grace: 60s, least: 2s, patience: 20s,
       checkpoints: 1s}}
"""
SUMMED = {"sum": sum(step * step for step in range(STEPS)), "count": STEPS}
SUMS = ("eight", 0), ("four", 0), ("other", 0), ("pair", 0), ("pair", 1), ("single", 0)
SECOND = "SELECT * FROM meta WHERE key = 'epoch' AND value = 2"
LOST = "SELECT * FROM steps WHERE events LIKE '%MachineLost%'"


@contextmanager
def machines(count: int, gpus: int) -> Iterator[Any]:
    """Without CPUs: they are for other tests."""
    os.environ.update(QUIET)
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    each = {"num_cpus": 0, "num_gpus": gpus, "object_store_memory": 80 * 2**20}
    one = Cluster(initialize_head=True, head_node_args={**each, "include_dashboard": False})
    try:
        nodes = [one.add_node(**each, wait=False) for _ in range(count - 1)]
        one.wait_for_nodes()
        yield one, nodes
    finally:
        one.shutdown()


@pytest.fixture
def three(alone: object) -> Iterator[Any]:
    with machines(3, gpus=4) as cluster:
        yield cluster


class Alone:
    """The gang by itself, in the background: while Ray starts, a machine has time for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(*free_ports("127.0.0.1", 1))}
        self.processes = [self._begun({**master, "WORLD_SIZE": "2", "RANK": rank}) for rank in "01"]

    def _begun(self, env: dict[str, str]) -> subprocess.Popen[bytes]:
        words = [sys.executable, str(TRAIN), "--steps", str(STEPS), "--pause", "0"]
        env = {**os.environ, **env, "ASTRARIUM_FOLDER": str(self._folder)}
        return subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL)

    def result(self) -> Any:
        assert [one.wait(LONGEST) for one in self.processes] == [0, 0]
        return json.loads((self._folder / "result.json").read_text())


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    one = Alone(tmp_path / "alone")
    yield one
    for process in one.processes:
        process.kill()
        process.wait()


def in_use(jobs: Path, nodes: list[Any]) -> Any:
    """A machine on which a job is up, and which is not the one that Ray itself needs."""
    orders = [path for path in jobs.glob("orders/*/*/*/*/order.json") if _lives(path.parent)]
    there = {json.loads(path.read_text())["part"]["order"]["parts"][0]["machine"] for path in orders}
    numbers = {name.partition(".")[0].rpartition("-")[2] for name in there}
    return next((node for node in nodes if node.node_id[:12] in numbers), None)


def _lives(part: Path) -> bool:
    claims = part / "told.json"
    up = claims.exists() and json.loads(claims.read_text())["ready"]
    return bool(up) and not (part / "outcome.json").exists()


def test_every_job_ends_with_the_result_it_would_have_had(
    three: Any, alone: Alone, script: Path, tmp_path: Path
) -> None:
    ray, nodes = three
    file, home, jobs = (tmp_path / name for name in ("live.yaml", "live.state", "jobs"))
    sums = f"{sys.executable} {script} {STEPS} {PAUSE}"
    train = f"{sys.executable} {TRAIN} --steps {STEPS} --pause {PAUSE}"
    file.write_text(TEXT.format(address=ray.address, jobs=jobs, sums=sums, train=train))
    with arbiter(file, home) as one:
        one.start()
        checkpoints = "apps/*/job-*/run-*/checkpoint"
        one.waited(lambda: len(list(jobs.glob(checkpoints))) >= 3, "three jobs have written checkpoints")
        one.kill()
        before = one.query("SELECT app, job, run FROM runs")
        one.start()
        one.waited(lambda: one.query(SECOND), "a second arbiter")
        assert one.query("SELECT app, job, run FROM runs")[: len(before)] == before
        ray.remove_node(one.waited(lambda: in_use(jobs, nodes), "a machine in use"), allow_graceful=False)
        one.waited(lambda: one.query(LOST), "the loss is seen")
        one.end()
        check_accounts(one)
        assert results(jobs) == {("gang", 0): alone.result(), **dict.fromkeys(SUMS, SUMMED)}
        assert one.query("SELECT count(*) FROM runs WHERE outcome = 'stopped'") > [(0,)]
