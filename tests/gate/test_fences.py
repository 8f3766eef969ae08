"""The policy of our own: fences on the GPU between processes, admission between threads of one."""

from __future__ import annotations

import time

import pytest

from tests.support.gate.remote import PATIENCE, Gate, Program

pytest_plugins = ("tests.support.gate.fixtures",)

KERNELS = 0
WRITES = 3
FENCES = 6
ALL = -1


def request(latency: Program, kernel: int) -> None:
    """A latency request that runs until the test completes it."""
    assert latency.launch(kernel) == 0
    latency.request_end()


def test_best_effort_is_launched_ahead_and_stops_on_the_gpu(gate: Gate) -> None:
    gate.open("astrarium")
    latency = gate.program("latency")
    best = gate.program("best-effort")
    latency.stub("automatic", 0)
    request(latency, latency.kernel("hp"))
    assert best.launch(best.kernel("be"), count=5) == 0
    assert best.stub("did", KERNELS) == 0
    latency.stub("complete", 0, ALL)
    assert best.stub("did", KERNELS) == 5
    counts = gate.counts("best-effort")
    assert (counts["held"], counts["kernels"]) == (0, 5)
    assert counts["fences"] == best.stub("did", FENCES) > 0


def test_who_synchronizes_behind_a_fence_waits_for_the_request(gate: Gate) -> None:
    gate.open("astrarium")
    latency = gate.program("latency")
    best = gate.program("best-effort")
    latency.stub("automatic", 0)
    request(latency, latency.kernel("hp"))
    best.launch(best.kernel("be"))
    waits = best.later("check", "cuStreamSynchronize", 0)
    best.on("watch", "stub", "time")
    assert not waits.done()
    latency.stub("complete", 0, ALL)
    waits.result(PATIENCE)
    assert best.stub("did", KERNELS) == 1


def test_short_kernels_share_a_fence_and_long_ones_have_their_own(gate: Gate) -> None:
    gate.open("astrarium", window=100_000)
    profile = gate.profile(short=10_000, long=100_000)
    latency = gate.program("latency")
    best = gate.program("best-effort", PROFILE=profile)
    latency.launch(latency.kernel("hp"))
    latency.request_end()
    short = best.kernel("short", duration=10_000)
    long = best.kernel("long", duration=100_000)
    best.launch(short, count=40)
    few = gate.counts("best-effort")["fences"]
    best.launch(long, count=10)
    assert 1 <= few <= 8
    assert gate.counts("best-effort")["fences"] == few + 10


def test_requests_that_follow_each_other_keep_the_fence_closed(gate: Gate) -> None:
    gate.open("astrarium")
    latency = gate.program("latency")
    best = gate.program("best-effort")
    latency.stub("automatic", 0)
    kernel = latency.kernel("hp")
    request(latency, kernel)
    request(latency, kernel)
    best.launch(best.kernel("be"))
    latency.stub("complete", 0, 1)
    assert best.stub("did", KERNELS) == 0
    latency.stub("complete", 0, 1)
    assert best.stub("did", KERNELS) == 1


def test_a_request_that_comes_as_the_last_one_ends_finds_the_fence_closed(gate: Gate) -> None:
    """The GPU has reported the end of the first, and is about to open its fence."""
    gate.open("astrarium")
    latency = gate.program("latency")
    best = gate.program("best-effort")
    latency.stub("automatic", 0)
    kernel = latency.kernel("hp")
    request(latency, kernel)
    while gate.clients()["latency"]["in_flight"]:
        assert latency.stub("step_entries", 0, 1) == 1
    latency.launch(kernel)
    best.launch(best.kernel("be"))
    while latency.stub("queued", 0, KERNELS) and latency.stub("step_entries", 0, 1):
        pass
    assert best.stub("did", KERNELS) == 0
    latency.check("cuStreamSynchronize", 0)
    assert best.stub("did", KERNELS) == 1


def test_without_latency_clients_nothing_stops_best_effort(gate: Gate) -> None:
    gate.open("astrarium")
    best = gate.program("best-effort")
    best.launch(best.kernel("be"), count=100)
    assert best.stub("did", KERNELS) == 100
    assert (gate.counts("best-effort")["fences"], gate.counts("best-effort")["held"]) == (0, 0)


def test_a_fence_never_gets_into_a_graph(gate: Gate) -> None:
    gate.open("astrarium")
    latency = gate.program("latency")
    best = gate.program("best-effort")
    latency.stub("automatic", 0)
    request(latency, latency.kernel("hp"))
    stream = best.stream()
    best.launch(best.kernel("first"))
    graph = best.graph_of([best.kernel("be")] * 100, stream)
    assert [best.stub("nodes", graph, kind) for kind in (KERNELS, WRITES, FENCES)] == [100, 0, 0]
    best.launch(graph, stream=stream, entry="cuGraphLaunch")
    assert best.stub("did", KERNELS) == 0  # the whole graph is behind a fence
    latency.stub("complete", 0, ALL)
    assert best.stub("did", KERNELS) == 1 + 100


def test_a_stream_that_nobody_waits_for_does_not_keep_the_fence_closed(gate: Gate) -> None:
    """As of the few launches that a framework makes on a stream before it captures there."""
    gate.open("astrarium")
    latency = gate.program("latency")
    best = gate.program("best-effort")
    kernel = latency.kernel("hp")
    latency.launch(kernel, stream=latency.stream())
    best.launch(best.kernel("be"))
    until = time.monotonic() + PATIENCE
    while not best.stub("did", KERNELS) and time.monotonic() < until:
        latency.launch(kernel)
        latency.check("cuStreamSynchronize", 0)
        time.sleep(0.01)
    assert best.stub("did", KERNELS) == 1


@pytest.mark.parametrize(
    "reap",
    [True, False],
)
def test_the_fence_of_a_latency_client_that_was_killed_opens(gate: Gate, reap: bool) -> None:
    """Also while nobody has asked how it ended: it is a zombie then."""
    gate.open("astrarium")
    latency = gate.program("latency")
    best = gate.program("best-effort")
    latency.stub("automatic", 0)
    request(latency, latency.kernel("hp"))
    best.launch(best.kernel("be"))
    assert best.stub("did", KERNELS) == 0
    latency.kill(reap)
    best.on("waits", "check", "cuStreamSynchronize", 0)
    assert best.stub("did", KERNELS) == 1


def test_threads_are_freed_like_processes_when_the_latency_client_is_killed(gate: Gate) -> None:
    gate.open("astrarium")
    latency = gate.program("latency")
    best = gate.program(None)
    latency.stub("automatic", 0)
    request(latency, latency.kernel("hp"))
    best.on("train", "mark_thread", 1, "train")
    best.on("train", "launch", best.kernel("be"))
    assert best.stub("did", KERNELS) == 0
    latency.kill()
    best.on("waits", "check", "cuStreamSynchronize", 0)
    assert best.stub("did", KERNELS) == 1


def test_the_fence_of_a_latency_client_that_gives_no_sign_of_life_opens(gate: Gate) -> None:
    gate.open("astrarium", lease=100_000_000)
    latency = gate.program("latency")
    best = gate.program("best-effort")
    latency.stub("automatic", 0)
    request(latency, latency.kernel("hp"))
    best.launch(best.kernel("be"))
    best.on("waits", "check", "cuStreamSynchronize", 0)
    assert best.stub("did", KERNELS) == 1


def test_the_fence_of_a_latency_client_that_leaves_is_open(gate: Gate) -> None:
    gate.open("astrarium")
    latency = gate.program("latency")
    best = gate.program("best-effort")
    latency.stub("automatic", 0)
    request(latency, latency.kernel("hp"))
    best.launch(best.kernel("be"))
    latency.leave()
    best.on("waits", "check", "cuStreamSynchronize", 0)
    assert best.stub("did", KERNELS) == 1


@pytest.fixture
def threads(gate: Gate) -> Program:
    """Its threads `hp` and `be` are clients; work ends when the test says so."""
    gate.open("astrarium", window=50_000, latency=1_000_000, allowance=0.05, harm_compute=1.0)
    program = gate.program(None, PROFILE=gate.profile(known=20_000))
    program.stub("automatic", 0)
    program.on("hp", "mark_thread", 0, "hp")
    program.on("be", "mark_thread", 1, "be")
    return program


def test_between_threads_only_a_window_of_work_is_in_flight(gate: Gate, threads: Program) -> None:
    kernel = threads.kernel("known", duration=20_000)
    stream = threads.stream()
    assert threads.on("be", "launch", kernel, stream=stream, count=2) == 0
    held = threads.later("launch", kernel, stream=stream, thread="be")  # it would make 60 us
    assert gate.await_held("be") == "drain"
    client = gate.clients()["be"]
    assert (client["in_flight"], client["in_flight_ns"], threads.stub("launches")) == (2, 40_000, 2)
    threads.stub("complete", stream, 2)
    assert held.result(PATIENCE) == 0


def test_between_threads_a_kernel_longer_than_the_window_goes_when_nothing_else_is_in_flight(
    gate: Gate, threads: Program
) -> None:
    gate.board.set(window=10_000)
    kernel = threads.kernel("known", duration=20_000)
    stream = threads.stream()
    assert threads.on("be", "launch", kernel, stream=stream) == 0
    held = threads.later("launch", kernel, stream=stream, thread="be")
    assert gate.await_held("be") == "drain"
    threads.stub("complete", stream, 1)
    assert held.result(PATIENCE) == 0


def test_between_threads_unknown_kernels_wait_until_they_can_hurt_nobody_and_are_known_then(
    gate: Gate, threads: Program
) -> None:
    kernel = threads.kernel("unknown", duration=1_000)
    hp = threads.stream()
    be = threads.stream()
    request_kernel = threads.kernel("hp", duration=1_000_000)
    threads.on("hp", "launch", request_kernel, stream=hp)
    held = threads.later("launch", kernel, stream=be, thread="be")
    assert gate.await_held("be") == "unknown"
    threads.on("hp", "request_end")
    threads.stub("complete", hp, ALL)
    assert held.result(PATIENCE) == 0
    threads.on("be", "check", "cuStreamSynchronize", be)
    threads.on("hp", "launch", request_kernel, stream=hp)
    assert threads.on("be", "launch", kernel, stream=be) == 0  # short, and known by now
    counts = gate.counts("be")
    assert (counts["unknown"], counts["beside"], counts["waits"]["unknown"]) == (1, 1, 1)


def test_between_threads_only_what_a_request_can_bear_goes_beside_it(gate: Gate, threads: Program) -> None:
    gate.board.set(window=10_000_000)
    kernel = threads.kernel("known", duration=20_000)
    hp = threads.stream()
    be = threads.stream()
    threads.on("hp", "launch", threads.kernel("hp"), stream=hp)
    assert threads.on("be", "launch", kernel, stream=be, count=2) == 0  # 40 of 50 us
    held = threads.later("launch", kernel, stream=be, thread="be")
    assert gate.await_held("be") == "latency"
    assert gate.clients()["hp"]["beside"]["compute"] == 40_000
    threads.on("hp", "request_end")
    threads.stub("complete", hp, ALL)
    assert held.result(PATIENCE) == 0


def test_a_thread_that_nobody_marked_launches_for_whose_stream_it_is(gate: Gate, threads: Program) -> None:
    """Backward runs on the stream of forward, from a thread of the framework."""
    kernel = threads.kernel("known")
    stream = threads.stream()
    threads.on("be", "launch", kernel, stream=stream)
    threads.on("autograd", "launch", kernel, stream=stream)
    assert gate.counts("be")["kernels"] == 2
    threads.on("autograd", "launch", kernel, stream=threads.stream())
    assert gate.counts("be")["kernels"] == 2
