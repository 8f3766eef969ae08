"""Who comes and goes: boards, places on them, and clients that die."""

from __future__ import annotations

import os
import signal
import struct

import pytest

from astrarium._gate import Board
from tests.support.gate.remote import PATIENCE, Gate, Program, until

pytest_plugins = ("tests.support.gate.fixtures",)

KERNELS = 0
ALL = -1
VERSION_AT = 4  # bytes into the board


def test_programs_that_come_at_once_make_one_board(gate: Gate) -> None:
    programs = [gate.program("best-effort", f"client{number}") for number in range(6)]
    kernels = [program.kernel("k") for program in programs]
    launches = [program.later("launch", kernel) for program, kernel in zip(programs, kernels, strict=True)]
    assert [launch.result(PATIENCE) for launch in launches] == [0] * 6
    gate.board = Board(str(gate.board_path))
    assert sorted(gate.clients()) == [f"client{number}" for number in range(6)]
    assert gate.board.snapshot()["sms"] == 132


def test_whoever_comes_first_says_which_policy_it_is(gate: Gate) -> None:
    program = gate.program("latency", POLICY="orion")
    program.launch(program.kernel("k"))
    assert Board(str(gate.board_path)).snapshot()["policy"] == "orion"


@pytest.mark.parametrize("spoil", ["version", "size"])
def test_a_board_of_another_version_is_refused_and_everything_passes(gate: Gate, spoil: str) -> None:
    gate.open("kernel-temporal")
    content = bytearray(gate.board_path.read_bytes())
    struct.pack_into("I", content, VERSION_AT, 99)
    gate.board_path.write_bytes(content if spoil == "version" else content[:100])
    program = gate.program("best-effort")
    assert program.launch(program.kernel("k"), count=10) == 0
    assert program.stub("did", KERNELS) == 10
    assert [program.stub("calls", call) for call in ("cuEventRecord", "cuStreamWriteValue32_v2")] == [0, 0]
    output = program.leave()
    assert str(gate.board_path) in output
    assert "board of this version; this program passes freely" in output


def test_more_clients_than_places_pass_freely(gate: Gate) -> None:
    board = gate.open("kernel-temporal")
    for number in range(32):
        board.join("best-effort", f"client{number}")
    program = gate.program("best-effort", "late")
    assert program.launch(program.kernel("k")) == 0
    assert "all 32 places are taken" in program.leave()


def test_a_client_that_ends_gives_its_place_back(gate: Gate) -> None:
    gate.open("kernel-temporal")
    for _ in range(3):
        program = gate.program("latency")
        program.launch(program.kernel("k"))
        assert gate.clients()["latency"]["place"] == 0
        assert program.leave() == ""
    assert gate.clients() == {}


def test_a_child_is_a_client_of_its_own(gate: Gate) -> None:
    gate.open("streams")
    parent = gate.program("best-effort", start=False)
    kernel = parent.kernel("k")
    child = parent.fork([("start", []), ("launch", [kernel])])
    parent.start()
    parent.launch(kernel, count=2)
    seen = {client["pid"]: client["counts"]["kernels"] for client in gate.board.snapshot()["clients"]}
    assert seen == {child: 1, parent.process.pid: 2}
    os.kill(child, signal.SIGKILL)


def test_a_child_that_launches_nothing_takes_nothing_with_it(gate: Gate) -> None:
    gate.open("streams")
    parent = gate.program("latency")
    parent.launch(parent.kernel("k"))
    assert parent.fork_and_leave() == 0
    assert gate.clients()["latency"]["pid"] == parent.process.pid
    parent.launch(parent.kernel("k"))
    assert gate.counts("latency")["kernels"] == 2


def test_threads_are_clients_when_they_are_marked(gate: Gate) -> None:
    gate.open("streams")
    program = gate.program(None)
    kernel = program.kernel("k")
    for thread, kind in (("serve", 0), ("train", 1)):
        assert program.on(thread, "mark_thread", kind, thread) == 0
        program.on(thread, "launch", kernel, stream=program.stream(), count=kind + 1)
    program.launch(kernel, stream=program.stream())
    seen = {name: (client["kind"], client["counts"]["kernels"]) for name, client in gate.clients().items()}
    assert seen == {"serve": ("latency", 1), "train": ("best-effort", 2)}


def test_a_thread_can_be_marked_before_the_driver_is_used(gate: Gate) -> None:
    gate.open("reef-n", depth=1, window=4)
    program = gate.program(None, start=False)
    assert program.mark_thread(1, "early") == 0
    program.start()
    program.stub("automatic", 0)
    kernel = program.kernel("k")
    program.launch(kernel)
    held = program.later("launch", kernel)
    assert gate.await_held("early") == "drain"
    program.on("watch", "stub", "complete", 0, ALL)
    assert held.result(PATIENCE) == 0


def test_a_mark_can_be_taken_away(gate: Gate) -> None:
    gate.open("streams")
    program = gate.program("best-effort", "process")
    kernel = program.kernel("k")
    program.mark_thread(0, "thread")
    program.launch(kernel, stream=program.stream())
    program.mark_thread(-1)
    program.launch(kernel, stream=program.stream())
    assert (gate.counts("thread")["kernels"], gate.counts("process")["kernels"]) == (1, 1)


def test_marking_the_same_client_again_takes_no_second_place(gate: Gate) -> None:
    gate.open("streams")
    program = gate.program(None)
    for number in range(40):
        assert program.on(f"worker{number}", "mark_thread", 1, "train") == 0
    assert len(gate.board.snapshot()["clients"]) == 1


@pytest.mark.parametrize(
    "reap",
    [True, False],
)
def test_best_effort_goes_on_when_the_latency_client_is_killed(gate: Gate, reap: bool) -> None:
    """Also while nobody has asked how it ended: it is a zombie then."""
    gate.open("kernel-temporal")
    latency, best = gate.pair()
    latency.launch(latency.kernel("hp"))
    held = best.later("launch", best.kernel("be"))
    gate.await_held("best-effort")
    latency.kill(reap)
    assert held.result(PATIENCE) == 0
    assert set(gate.clients()) == {"best-effort"}


def test_best_effort_goes_on_when_the_latency_client_gives_no_sign_of_life(gate: Gate) -> None:
    board = gate.open("kernel-temporal")
    latency, best = gate.pair()
    latency.launch(latency.kernel("hp"))
    held = best.later("launch", best.kernel("be"))
    gate.await_held("best-effort")
    board.set(lease=1_000_000)
    assert held.result(PATIENCE) == 0
    assert set(gate.clients()) == {"latency", "best-effort"}


@pytest.mark.parametrize(
    "reap",
    [True, False],
)
def test_what_a_killed_best_effort_client_had_in_flight_holds_nobody(gate: Gate, reap: bool) -> None:
    gate.open("reef-n", depth=1)
    one, other = (gate.program("best-effort", name) for name in ("one", "other"))
    one.stub("automatic", 0)
    one.launch(one.kernel("k"))
    held = other.later("launch", other.kernel("k"))
    assert gate.await_held("other") == "drain"
    one.kill(reap)
    assert held.result(PATIENCE) == 0
    assert set(gate.clients()) == {"other"}


def test_a_best_effort_client_that_is_killed_while_it_waits_does_not_keep_its_turn(gate: Gate) -> None:
    gate.open("kernel-temporal")
    latency, first = gate.pair()
    latency.launch(latency.kernel("hp"))
    second = gate.program("best-effort", "second")
    first.later("launch", first.kernel("k"))
    gate.await_held("best-effort")
    held = second.later("launch", second.kernel("k"))
    gate.await_held("second")
    first.kill()
    latency.check("cuStreamSynchronize", 0)
    assert held.result(PATIENCE) == 0


def test_the_board_can_be_swept_by_whoever_looks_at_it(gate: Gate) -> None:
    board = gate.open("streams")
    program = gate.program("latency")
    program.launch(program.kernel("k"))
    program.kill()
    until(lambda: board.sweep() or not gate.clients())
    assert gate.clients() == {}


def test_no_stream_is_used_after_the_program_has_destroyed_it(gate: Gate) -> None:
    gate.open("reef-n")
    program = gate.program("best-effort", PROFILE=gate.profile(k=1_000))
    kernel = program.kernel("k")
    use_and_destroy(program, kernel)
    program.check("cuCtxSynchronize")
    assert program.stub("stale") == 0
    assert gate.clients()["best-effort"]["in_flight"] == 0


def use_and_destroy(program: Program, kernel: int) -> None:
    stream = program.stream()
    program.launch(kernel, stream=stream, count=3)
    program.check("cuStreamDestroy_v2", stream)
