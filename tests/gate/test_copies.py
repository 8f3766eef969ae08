"""Large best-effort copies go in pieces, and wait like kernels."""

from __future__ import annotations

import pytest

from tests.support.gate.remote import PATIENCE, Gate

pytest_plugins = ("tests.support.gate.fixtures",)

ALL = -1


@pytest.mark.parametrize("call", ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"])
def test_large_best_effort_copies_go_in_pieces(gate: Gate, call: str) -> None:
    gate.open("astrarium", chunk=1 << 20)
    best = gate.program("best-effort")
    size = (5 << 20) // 2
    source = best.buffer("to the last byte" * (size // 16), size + 1)
    target = best.made("cuMemAlloc_v2", size)
    assert best.call(call, target, source, size, best.stream()) == 0
    assert best.stub("calls", call) == 3
    assert best.peek(target, size) == best.peek(source, size)
    assert gate.counts("best-effort")["copies"] == 3


@pytest.mark.parametrize("call", ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"])
def test_large_best_effort_copies_wait_for_latency_work_and_small_ones_do_not(gate: Gate, call: str) -> None:
    gate.open("kernel-temporal", chunk=1 << 20)
    latency, best = gate.pair()
    stream = best.stream()
    size = 3 << 20
    source = best.buffer("x", size)
    target = best.made("cuMemAlloc_v2", size)
    latency.launch(latency.kernel("hp"))
    latency.request_end()
    assert best.call(call, target, source, 4096, stream) == 0
    held = best.later("call", call, target, source, size, stream)
    gate.await_held("best-effort")
    assert best.on("watch", "stub", "calls", call) == 1
    latency.stub("complete", 0, ALL)
    assert held.result(PATIENCE) == 0
    assert best.stub("calls", call) == 1 + 3


def test_copies_of_latency_clients_are_left_alone(gate: Gate) -> None:
    gate.open("astrarium", chunk=1 << 20)
    latency = gate.program("latency")
    size = 3 << 20
    target = latency.made("cuMemAlloc_v2", size)
    latency.check("cuMemcpyHtoDAsync_v2", target, latency.buffer("x", size), size, 0)
    assert latency.stub("calls", "cuMemcpyHtoDAsync_v2") == 1
