"""The gate on a real GPU. Its logic is tested on a stub driver; here, that the true one agrees.

Needs the gate and the module `_gate` built beside the package (see the Makefile)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("astrarium._gate")

from astrarium.gate import library, mps  # noqa: E402
from astrarium.gate.board import Board  # noqa: E402
from astrarium.gate.client import Client, client_environment  # noqa: E402
from astrarium.gate.driver import find_driver  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]

PATIENCE = 60  # seconds: a safety net
running: list[subprocess.Popen[str]] = []  # of the present test: none outlives it
SETUP = """
import json, sys, time, torch
from pathlib import Path
from astrarium.gate import marked
from astrarium.gate.board import Board
torch.manual_seed(0)
torch.use_deterministic_algorithms(False)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                            torch.nn.Linear(32 * 30 * 30, 10)).cuda()
images = torch.randn(16, 3, 32, 32, device="cuda")
labels = torch.randint(10, (16,), device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss
def captured(cycles):
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        torch.cuda._sleep(cycles)
    return graph
def me():
    import os
    return next(c for c in Board(Path(sys.argv[1])).view().clients if c.pid == os.getpid())
"""


@pytest.fixture
def board() -> Iterator[Path]:
    path = Path("/dev/shm") / f"astrarium-test-{uuid.uuid4().hex}"
    Board(path, "astrarium", torch.cuda.get_device_properties(0).multi_processor_count)
    yield path
    while running:
        process = running.pop()
        process.kill()
        process.communicate()
    path.unlink()


def gated(program: str, board: Path, kind: str, carried: bool = True, **more: Any) -> subprocess.Popen[str]:
    """*carried*: by MPS, where there is one; it does not survive every client that is killed."""
    home = library.private_home()
    gate = library.prepared(library.gate_library(), find_driver(), home)
    base = {**os.environ, **(mps.start(home, os.environ).variables if carried else {})}
    environment = client_environment(base, gate, Client(kind, "0", kind, board, **more))
    command = [sys.executable, "-c", SETUP + program, str(board)]
    pipe = subprocess.PIPE
    environment["PYTHONFAULTHANDLER"] = "1"  # so that one that hangs can say where
    running.append(
        subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    )
    return running[-1]


def told(process: subprocess.Popen[str]) -> Any:
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        pytest.fail(f"no answer in {PATIENCE} s; it stood here:\n{process.communicate()[1]}")
    print(err)  # seen where the test fails
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


def test_it_sees_all_that_the_driver_runs(board: Path) -> None:
    program = """
graph = captured(1000)
for _ in range(20):
    step(); graph.replay()
torch.cuda.synchronize()
for _ in range(3):  # what the driver recorded is read at waits
    time.sleep(0.3); torch.cuda.synchronize()
print(json.dumps([me().counts.kernels + me().counts.graphs, me().counts.graphs, me().counts.ran]))
"""
    seen, graphs, ran = told(gated(program, board, "latency", carried=False, coverage=True))
    assert graphs == 20
    assert ran > 20
    assert seen == ran


def test_results_are_those_without_it(board: Path) -> None:
    program = "print(json.dumps([step().item() for _ in range(20)]))"
    plain = subprocess.run(
        [sys.executable, "-c", SETUP + program, str(board)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    expected = json.loads(plain.stdout.splitlines()[-1])
    for kind in ("latency", "best-effort"):
        assert told(gated(program, board, kind)) == pytest.approx(expected, rel=1e-3)


def test_best_effort_stops_at_fences_and_goes_on(board: Path) -> None:
    serving = """
graph = captured(4_000_000)
print("ready", flush=True)
while True:
    graph.replay(); torch.cuda.synchronize(); time.sleep(0.002)
"""
    training = """
while len(Board(Path(sys.argv[1])).view().clients) < 1:
    time.sleep(0.01)
done, until = 0, time.monotonic() + 4
while time.monotonic() < until:
    step().item(); done += 1
print(json.dumps([done, me().counts.fences]))
"""
    server = gated(serving, board, "latency")
    assert server.stdout is not None
    assert server.stdout.readline().strip() == "ready"
    done, fences = told(gated(training, board, "best-effort"))
    view = next(client for client in Board(board).view().clients if client.kind == "latency")
    server.terminate()
    server.communicate(timeout=PATIENCE)
    assert done > 100
    assert fences > 0
    assert view.counts.requests > 100
    assert view.alone > 0


def test_a_latency_client_that_is_killed_stops_nobody(board: Path) -> None:
    serving = """
graph = captured(1_000_000_000)
print("ready", flush=True)
while True:
    graph.replay(); torch.cuda.synchronize()
"""
    training = """
print("ready", flush=True)
input()  # until the server is at work
print(json.dumps(len([step().item() for _ in range(200)])))
"""
    job = gated(training, board, "best-effort", carried=False)
    server = gated(serving, board, "latency", carried=False)
    for process in (job, server):
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
    assert job.stdin is not None
    job.stdin.write("go\n")
    job.stdin.flush()
    time.sleep(1.0)  # it stands at the fence of a request of half a second, most of the time
    server.send_signal(signal.SIGKILL)
    server.communicate(timeout=PATIENCE)
    assert told(job) == 200


def test_threads_of_one_process_are_held_too(board: Path) -> None:
    program = """
import threading
for _ in range(20): step()
torch.cuda.synchronize()
served, done, most = [], 0, 5000
def serve():
    with marked("latency", name="serve"), torch.cuda.stream(torch.cuda.Stream()):
        while len(served) < most and (len(served) < 100 or done < 20):
            torch.cuda._sleep(2_000_000)
            torch.cuda.current_stream().synchronize()
            served.append(1)
            time.sleep(0.002)
thread = threading.Thread(target=serve)
thread.start()
with marked("best-effort", name="train"):
    while thread.is_alive():
        step(); done += 1
thread.join()
views = {c.name: c for c in Board(Path(sys.argv[1])).view().clients}
print(json.dumps([len(served), done, views["train"].counts.held, views["serve"].counts.requests]))
"""
    served, done, held, requests = told(gated(program, board, "best-effort"))
    assert 100 <= served < 5000, "it served until enough steps were done beside it"
    assert done >= 20
    assert held > 10
    assert requests >= served
