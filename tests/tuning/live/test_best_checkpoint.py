"""Of each candidate the best checkpoint is kept beside the newest, within what saving may cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astrarium.tuning.live.backend import Checkpoint, Work
from astrarium.tuning.live.checkpoints import Checkpoints, path, read
from astrarium.tuning.live.slots import member
from astrarium.tuning.live.slots.member import GangMember
from astrarium.tuning.live.slots.messages import Begin, Message, Saved, SlotSetup
from astrarium.tuning.runtime import Place

LOWEST = 4
TOTAL = 8


class Rising:
    """Values fall until iteration 4, and rise afterwards."""

    def __init__(self) -> None:
        self.done = 0

    def step(self) -> float:
        self.done += 1
        return float(abs(self.done - LOWEST))

    def save(self) -> int:
        return self.done

    def load(self, state: int) -> None:
        self.done = state


@pytest.fixture(autouse=True)
def saving_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "SAVING_SECONDS", 1000.0)


def saved_by(folder: Path, best: float | None = None, start: int = 0, **setup: Any) -> list[tuple[int, bool]]:
    """Train one candidate here; return which iterations were saved on the way, and whether as the best."""
    told: list[Message] = []
    begins = Checkpoint(0, start) if start else None
    work = Work(0, 0, 0, {}, Place((0,)), TOTAL, begins, best)
    one = GangMember(Begin(work, str(folder), 1000.0), SlotSetup(**setup), told.append)
    assert one.train(lambda: lambda values, workers: Rising()).ending == "finished"
    return [(message.iterations, message.best) for message in told if isinstance(message, Saved)]


def test_each_better_state_is_saved(tmp_path: Path) -> None:
    assert saved_by(tmp_path) == [(1, True), (2, True), (3, True), (4, True)]
    assert read(tmp_path, Checkpoint(0, LOWEST)) == LOWEST
    assert read(tmp_path, Checkpoint(0, TOTAL)) == TOTAL  # the last, with which the run ended


def test_where_more_is_better_the_ends_are_saved(tmp_path: Path) -> None:
    assert saved_by(tmp_path, goal="max") == [(1, True), (8, True)]


def test_only_the_last_is_kept_if_asked(tmp_path: Path) -> None:
    assert saved_by(tmp_path, keep="last", goal="max") == [(8, True)]  # it is the best, too
    assert saved_by(tmp_path, keep="last", target=1.0) == [(3, True), (4, True)]  # they end the search


def test_a_best_that_cannot_be_saved_does_not_end_a_candidate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(self: Rising) -> int:
        if self.done == 2:
            raise OSError("no room")
        return self.done

    monkeypatch.setattr(Rising, "save", save)
    assert saved_by(tmp_path) == [(1, True)]
    assert "could not be saved" in capsys.readouterr().err
    assert read(tmp_path, Checkpoint(0, TOTAL)) == TOTAL


def test_who_leaves_at_its_best_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last state is the best that is kept, though no better one was saved on the way."""
    monkeypatch.setattr(member, "SAVING_SECONDS", -1000.0)
    assert saved_by(tmp_path, goal="max") == [(8, True)]


def test_who_goes_on_saves_what_is_as_good_as_before(tmp_path: Path) -> None:
    """An equal value may never have been saved: its process was lost."""
    saved_by(tmp_path)
    assert saved_by(tmp_path, best=0.0, start=3) == [(4, True)]
    assert saved_by(tmp_path, best=-1.0, start=3) == []


def test_where_saving_takes_too_long_only_a_target_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "SAVING_SECONDS", 0.0)
    monkeypatch.setattr(member, "SAVING_SHARE", 0.0)
    assert saved_by(tmp_path) == [(8, True)]  # with which it ends
    assert saved_by(tmp_path, target=1.0) == [(3, True), (4, True)]


def test_the_best_file_stays_until_there_is_a_better_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)

    def wrote(iterations: int, keep: bool = False, best: bool = False) -> list[int]:
        file = path(tmp_path, Checkpoint(0, iterations))
        file.parent.mkdir(exist_ok=True)
        file.touch()
        checkpoints.wrote(0, iterations, keep, best)
        return checkpoints.kept(0)

    assert wrote(1, best=True) == [1]
    assert wrote(2, best=True) == [2]
    assert wrote(3) == [2, 3]
    assert wrote(4) == [2, 4]
    assert wrote(5, keep=True) == [2, 5]  # a trial ended with it: others may begin there
    assert wrote(6, best=True) == [5, 6]
    assert wrote(7) == [5, 6, 7]
