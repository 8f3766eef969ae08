"""A live cluster on a real Ray, of which a machine is killed; in the longer test so is the arbiter.

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
STEPS, PAUSE = 60, 0.1  # together longer than a lease: some must be stopped
TEXT = """\
machines: [{{count: 4, gpus: 4}}]
apps:
  - {{name: eight, gpus: 8, length: 10s, processes: job, command: {one}}}
  - {{name: four, gpus: 4, length: 10s, processes: job, command: {two}}}
  - {{name: gang, gpus: 2, length: 10s, processes: gpu, command: {three}}}
  - {{name: other, gpus: 4, length: 10s, processes: job, arrival: 2s, command: {four}}}
  - {{name: pair, gpus: 2, jobs: 2, length: 10s, processes: job, arrival: 3s, command: {five}}}
  - {{name: single, length: 10s, arrival: 4s, command: {six}}}
policy: {{name: tiresias, lease: 5s}}
live: {{backend: ray, address: "{address}", jobs: "{jobs}", grace: 60s, least: 2s, patience: 20s,
       checkpoints: 1s}}
"""
SECOND = "SELECT * FROM meta WHERE key = 'epoch' AND value = 2"
LOST = "SELECT * FROM steps WHERE events LIKE '%MachineLost%'"
ALONE = """\
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import train
for seed in map(int, sys.argv[2].split(",")):
    os.environ["ASTRARIUM_FOLDER"] = f"{sys.argv[4]}/{seed}"
    train.train(int(sys.argv[3]), seed, 0.0)
"""


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
def four(alone: object) -> Iterator[Any]:
    with machines(4, gpus=4) as found:
        yield found


@pytest.fixture
def two() -> Iterator[Any]:
    with machines(2, gpus=2) as found:
        yield found


def command(seed: int) -> str:
    return f'"{sys.executable} {TRAIN} --steps {STEPS} --pause {PAUSE} --seed {seed}"'


class Alone:
    """The same jobs by themselves, in the background: while Ray starts, a machine has time for them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(*free_ports("127.0.0.1", 1))}
        self.processes = [self._begun("1,2,4,5,6", {})]
        self.processes += [self._begun("3", {**master, "WORLD_SIZE": "2", "RANK": rank}) for rank in "01"]

    def _begun(self, seeds: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", ALONE, str(TRAIN), seeds, str(STEPS), str(self._folder)]
        return subprocess.Popen(words, env={**os.environ, **env}, stdout=subprocess.DEVNULL)

    def results(self) -> dict[tuple[str, int], Any]:
        assert [one.wait(LONGEST) for one in self.processes] == [0, 0, 0]
        said = [json.loads((self._folder / f"{seed}/result.json").read_text()) for seed in range(1, 7)]
        names = ("eight", 0), ("four", 0), ("gang", 0), ("other", 0), ("pair", 0), ("single", 0)
        return {**dict(zip(names, said, strict=True)), ("pair", 1): said[4]}


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    one = Alone(tmp_path / "alone")
    yield one
    for process in one.processes:
        process.kill()
        process.wait()


def in_use(jobs: Path, nodes: list[Any]) -> Any:
    """A machine on which a job is up, and which is not the one that Ray itself needs."""
    orders = [path for path in jobs.glob("apps/*/*/*/*/order.json") if _lives(path.parent)]
    there = {json.loads(path.read_text())["part"]["order"]["parts"][0]["machine"] for path in orders}
    numbers = {name.partition(".")[0].rpartition("-")[2] for name in there}
    return next((node for node in nodes if node.node_id[:12] in numbers), None)


def _lives(part: Path) -> bool:
    return (part.parent / "ready").exists() and not (part / "outcome.json").exists()


SHORT = """\
machines: [{{count: 2, gpus: 2}}]
apps:
  - {{name: one, gpus: 2, length: 5s, processes: job, command: {python} {script} 60 0.05}}
  - {{name: other, gpus: 2, length: 5s, processes: job, command: {python} {script} 50 0.05}}
  - {{name: late, length: 3s, arrival: 1s, command: {python} {script} 40 0.05}}
policy: {{name: tiresias, lease: 5s}}
live: {{backend: ray, address: "{address}", jobs: "{jobs}", grace: 60s, least: 1s, patience: 10s,
       checkpoints: 500ms}}
"""


def test_a_machine_is_lost_and_no_job(two: Any, script: Path, tmp_path: Path) -> None:
    ray, nodes = two
    file, home, jobs = (tmp_path / name for name in ("live.yaml", "live.state", "jobs"))
    file.write_text(SHORT.format(address=ray.address, jobs=jobs, python=sys.executable, script=script))
    with arbiter(file, home) as one:
        one.start()
        ray.remove_node(one.waited(lambda: in_use(jobs, nodes), "a machine in use"), allow_graceful=False)
        one.waited(lambda: one.query(LOST), "the loss is seen")
        one.end()
        check_accounts(one)
        counts = {app: said["count"] for (app, _), said in results(jobs).items()}
        assert counts == {"one": 60, "other": 50, "late": 40}


@pytest.mark.thorough
def test_every_job_ends_with_the_result_it_would_have_had(four: Any, alone: Alone, tmp_path: Path) -> None:
    ray, nodes = four
    seeds = dict(zip(("one", "two", "three", "four", "five", "six"), map(command, range(1, 7)), strict=True))
    file, home, jobs = (tmp_path / name for name in ("live.yaml", "live.state", "jobs"))
    file.write_text(TEXT.format(address=ray.address, jobs=jobs, **seeds))
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
        assert results(jobs) == alone.results()
        assert one.query("SELECT count(*) FROM runs WHERE outcome = 'stopped'") > [(0,)]
