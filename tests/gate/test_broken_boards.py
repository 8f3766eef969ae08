"""Boards that hold anything: clients whose board is overwritten or cut short neither crash nor hang."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from astrarium.core.errors import InputError
from tests.support.gate.boards import Board
from tests.support.gate.remote import PATIENCE, Gate, Program, until

pytest_plugins = ("tests.support.gate.fixtures",)

# Name, and settings beside it.
POLICIES: dict[str, tuple[str, dict[str, float]]] = {
    "astrarium": ("astrarium", {}),
    "astrarium for throughput": ("astrarium", {"search_limit": 0.1}),
    "kernel-temporal": ("kernel-temporal", {}),
    "orion": ("orion", {"search_limit": 0.1}),
    "reef-n": ("reef-n", {}),
    "temporal": ("temporal", {}),
    "tick-tock": ("tick-tock", {}),
}
# Bytes: of the board before its places, of a place before its name, and with its first track.
HEAD = 256
NAME_AT = 20
PLACE_HEAD = 1152
WORDS = (0, 1, 2**32 - 1)
KERNELS = 0


QUICK = ("astrarium", "temporal")
KINDS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in POLICIES]


@pytest.fixture(params=KINDS)
def running(gate: Gate, request: pytest.FixtureRequest) -> Running:
    policy, settings = POLICIES[request.param]
    gate.open(policy, lease=50_000_000, **settings)
    return Running(gate)


class Running:
    """Two programs at work, and one that has a client of each class."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.workers = [(gate.program("latency"), "main"), (gate.program("best-effort"), "main")]
        both = gate.program(None)
        for kind, name in enumerate(("hp", "be")):
            both.on(name, "mark_thread", kind, name)
            self.workers.append((both, name))
        self.labours = [
            (program, thread, program.kernel("k", duration=1000), program.stream())
            for program, thread in self.workers
        ]

    def while_at_work(self, spoil: Callable[[], object], seconds: float) -> list[int]:
        """Spoil the board again and again meanwhile; return how many requests each of them made."""
        answers = [
            program.later("labour", kernel, stream, seconds, thread=thread)
            for program, thread, kernel, stream in self.labours
        ]
        end = time.monotonic() + seconds + PATIENCE
        while not all(answer.done() for answer in answers) and time.monotonic() < end:
            spoil()
            time.sleep(0.002)
        return [int(answer.result(0.1)) for answer in answers]

    def end(self) -> None:
        """All of them end in an orderly way."""
        for program in dict(self.workers):
            program.leave()


def write(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def places(content: bytes) -> list[int]:
    """Where the places of clients that are there begin."""
    names = (b"latency\0", b"best-effort\0", b"hp\0", b"be\0")
    return [content.index(name, HEAD) - NAME_AT for name in names if name in content[HEAD:]]


def fields(content: bytes) -> Iterator[int]:
    yield from range(0, HEAD, 4)
    for place in places(content):
        yield from range(place, place + PLACE_HEAD, 4)


def test_any_field_may_be_nothing_one_or_the_largest_number(running: Running) -> None:
    path = running.gate.board_path
    chance = random.Random(1)
    before = path.read_bytes()
    targets = [(at, word) for at in fields(before) for word in WORDS]
    chance.shuffle(targets)

    def spoil() -> None:
        for at, word in [targets.pop() for _ in range(min(8, len(targets)))]:
            write(path, at, word.to_bytes(4, "little") * chance.choice((1, 2)))

    assert all(running.while_at_work(spoil, 1.2))
    running.end()


@pytest.mark.parametrize("seed", range(2))
def test_any_bytes_may_be_anything(running: Running, seed: int) -> None:
    path = running.gate.board_path
    chance = random.Random(seed)
    heads = places(path.read_bytes())

    def spoil() -> None:
        at = chance.choice((0, *heads)) + chance.randrange(PLACE_HEAD)
        write(path, at, chance.randbytes(chance.randint(1, 64)))

    assert all(running.while_at_work(spoil, 0.5))
    running.end()


def test_the_whole_board_may_be_anything(running: Running) -> None:
    path = running.gate.board_path
    chance = random.Random(1)
    size = path.stat().st_size
    contents = [chance.randbytes(size), bytes(size), b"\xff" * size]
    assert all(running.while_at_work(lambda: write(path, 0, chance.choice(contents)), 0.5))
    running.end()


@pytest.mark.parametrize("share", [0, 0.001, 0.5])
def test_a_board_that_is_cut_short_is_left(running: Running, share: float) -> None:
    path = running.gate.board_path
    size = int(path.stat().st_size * share)

    def cut() -> None:
        if time.monotonic() > when:
            os.truncate(path, size)

    when = time.monotonic() + 0.1
    assert all(running.while_at_work(cut, 0.3))
    best = running.workers[1][0]
    assert "cut short while it was used; this program passes freely" in best.leave()


@pytest.mark.parametrize("share", [0, 0.5])
def test_who_stands_before_a_fence_of_a_board_that_is_cut_short_goes_on(gate: Gate, share: float) -> None:
    gate.open("astrarium")
    latency, best = gate.pair()
    best.stub("automatic", 1)
    latency.launch(latency.kernel("hp"))
    best.launch(best.kernel("be"))
    waits = best.later("check", "cuStreamSynchronize", 0)
    os.truncate(gate.board_path, int(gate.board_path.stat().st_size * share))
    waits.result(PATIENCE)
    assert best.stub("did", KERNELS) == 1


@pytest.mark.parametrize("size", [0, 4096])
def test_who_is_held_on_a_board_that_is_cut_short_goes_on(gate: Gate, size: int) -> None:
    gate.open("kernel-temporal")
    latency, best = gate.pair()
    latency.launch(latency.kernel("hp"))
    held = best.later("launch", best.kernel("be"))
    gate.await_held("best-effort")
    os.truncate(gate.board_path, size)
    assert held.result(PATIENCE) == 0


def test_who_has_lost_its_place_passes_and_says_so(gate: Gate) -> None:
    gate.open("streams")
    program = gate.program("best-effort")
    kernel = program.kernel("k")
    program.launch(kernel)
    write(gate.board_path, places(gate.board_path.read_bytes())[0], bytes(8))
    until(lambda: program.errors)
    assert program.launch(kernel, count=5) == 0
    assert "place on the board was overwritten; it passes freely" in program.leave()


def test_a_place_that_makes_no_sense_is_free_again(tmp_path: Path) -> None:
    board = Board(tmp_path / "board")
    board.join("latency", "latency")
    for state in (3, 6, 7, 1, 2**32 - 1):
        write(tmp_path / "board", places((tmp_path / "board").read_bytes())[0], state.to_bytes(4, "little"))
        assert (board.sweep(), board.view().clients) == (1, [])
        board.join("latency", "latency")


def cut_short_and_noticed(gate: Gate, program: Program, kernel: int) -> None:
    os.truncate(gate.board_path, 0)
    assert program.launch(kernel, count=5) == 0
    until(lambda: "cut short" in "".join(program.errors))


def test_a_handler_that_the_program_sets_later_does_not_see_it(gate: Gate) -> None:
    gate.open("streams")
    program = gate.program("best-effort")
    kernel = program.kernel("k")
    program.launch(kernel)
    program.print_tracebacks()
    time.sleep(0.2)  # now and then the gate looks whose turn it is
    cut_short_and_noticed(gate, program, kernel)
    assert "Fatal" not in program.leave()


@pytest.mark.parametrize("first", [True, False])
def test_the_programs_own_faults_are_its_own(gate: Gate, tmp_path: Path, first: bool) -> None:
    gate.open("streams")
    program = gate.program("best-effort")
    kernel = program.kernel("k")
    if first:
        program.print_tracebacks()
    program.launch(kernel)
    if not first:
        program.print_tracebacks()
    time.sleep(0.1)
    cut_short_and_noticed(gate, program, kernel)
    program.later("fault", str(tmp_path / "own"))
    assert program.process.wait(PATIENCE) == -signal.SIGBUS
    assert program.said().count("Fatal Python error: Bus error") == 1


def test_python_says_that_a_board_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "board"
    board = Board(path)
    board.join("latency", "x")
    os.truncate(path, 0)
    with pytest.raises(InputError, match="a board that can be used, but it was cut short while it was open"):
        board.view()


@pytest.mark.parametrize("seed", range(20))
def test_python_shows_whatever_a_board_holds(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "board"
    chance = random.Random(seed)
    board = Board(path)
    board.join("latency", "latency")
    place = places(path.read_bytes())[0]
    write(path, 0, chance.randbytes(HEAD))
    write(path, place + 4, chance.randbytes(PLACE_HEAD))
    assert board.view().policy
    board.change("orion", {"lease": 5_000_000})
    assert (board.view().policy, board.view().settings["lease"]) == ("orion", 5_000_000)


def test_others_cannot_read_a_board_and_one_that_they_can_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "board"
    before = os.umask(0)
    try:
        Board(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o620)
    with pytest.raises(InputError, match="other users may write to it"):
        Board(path)
