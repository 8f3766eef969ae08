"""Programs with several streams and threads: every one is protected, and every one is stopped."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.gate.remote import PATIENCE, Gate, until

pytest_plugins = ("tests.support.gate.fixtures",)

ALL = -1
KERNELS = 0
GRAPHS = 1
FENCES = 6


def test_a_short_request_does_not_open_the_fence_of_a_long_one_beside_it(gate: Gate) -> None:
    gate.open("astrarium")
    latency, best = gate.pair()
    best.stub("automatic", 1)
    first = latency.stream()
    second = latency.stream()
    kernel = latency.kernel("hp")
    for stream in (first, second):
        latency.launch(latency.graph_of([kernel], stream), stream=stream, entry="cuGraphLaunch")
    best.launch(best.kernel("be"), count=3)
    latency.stub("complete", second, ALL)
    assert best.stub("did", KERNELS) == 0
    latency.check("cuCtxSynchronize")
    best.check("cuCtxSynchronize")
    assert best.stub("did", KERNELS) == 3


def test_a_thread_that_waits_for_its_own_stream_ends_nobody_elses_request(gate: Gate) -> None:
    gate.open("kernel-temporal")
    latency, best = gate.pair()
    latency.on("worker", "launch", latency.kernel("hp"), entry="cuLaunchKernel_ptsz")
    held = best.later("launch", best.kernel("be"))
    assert gate.await_held("best-effort") == "latency"
    latency.on("idle", "check", "cuStreamSynchronize_ptsz", 0)
    assert gate.clients()["latency"]["in_request"]
    latency.on("worker", "check", "cuStreamSynchronize_ptsz", 0)
    assert held.result(PATIENCE) == 0


def test_every_stream_of_a_best_effort_program_has_fences(gate: Gate) -> None:
    gate.open("astrarium", window=50_000)
    latency = gate.program("latency")
    best = gate.program("best-effort", PROFILE=gate.profile(k=20_000))
    latency.launch(latency.kernel("hp"))
    latency.check("cuCtxSynchronize")
    kernel = best.kernel("k", duration=20_000)
    streams = [best.stream(), best.stream()]
    best.stub("automatic", 0)
    for _ in range(20):
        for stream in streams:
            best.launch(kernel, stream=stream)
    assert [best.stub("queued", stream, FENCES) for stream in streams] == [10, 10]  # two kernels a window


def test_the_first_launch_of_a_stream_stops_where_a_request_runs(gate: Gate) -> None:
    gate.open("astrarium")
    latency, best = gate.pair()
    best.stub("automatic", 1)
    latency.launch(latency.kernel("hp"))
    best.launch(best.kernel("be"), stream=best.stream())
    assert best.stub("did", KERNELS) == 0


@pytest.mark.parametrize("kind", ["latency", "best-effort"])
def test_streams_come_and_go_without_number(gate: Gate, kind: str) -> None:
    gate.open("astrarium")
    program = gate.program(kind)
    kernel = program.kernel("k")
    for _ in range(120):
        stream = program.stream()
        program.launch(kernel, stream=stream)
        program.check("cuStreamSynchronize", stream)
        program.check("cuStreamDestroy_v2", stream)
    assert program.stub("stale") == 0
    assert gate.clients()[kind]["in_flight"] == 0


def test_a_stream_that_ends_within_a_request_ends_the_request(gate: Gate) -> None:
    gate.open("astrarium")
    latency = gate.program("latency")
    stream = latency.stream()
    latency.launch(latency.kernel("hp"), stream=stream)
    latency.check("cuStreamDestroy_v2", stream)
    latency.check("cuCtxSynchronize")
    assert latency.stub("stale") == 0
    assert gate.counts("latency")["requests"] == 1


def test_the_default_stream_stays_with_the_class_of_the_process(gate: Gate) -> None:
    gate.open("astrarium")
    program = gate.program("latency")
    kernel = program.kernel("k")
    program.launch(kernel)
    program.check("cuCtxSynchronize")
    program.on("train", "mark_thread", 1, "train")
    program.on("train", "launch", kernel)
    program.on("train", "graph_of", [kernel], program.stream())
    program.launch(kernel, count=5)
    assert (gate.counts("latency")["kernels"], gate.counts("train")["kernels"]) == (6, 1)


def test_a_marked_thread_is_given_its_time_beside_throughput(gate: Gate) -> None:
    gate.open("astrarium", search_limit=0.1)
    latency = gate.program("latency")
    latency.launch(latency.kernel("hp"))
    latency.check("cuCtxSynchronize")
    program = gate.program(None, name="mixed")
    program.on("train", "mark_thread", 1, "train")
    program.on("train", "launch", program.kernel("be"), count=3)
    until(lambda: program.stub("did", KERNELS) == 3)


def test_a_program_that_is_stopped_keeps_nobody_waiting(gate: Gate) -> None:
    gate.open("reef-n", depth=1, lease=50_000_000)
    first, second = (gate.program("best-effort", name=name) for name in ("first", "second"))
    first.stub("automatic", 0)
    kernel = first.kernel("k")
    first.launch(kernel)
    first.later("launch", kernel)
    assert gate.await_held("first") == "drain"
    held = second.later("launch", second.kernel("k"))
    assert gate.await_held("second") == "drain"
    os.kill(first.process.pid, signal.SIGSTOP)
    try:
        assert held.result(PATIENCE) == 0
    finally:
        os.kill(first.process.pid, signal.SIGCONT)


def test_a_launch_that_was_held_does_not_break_a_capture_that_began_meanwhile(gate: Gate) -> None:
    gate.open("astrarium")
    program = gate.program(None, name="both")
    program.stub("automatic", 0)
    for thread, kind in (("serve", 0), ("train", 1)):
        program.on(thread, "mark_thread", kind, thread)
    serving, training, capturing = (program.stream() for _ in range(3))
    program.on("serve", "launch", program.kernel("hp"), stream=serving)
    program.on("serve", "request_end")
    held = program.later("launch", program.kernel("be"), stream=training, thread="train")
    gate.await_held("train")
    assert program.on("serve", "begin", capturing, 0) == 0
    program.on("other", "stub", "complete", serving, ALL)
    assert held.result(PATIENCE) == 0
    assert program.on("serve", "end", capturing)[0] == 0


def test_a_capture_may_end_with_its_stream(gate: Gate) -> None:
    gate.open("kernel-temporal")
    latency, best = gate.pair()
    stream = best.stream()
    assert best.begin(stream, 2) == 0
    best.check("cuStreamDestroy_v2", stream)
    latency.launch(latency.kernel("hp"))
    held = best.later("launch", best.kernel("be"))
    assert gate.await_held("best-effort") == "latency"
    latency.check("cuCtxSynchronize")
    assert held.result(PATIENCE) == 0


def test_who_comes_late_to_tick_tock_holds_nobody(gate: Gate) -> None:
    gate.open("tick-tock")
    latency = gate.program("latency")
    kernel = latency.kernel("k")
    for _ in range(6):
        latency.launch(kernel)
        latency.phase_end()
    best = gate.program("best-effort")
    late = best.later("launch", best.kernel("forward"))
    assert gate.await_held("best-effort") == "turn"
    assert latency.launch(kernel) == 0
    latency.phase_end()
    assert late.result(PATIENCE) == 0


def test_a_server_with_too_many_streams_is_told_that_some_are_not_protected(gate: Gate) -> None:
    gate.open("astrarium")
    latency = gate.program("latency")
    kernel = latency.kernel("hp")
    for _ in range(60):
        latency.launch(kernel, stream=latency.stream())
    assert gate.counts("latency")["kernels"] == 60
    assert "are not protected" in latency.leave()
