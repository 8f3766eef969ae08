"""Two network namespaces of this machine are two hosts: jobs run on both, and a cable between them is cut."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.cluster.hosts import AgentProcess
from tests.support.cluster.jobs import arbiter, check_accounts, end_keepers

pytestmark = [pytest.mark.long, pytest.mark.thorough]
pytest_plugins = ("tests.support.cluster.fixtures",)

NETWORK = (
    f"198.{18 + os.getpid() // 256 % 2}.{os.getpid() % 256}"  # for tests (RFC 2544); of this process alone
)
GANG = """\
import os, socket, sys, time
from astrarium import cluster_job
rank = int(os.environ["RANK"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(place) as server:
        other = server.accept()[0]
else:
    ends = time.monotonic() + 60
    while True:
        try:
            other = socket.create_connection(place, timeout=60)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < ends
            time.sleep(0.1)
other.sendall(b"%d" % rank)
assert other.recv(1) == b"%d" % (1 - rank)
with cluster_job.session() as session:
    count = session.restore() or 0
    for step in session.steps(int(sys.argv[1])):
        time.sleep(0.05)
        count += 1
        session.checkpoint(count)
    session.result({"count": count})
"""


def ip(*words: str, check: bool = True) -> bool:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert not check or done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.returncode == 0


class Net:
    """A bridge in this namespace, and a cable from it to each host, which has a namespace of its own."""

    def __init__(self) -> None:
        self.mark = f"as{os.getpid() % 100_000}"
        self.hosts = [f"{self.mark}-{name}" for name in ("left", "right")]
        self.bridge = f"{self.mark}-br"

    def make(self) -> None:
        ip("link", "add", "name", self.bridge, "type", "bridge")
        ip("addr", "add", f"{NETWORK}.1/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        for number, host in enumerate(self.hosts):
            cable = f"{self.mark}-c{number}"
            end = f"{self.mark}-e{number}"
            ip("netns", "add", host)
            ip("link", "add", cable, "type", "veth", "peer", "name", end, "netns", host)
            ip("link", "set", cable, "master", self.bridge, "up")
            ip("-n", host, "addr", "add", f"{NETWORK}.{number + 2}/24", "dev", end)
            for device in ("lo", end):
                ip("-n", host, "link", "set", device, "up")

    def plug(self, number: int, how: str) -> None:
        ip("link", "set", f"{self.mark}-c{number}", how)

    def remove(self) -> None:
        for number, host in enumerate(self.hosts):
            ip("link", "del", f"{self.mark}-c{number}", check=False)
            ip("netns", "del", host, check=False)
        ip("link", "del", self.bridge, check=False)


@pytest.fixture
def net() -> Iterator[Net]:
    one = Net()
    probe = f"{one.mark}-probe"
    if shutil.which("ip") is None or not ip("netns", "add", probe, check=False):
        pytest.skip("network namespaces need root and the program ip")
    ip("netns", "del", probe)
    try:
        one.make()
        yield one
    finally:
        one.remove()


@pytest.fixture
def agents(net: Net, tmp_path: Path) -> Iterator[list[AgentProcess]]:
    """Each host has a folder of its own, and the same key."""
    key = tmp_path / "cluster.key"
    key.touch(mode=0o600)
    key.write_text(os.urandom(32).hex())
    processes = [
        AgentProcess(tmp_path / name, f"{NETWORK}.1:7070", key, ["ip", "netns", "exec", host])
        for name, host in zip(("left", "right"), net.hosts, strict=True)
    ]
    yield processes
    for one in processes:
        one.kill()
    end_keepers(tmp_path)


def cluster_file(tmp_path: Path, apps: list[dict[str, Any]], patience: str = "60s") -> Path:
    live = {
        "backend": "agents", "listen": f"{NETWORK}.1:7070", "key": "cluster.key", "patience": patience,
        "least": "500ms", "checkpoints": "500ms", "progress": "500ms",
    }  # fmt: skip
    raw = {"machines": [{"count": 2, "gpus": 2}], "apps": apps, "policy": {"name": "tiresias", "lease": "3s"},
           "live": live}  # fmt: skip
    file = tmp_path / "cluster.yaml"
    file.write_bytes(msgspec.yaml.encode(raw))
    return file


def job(script: Path, name: str, steps: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "length": "5s", "command": f"{sys.executable} {script} {steps} 0.05", **more}


def results(tmp_path: Path) -> dict[str, list[int]]:
    """By app: what its runs said, on whichever host they were."""
    sums: dict[str, list[int]] = {}
    for path in tmp_path.glob("*/*/apps/*/job-0/run-*/result.json"):
        sums.setdefault(path.parts[-4].partition("-")[2], []).append(json.loads(path.read_text())["count"])
    return sums


LOST = "SELECT * FROM steps WHERE events LIKE '%MachineLost%'"


def test_two_hosts_with_a_gang_over_both(agents: list[AgentProcess], script: Path, tmp_path: Path) -> None:
    gang = tmp_path / "gang.py"
    gang.write_text(GANG)
    apps = [
        {"name": "gang", "gpus": 4, "length": "4s", "command": f"{sys.executable} {gang} 100"},
        *(job(script, f"one-{n}", 60 + n, gpus=2, arrival=f"{n + 1}s") for n in range(3)),
    ]
    with arbiter(cluster_file(tmp_path, apps), tmp_path / "live.state") as one:
        one.start()
        one.end()
        check_accounts(one)
    sums = results(tmp_path)
    assert sums.pop("gang") == [100]
    assert sums == {f"one-{n}": [60 + n] for n in range(3)}
    for host in ("left", "right"):
        assert list((tmp_path / host).glob("*/orders/*-one-*/job-0/run-*/part-0/outcome.json"))
    assert one.query("SELECT count(*) FROM runs WHERE outcome = 'stopped'") > [(0,)]


def test_a_cable_is_cut_and_the_arbiter_killed(
    net: Net, agents: list[AgentProcess], script: Path, tmp_path: Path
) -> None:
    """The job goes on elsewhere from its copy; when the cable is back, what ran on is stopped, and counts
    nowhere."""
    apps = [job(script, "long", 800, gpus=2), job(script, "other", 60, gpus=2)]
    with arbiter(cluster_file(tmp_path, apps, "6s"), tmp_path / "live.state") as one:
        one.start()
        one.waited(lambda: list(one.home.glob("copies/*-long/job-0/run-1/copy.json")), "it has a copy")
        number = 0 if list(tmp_path.glob("left/*/apps/*-long")) else 1
        net.plug(number, "down")
        one.waited(lambda: one.query(LOST), "the loss is seen")
        rows = one.query("SELECT runs.outcome, error FROM runs JOIN apps ON app = id WHERE name = 'long'")
        assert rows[0] == ("lost", "its machine is gone")
        one.kill()
        one.start()
        one.waited(lambda: one.query("SELECT * FROM meta WHERE key='epoch' AND value=2"), "a second arbiter")
        one.waited(lambda: list(one.home.glob("copies/*-long/job-0/run-2/copy.json")), "it goes on elsewhere")
        net.plug(number, "up")
        word = "run 1 is stopped: it was given up"
        one.waited(lambda: word in agents[number].words.read_text(), "the old run is stopped")
        one.end()
        check_accounts(one)
        [copy] = one.home.glob("copies/*-long/job-0/run-*/copy-*.tar")
        assert copy.parent.name != "run-1"
        other = agents[1 - number].folder
        [path] = other.glob("*/orders/*-long/job-0/run-2/part-0/order.json")
        assert json.loads(path.read_text())["part"]["kept"] > 0
    assert {app: set(counts) for app, counts in results(tmp_path).items()} == {"long": {800}, "other": {60}}


def test_an_agent_that_is_killed_is_begun_again(
    agents: list[AgentProcess], script: Path, tmp_path: Path
) -> None:
    apps = [job(script, name, 100, gpus=2) for name in ("long", "other")]
    with arbiter(cluster_file(tmp_path, apps), tmp_path / "live.state") as one:
        one.start()
        one.waited(lambda: len(list(tmp_path.glob("*/*/apps/*/job-0/run-1/ready"))) == 2, "both run")
        agents[0].process.send_signal(signal.SIGKILL)
        agents[0].process.wait()
        agents[0].start()
        one.end()
        check_accounts(one)
        assert not one.query(LOST)
    assert results(tmp_path) == {"long": [100], "other": [100]}
