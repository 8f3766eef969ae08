"""The board of a GPU from Python: what it shows, what may be set, and whose places are taken back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import msgspec
import pytest

from astrarium.cli.gate.policy import DEFAULT, KERNEL_POLICIES
from astrarium.core.errors import AstrariumError, InputError
from astrarium.gate import board as board_module
from astrarium.gate import marked, phase_end, request_end
from astrarium.gate.board import board_path, native
from astrarium.gate.board_settings import read_settings, settings_table, write_setting
from astrarium.gate.marking import NotUnderTheGate
from tests.support.gate.boards import Board

PLACES = 32
JOIN_AND_DIE = """
import os, sys
from pathlib import Path
from astrarium.gate.board import Board
Board(Path(sys.argv[1]))._board.join("best-effort", "gone")
os._exit(0)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "board"


def join_and_die(path: Path) -> None:
    subprocess.run([sys.executable, "-c", JOIN_AND_DIE, str(path)], check=True)


def test_who_comes_first_makes_it(path: Path) -> None:
    assert Board.find(path) is None
    first = Board(path, "orion", 108)
    second = Board(path, "streams", 7)
    for board in (first, second):
        view = board.view()
        assert (view.policy, view.sms, view.clients, view.path) == ("orion", 108, [], str(path))
    assert Board.find(path) is not None
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_usual_policy_is_the_one_that_is_listed_as_such(path: Path) -> None:
    assert Board(path).view().policy == DEFAULT


def test_clients_come_and_go(path: Path) -> None:
    board = Board(path)
    latency = board.join("latency", "serve")
    training = board.join("best-effort", "train")
    one, other = Board(path).view().clients
    assert (one.place, one.pid, one.name, one.kind) == (latency, os.getpid(), "serve", "latency")
    assert (other.place, other.name, other.kind) == (training, "train", "best-effort")
    assert (one.running, one.in_flight, one.in_flight_ns, one.waiting) == (False, 0, 0, None)
    assert one.launches == one.counts.held == 0
    assert set(one.counts.waits) == {"latency", "drain", "unknown", "turn"}
    board.leave(latency)
    assert [client.name for client in board.view().clients] == ["train"]


def test_the_place_of_a_dead_process_is_taken_back_and_no_other(path: Path) -> None:
    board = Board(path)
    board.join("latency", "alive")
    join_and_die(path)
    assert [client.name for client in board.view().clients] == ["alive", "gone"]
    assert board.sweep() == 1
    assert [client.name for client in board.view().clients] == ["alive"]
    assert board.sweep() == 0


def test_a_full_board_has_room_again_when_somebody_has_died(path: Path) -> None:
    board = Board(path)
    for number in range(PLACES - 1):
        board.join("best-effort", f"job{number}")
    join_and_die(path)
    assert board.join("latency", "last") == PLACES - 1
    with pytest.raises(ValueError, match="all are taken"):
        board.join("latency", "one too many")


def test_a_class_that_is_none(path: Path) -> None:
    with pytest.raises(ValueError, match="latency or best-effort"):
        Board(path).join("urgent", "x")


def test_settings_are_changed_together_and_seen_by_all(path: Path) -> None:
    board = Board(path)
    other = Board(path)
    board.change("orion", {"sm_threshold": 40, "lease": 5_000_000, "partition": 24, "chunk": 65536})
    view = other.view()
    assert view.policy == "orion"
    assert {name: view.settings[name] for name in ("sm_threshold", "lease", "partition", "chunk")} == {
        "sm_threshold": 40, "lease": 5_000_000, "partition": 24, "chunk": 65536,
    }  # fmt: skip


def test_a_new_policy_begins_with_its_defaults_but_for_what_was_learnt(path: Path) -> None:
    board = Board(path)
    usual = board.view().settings
    board.change(settings={"window": 7, "latency": 1234, "harm_compute": 0.25})
    board.change("orion")
    settings = board.view().settings
    assert (settings["latency"], settings["harm_compute"]) == (1234, 0.25)
    assert settings["window"] == usual["window"]


def test_the_same_policy_keeps_what_was_set(path: Path) -> None:
    board = Board(path)
    board.change(settings={"window": 7})
    board.change(board.view().policy, {"allowance": 0.5})
    assert (board.view().settings["window"], board.view().settings["allowance"]) == (7, 0.5)


@pytest.mark.parametrize(
    ("policy", "settings", "expected"),
    [
        ("orien", {}, r"policy: expected one of .*did you mean 'orion'\? \(got 'orien'\)"),
        (None, {"windo": 1}, r"windo: expected one of .*did you mean 'window'"),
        (None, {"window": -1}, r"window: expected a number, 0 to .*\(got -1\)"),
        (None, {"depth": 0}, r"depth: expected a number, 1 to"),
        (None, {"depth": 1.5}, r"depth: expected a whole number"),
        (None, {"allowance": float("nan")}, r"allowance: expected a number"),
        (None, {"lease": True}, r"lease: expected a number"),
        (None, {"harm_copy": 5}, r"harm_copy: expected a number, 0 to 4"),
    ],
)
def test_a_wrong_setting_changes_nothing(
    path: Path, policy: str | None, settings: dict[str, float], expected: str
) -> None:
    board = Board(path)
    before = board.view().settings
    with pytest.raises(InputError, match=expected):
        board.change(policy, {"chunk": 8192, **settings})
    assert board.view().settings == before


def test_what_is_no_board_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"something else" * 100_000)
    with pytest.raises(InputError, match="no board of this version; remove it when no program uses it"):
        Board(path)
    assert path.read_bytes().startswith(b"something else")


def test_a_board_where_no_file_can_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        Board(tmp_path / "nowhere" / "board")
    with pytest.raises(InputError, match="sms: expected 1 to"):
        Board(tmp_path / "board", sms=0)


def test_without_the_compiled_module_it_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "extension", lambda name: None)
    with pytest.raises(AstrariumError, match="_gate"):
        Board(path)


def test_every_gpu_has_its_board() -> None:
    assert board_path("1", {}) == Path(f"/dev/shm/astrarium-gate-{os.getuid()}-1")
    assert board_path("MIG-1/2", {}).name == f"astrarium-gate-{os.getuid()}-MIG-1-2"
    assert board_path("1", {"ASTRARIUM_GATE_BOARD": "/x/y"}) == Path("/x/y")


def test_coverage_and_slowdown_need_something_to_compare_with(path: Path) -> None:
    board = Board(path)
    board.join("latency", "serve")
    client = board.view().clients[0]
    assert (client.coverage, client.slowdown) == (None, None)
    counts = msgspec.structs.replace(client.counts, kernels=90, graphs=5, copies=7, captured=50, ran=100)
    seen = msgspec.structs.replace(client, counts=counts, alone=2_000, last=3_000)
    assert (seen.launches, seen.coverage, seen.slowdown) == (102, 0.95, 1.5)


def test_settings_are_written_as_they_are_read(path: Path) -> None:
    for name, value in Board(path).view().settings.items():
        assert read_settings([f"{name}={write_setting(name, value)}"]) == {name: value}


def test_units() -> None:
    assert read_settings(["window=0.15ms", "chunk=1MiB", "allowance=.1", "depth=3"]) == {
        "window": 150_000, "chunk": 2**20, "allowance": 0.1, "depth": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("window", "NAME=VALUE"),
        ("windo=1us", "did you mean 'window'"),
        ("window=150", "a duration with its unit"),
        ("window=2h", "0ms to 3600s"),
        ("chunk=5", "a size with its unit"),
        ("depth=1.5", "a whole number"),
        ("allowance=much", "a number"),
        ("allowance=nan", "0 to 100"),
    ],
)
def test_what_cannot_be_read(text: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        read_settings([text])


def test_every_policy_has_a_description() -> None:
    assert list(KERNEL_POLICIES) == native().policy_names()


def test_settings_of_one_policy_begin_with_its_name() -> None:
    first = {setting.about.split()[0] for setting in settings_table().values()}
    assert {word[:-1] for word in first if word.endswith(":")} == {"orion", "reef-n", "astrarium"}


def test_a_process_that_is_not_under_the_gate_cannot_mark_itself() -> None:
    for call in (request_end, phase_end, lambda: marked("latency").__enter__()):
        with pytest.raises(NotUnderTheGate, match="astrarium gate run"):
            call()


def test_only_classes_that_exist() -> None:
    with pytest.raises(InputError, match="latency or best-effort"), marked("urgent"):
        pass


def test_marks_are_the_threads_own_and_end_with_their_block(monkeypatch: pytest.MonkeyPatch) -> None:
    from astrarium.gate import marking

    calls: list[tuple[int, bytes]] = []

    class Gate:
        @staticmethod
        def astrarium_gate_mark_thread(kind: int, name: bytes) -> int:
            calls.append((kind, name))
            return 0

    def mark() -> None:
        with marked("best-effort", "thread"):
            pass

    monkeypatch.setattr(marking, "_gate", Gate)
    with marked("latency", "outer"):
        with pytest.raises(RuntimeError), marked("best-effort", "inner"):
            raise RuntimeError
        other = Thread(target=mark)
        other.start()
        other.join()
    inner = [(1, b"inner"), (0, b"outer")]
    assert calls == [(0, b"outer"), *inner, (1, b"thread"), (-1, b""), (-1, b"")]
