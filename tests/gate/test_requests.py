"""Where requests and phases end, and policies that give turns by them."""

from __future__ import annotations

import pytest

from tests.support.gate.remote import PATIENCE, Gate

pytest_plugins = ("tests.support.gate.fixtures",)

ALL = -1


def test_temporal_runs_one_request_at_a_time(gate: Gate) -> None:
    gate.open("temporal")
    latency, best = gate.pair()
    best.launch(best.kernel("be"), count=3)
    held = latency.later("launch", latency.kernel("hp"))
    assert gate.await_held("latency") == "turn"
    best.request_end()
    best.stub("complete", 0, ALL)
    assert held.result(PATIENCE) == 0
    waiting = best.later("launch", best.kernel("be"))
    assert gate.await_held("best-effort") == "turn"
    latency.check("cuStreamSynchronize", 0)
    assert waiting.result(PATIENCE) == 0


def test_tick_tock_lets_phases_alternate(gate: Gate) -> None:
    gate.open("tick-tock")
    latency = gate.program("latency")
    best = gate.program("best-effort")
    latency.launch(latency.kernel("forward"))
    held = best.later("launch", best.kernel("forward"))
    assert gate.await_held("best-effort") == "turn"
    latency.phase_end()
    assert held.result(PATIENCE) == 0
    latency.launch(latency.kernel("backward"))
    latency.phase_end()
    ahead = latency.later("launch", latency.kernel("forward"))
    assert gate.await_held("latency") == "turn"
    best.phase_end()
    assert ahead.result(PATIENCE) == 0


WAITS = {
    "cuStreamSynchronize": "stream",
    "cuStreamSynchronize_ptsz": "stream",
    "cuEventSynchronize": "event",
    "cuCtxSynchronize": "nothing",
    "cuCtxSynchronize_v2": "context",
    "cuMemcpyDtoH_v2": "copy",
    "cuMemcpyDtoH_v2_ptds": "copy",
}


@pytest.mark.parametrize("call", WAITS)
def test_a_request_ends_where_the_program_waits_for_the_gpu(gate: Gate, call: str) -> None:
    gate.open("kernel-temporal")
    latency = gate.program("latency")
    kernel = latency.kernel("hp")
    event = latency.event()
    memory = latency.made("cuMemAlloc_v2", 8)
    arguments = {
        "stream": [2 if "ptsz" in call else 0],
        "event": [event],
        "nothing": [],
        "context": [0],
        "copy": [latency.buffer("", 8), memory, 8],
    }[WAITS[call]]
    entry = "cuLaunchKernel_ptsz" if call == "cuStreamSynchronize_ptsz" else "cuLaunchKernel"
    for number in (1, 2):
        latency.launch(kernel, count=5, entry=entry)
        latency.check("cuEventRecord", event, 0)
        latency.check(call, *arguments)
        client = gate.clients()["latency"]
        assert (client["counts"]["requests"], client["in_request"]) == (number, False)
        assert client["in_flight"] == 0
