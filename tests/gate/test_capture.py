"""What a program captures into a graph stays as the program wrote it."""

from __future__ import annotations

import pytest

from tests.support.gate.remote import PATIENCE, Gate, Program

pytest_plugins = ("tests.support.gate.fixtures",)

KERNELS = 0
COPIES = 2
WRITES = 3
RECORDS = 4
FENCES = 6
ALL = -1
POLICIES = ["kernel-temporal", "orion", "astrarium"]


def started(gate: Gate, kind: str) -> tuple[Program, int, int]:
    """A program that has launched before, with a stream and a kernel."""
    program = gate.program(kind)
    kernel = program.kernel("k")
    program.launch(kernel)
    return program, program.stream(), kernel


def contents(program: Program, graph: int) -> list[int]:
    return [program.stub("nodes", graph, kind) for kind in (KERNELS, WRITES, RECORDS, FENCES)]


@pytest.mark.parametrize("policy", POLICIES)
def test_launches_into_a_graph_are_never_held_and_nothing_is_added(gate: Gate, policy: str) -> None:
    gate.open(policy)
    latency = gate.program("latency")
    best, stream, kernel = started(gate, "best-effort")
    latency.stub("automatic", 0)
    latency.launch(latency.kernel("hp"))
    graph = best.graph_of([kernel] * 40, stream)
    assert contents(best, graph) == [40, 0, 0, 0]
    counts = gate.counts("best-effort")
    assert (counts["captured"], counts["kernels"], counts["held"]) == (40, 1, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_latency_client_captures_undisturbed_too(gate: Gate, policy: str) -> None:
    gate.open(policy)
    latency, stream, kernel = started(gate, "latency")
    graph = latency.graph_of([kernel] * 40, stream)
    assert contents(latency, graph) == [40, 0, 0, 0]
    assert gate.counts("latency")["captured"] == 40


@pytest.mark.parametrize("kind", ["latency", "best-effort"])
def test_the_very_first_launch_may_be_into_a_graph(gate: Gate, kind: str) -> None:
    gate.open("astrarium")
    program = gate.program(kind)
    graph = program.graph_of([program.kernel("k")] * 3, program.stream())
    assert contents(program, graph) == [3, 0, 0, 0]


def test_copies_into_a_graph_stay_whole(gate: Gate) -> None:
    gate.open("astrarium", chunk=1 << 20)
    best, stream, _ = started(gate, "best-effort")
    size = 3 << 20
    target = best.made("cuMemAlloc_v2", size)
    source = best.buffer("x", size)
    assert best.begin(stream) == 0
    best.check("cuMemcpyHtoDAsync_v2", target, source, size, stream)
    code, graph = best.end(stream)
    assert (code, best.stub("nodes", graph, COPIES)) == (0, 1)


def test_another_threads_waits_do_not_break_a_capture(gate: Gate) -> None:
    """The program's own are its own affair; the gate asks nothing of the driver meanwhile."""
    gate.open("astrarium")
    latency, stream, kernel = started(gate, "latency")
    relaxed = 2
    latency.on("other", "exchange_mode", relaxed)
    assert latency.begin(stream) == 0
    latency.on("other", "launch", kernel, stream=latency.stream(), count=3)
    latency.on("other", "check", "cuStreamSynchronize", 2)
    latency.launch(kernel, stream=stream)
    code, graph = latency.end(stream)
    assert (code, contents(latency, graph)) == (0, [1, 0, 0, 0])


@pytest.mark.parametrize(
    "blunder",
    ["broken", "begun twice", "never begun"],
)
def test_a_capture_that_fails_leaves_the_gate_at_work(gate: Gate, blunder: str) -> None:
    gate.open("kernel-temporal")
    latency = gate.program("latency")
    best, stream, kernel = started(gate, "best-effort")
    if blunder != "never begun":
        assert best.begin(stream) == 0
    if blunder == "broken":
        assert best.call("cuStreamQuery", stream) == 900
    if blunder == "begun twice":
        assert best.begin(stream) == 900
    assert best.end(stream)[0] == {"broken": 901, "never begun": 401, "begun twice": 0}[blunder]
    graph = best.graph_of([kernel] * 20, stream)
    assert contents(best, graph) == [20, 0, 0, 0]
    latency.stub("automatic", 0)
    latency.launch(latency.kernel("hp"))
    latency.request_end()
    held = best.later("launch", kernel)
    gate.await_held("best-effort")
    latency.stub("complete", 0, ALL)
    assert held.result(PATIENCE) == 0


@pytest.mark.parametrize(("other", "kind"), [(20_000, "compute"), (90_000, "memory")])
def test_a_graph_is_of_the_kind_of_most_of_its_time(gate: Gate, other: int, kind: str) -> None:
    """It is known from its kernels, which ran before they were captured."""
    gate.open("orion")
    latency = gate.program("latency")
    kernels = [latency.kernel("sgemm", 50_000), latency.kernel("elementwise", other)]
    for kernel in kernels * 6:
        latency.launch(kernel)
        latency.check("cuCtxSynchronize")
    stream = latency.stream()
    latency.launch(latency.graph_of(kernels, stream), stream=stream, entry="cuGraphLaunch")
    assert gate.clients()["latency"]["work"]["kind"] == kind
