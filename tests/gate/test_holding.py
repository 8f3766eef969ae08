"""Best-effort work is held while it would hurt, and goes as soon as it would not."""

from __future__ import annotations

import pytest

from tests.support.gate.remote import PATIENCE, Gate, Program

pytest_plugins = ("tests.support.gate.fixtures",)

KERNELS = 0
GRAPHS = 1
COPIES = 2
WRITES = 3
RECORDS = 4
ALL = -1


def request(latency: Program, kernel: int) -> None:
    """A latency request that runs until the test completes it."""
    assert latency.launch(kernel) == 0
    latency.request_end()


def launches(program: Program) -> int:
    """Asked from a thread of its own: the main one may be held."""
    return int(program.on("watch", "stub", "launches"))


@pytest.mark.parametrize("policy", ["kernel-temporal", "reef-n", "orion"])
def test_best_effort_waits_while_latency_work_runs(gate: Gate, policy: str) -> None:
    gate.open(policy)
    latency, best = gate.pair()
    kernel = best.kernel("unknown")
    request(latency, latency.kernel("hp"))
    held = best.later("launch", kernel)
    assert gate.await_held("best-effort") == "latency"
    assert (launches(best), held.done()) == (0, False)
    latency.stub("complete", 0, ALL)
    assert (held.result(PATIENCE), launches(best)) == (0, 1)
    counts = gate.counts("best-effort")
    assert (counts["kernels"], counts["held"]) == (1, 1)
    assert counts["held_ns"] > 0


@pytest.mark.parametrize("policy", ["streams", "stream-priority", "mps"])
def test_without_a_gate_of_its_own_a_policy_holds_nobody(gate: Gate, policy: str) -> None:
    gate.open(policy)
    latency, best = gate.pair()
    request(latency, latency.kernel("hp"))
    assert best.launch(best.kernel("be"), count=50) == 0
    assert gate.counts("best-effort")["held"] == 0


def test_latency_work_is_never_held_by_best_effort_work(gate: Gate) -> None:
    gate.open("astrarium")
    latency, best = gate.pair()
    best.launch(best.kernel("be"))
    assert latency.launch(latency.kernel("hp"), count=40) == 0
    assert gate.counts("latency")["held"] == 0


def test_a_graph_of_a_latency_client_is_a_request_by_itself(gate: Gate) -> None:
    gate.open("kernel-temporal")
    latency, best = gate.pair()
    stream = latency.stream()
    kernel = latency.kernel("hp")
    latency.launch(kernel, stream=stream)
    latency.check("cuStreamSynchronize", stream)
    graph = latency.graph_of([kernel], stream)
    latency.launch(graph, stream=stream, entry="cuGraphLaunch")
    held = best.later("launch", best.kernel("be"))
    gate.await_held("best-effort")
    latency.stub("complete", stream, ALL)
    assert held.result(PATIENCE) == 0
    assert gate.counts("latency")["requests"] == 1 + 1


@pytest.mark.parametrize("kind", ["graph", "kernel"])
def test_graphs_of_best_effort_clients_are_held_like_kernels(gate: Gate, kind: str) -> None:
    gate.open("kernel-temporal")
    latency, best = gate.pair()
    stream = best.stream()
    kernel = best.kernel("be")
    best.launch(kernel)
    work = {"graph": best.graph_of([kernel], stream), "kernel": kernel}
    entry = {"graph": "cuGraphLaunch", "kernel": "cuLaunchKernel"}
    request(latency, latency.kernel("hp"))
    held = best.later("launch", work[kind], stream=stream, entry=entry[kind])
    gate.await_held("best-effort")
    latency.stub("complete", 0, ALL)
    assert held.result(PATIENCE) == 0


def test_a_policy_that_is_changed_lets_go_whom_the_old_one_held(gate: Gate) -> None:
    board = gate.open("kernel-temporal")
    latency, best = gate.pair()
    request(latency, latency.kernel("hp"))
    held = best.later("launch", best.kernel("be"))
    gate.await_held("best-effort")
    board.set_policy("streams")
    assert held.result(PATIENCE) == 0


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ("orion", {"latency": 1_000_000, "duration_fraction": 0.03}),  # two are 40 us, more than 30
        ("reef-n", {"depth": 2}),
    ],
)
def test_only_so_much_is_in_flight(gate: Gate, policy: str, settings: dict[str, float]) -> None:
    gate.open(policy, **settings)
    best = gate.program("best-effort", PROFILE=gate.profile(k=20_000))
    best.stub("automatic", 0)
    kernel = best.kernel("k", duration=20_000)
    assert best.launch(kernel, count=2) == 0
    held = best.later("launch", kernel)
    assert gate.await_held("best-effort") == "drain"
    client = gate.clients()["best-effort"]
    assert (launches(best), client["in_flight"], client["in_flight_ns"]) == (2, 2, 40_000)
    best.on("watch", "stub", "complete", 0, 2)
    assert held.result(PATIENCE) == 0


def test_best_effort_clients_take_turns(gate: Gate) -> None:
    gate.open("reef-n", depth=1, window=4)  # with such a window, every launch is reported
    programs = {name: gate.program("best-effort", name) for name in ("one", "other")}
    for program in programs.values():
        program.stub("automatic", 0)
    programs["one"].launch(programs["one"].kernel("k"))
    answers = []
    for name, program in programs.items():
        answers.append(program.later("launch", program.kernel("k"), count=5))
        gate.await_held(name)
    seen = [[1, 0]]
    while sum(seen[-1]) < 1 + 5 + 5:
        for program in programs.values():
            program.on("watch", "stub", "complete", 0, ALL)
        seen.append([launches(program) for program in programs.values()])
    assert [answer.result(PATIENCE) for answer in answers] == [0, 0]
    # The one that was first may be two ahead; who is never let in would fall back further.
    assert all(abs(one - other) <= 2 for one, other in seen[:-1] if one < 6)


@pytest.mark.parametrize("policy", ["orion", "reef-n"])
def test_a_best_effort_client_that_pauses_without_waiting_does_not_hold_the_others(
    gate: Gate, policy: str
) -> None:
    """The last launches before it looks for data, say, of which the GPU was not told to report."""
    gate.open(policy, depth=1, latency=1_000, window=10_000_000, lease=50_000_000)
    profile = gate.profile(k=20_000)
    one, other = (gate.program("best-effort", name, PROFILE=profile) for name in ("one", "other"))
    assert one.launch(one.kernel("k")) == 0  # the GPU is through with it at once
    assert other.launch(other.kernel("k")) == 0


def test_kernels_of_collectives_are_never_held(gate: Gate) -> None:
    """Their peers on other GPUs wait for them."""
    gate.open("kernel-temporal")
    latency, best = gate.pair()
    request(latency, latency.kernel("hp"))
    assert best.launch(best.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL")) == 0
    assert gate.counts("best-effort")["held"] == 0


def test_long_kernels_use_a_part_of_the_gpu_in_the_order_of_their_stream(gate: Gate) -> None:
    gate.open("astrarium", partition=32, long_kernel=100_000, window=10_000)
    latency = gate.program("latency")
    latency.launch(latency.kernel("hp"))
    latency.check("cuCtxSynchronize")
    best = gate.program("best-effort", PROFILE=gate.profile(long=200_000, short=50_000))
    stream = best.stream()
    kernels = [best.library_kernel(name, duration) for name, duration in LENGTHS.items()]
    seen = []
    for kernel in kernels:
        best.launch(kernel, stream=stream)
        used = best.stub("last", "cuLaunchKernel", 8)
        seen.append((used == stream, best.stub("stream_sms", used)))
    assert seen == [(True, 132), (False, 32), (True, 132)]
    assert best.stub("calls", "cuStreamWaitEvent") == 2  # there and back
    assert gate.counts("best-effort")["partitioned"] == 1


def test_who_is_alone_has_the_whole_gpu(gate: Gate) -> None:
    gate.open("astrarium", partition=32, long_kernel=100_000)
    best = gate.program("best-effort", PROFILE=gate.profile(long=200_000))
    best.launch(best.library_kernel("long", 200_000), stream=best.stream(), count=5)
    assert gate.counts("best-effort")["partitioned"] == 0


LENGTHS = {"short": 50_000, "long": 200_000, "other": 1_000}


@pytest.mark.parametrize(("policy", "best", "latency"), [("stream-priority", 0, -3), ("streams", -1, -1)])
def test_streams_have_the_priority_of_their_client_where_the_policy_is_that(
    gate: Gate, policy: str, best: int, latency: int
) -> None:
    gate.open(policy)
    for kind, expected in (("best-effort", best), ("latency", latency)):
        program = gate.program(kind)
        program.made("cuStreamCreateWithPriority", 1, -1)
        priorities = program.stub("last", "cuStreamCreateWithPriority", 1)
        assert priorities == expected % 2**64


def test_a_launch_that_is_held_does_not_hold_python(gate: Gate) -> None:
    gate.open("kernel-temporal")
    latency, best = gate.pair()
    request(latency, latency.kernel("hp"))
    held = best.later("launch", best.kernel("be"), thread="worker", gil=True)
    gate.await_held("best-effort")
    assert best.add(20, 22) == 42  # the main thread of the same Python
    assert not held.done()
    latency.stub("complete", 0, ALL)
    assert held.result(PATIENCE) == 0
    assert best.add(1, 1) == 2
