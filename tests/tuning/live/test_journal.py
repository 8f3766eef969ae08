"""Runs that were killed go on with what their journal and their checkpoints kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from astrarium.tuning.live.backend import Checkpoint
from astrarium.tuning.live.checkpoints import Checkpoints
from astrarium.tuning.live.run.journal import FileJournal
from tests.support.tuning.live_search import Play, all_ended_well
from tests.tuning.live.test_live_tuning import SYNCHRONOUS


def test_who_failed_is_not_trained_again_by_a_run_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    kept = KeptCheckpoints()
    first = Play("hyperband", "fifo", gpus=2, journal=FileJournal(path, kept), kept=kept.all)
    first.backend.failing = lambda number, at: "out of memory" if number == 0 else ""
    first.go()
    again = Play("hyperband", "fifo", gpus=2, journal=FileJournal(path, kept), kept=kept.all).go()
    assert again.endings() == first.endings()
    assert not again.backend.started
    assert again.live.session.candidates[0].reason == "out of memory"
    assert again.outcomes() == first.outcomes()


class KeptCheckpoints(Checkpoints):
    def __init__(self) -> None:
        self.all: set[Checkpoint] = set()

    def kept(self, candidate: int) -> list[int]:
        return [checkpoint.iterations for checkpoint in self.all if checkpoint.candidate == candidate]

    def clear(self, candidate: int) -> None:
        self.all -= {checkpoint for checkpoint in self.all if checkpoint.candidate == candidate}


@pytest.mark.parametrize("search", SYNCHRONOUS)
@pytest.mark.parametrize("every", [1, 4, 11])
def test_a_run_that_is_killed_goes_on_where_it_was(search: str, every: int, tmp_path: Path) -> None:
    """Again and again. Nothing is trained twice but the iteration that was going on."""
    whole = Play(search, "dynamic-fluid").go()
    kept = KeptCheckpoints()
    trained = list[tuple[int, int]]()
    lives = 0
    while True:
        journal = FileJournal(tmp_path / "journal", kept)
        played = Play(search, "dynamic-fluid", journal=journal, kept=kept.all)
        budget = iter(range(every + 2))
        played.go(lambda budget=budget: next(budget, None) is None)  # type: ignore[misc]
        trained += played.backend.trained
        lives += 1
        if played.live.over:
            break
        assert lives < 1000
    all_ended_well(played)
    assert played.endings() == whole.endings()
    assert played.live.session.best[-1][1:] == whole.live.session.best[-1][1:]
    assert Counter(trained) == Counter(whole.backend.trained)
    assert lives > 1


def test_a_finished_run_that_is_run_again_trains_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    kept = KeptCheckpoints()
    first, again = (
        Play("hyperband", "dynamic-fluid", journal=FileJournal(path, kept), kept=kept.all).go()
        for _ in range(2)
    )
    assert again.endings() == first.endings()
    assert not again.backend.started
    assert again.clock.now == 0


def test_what_has_no_checkpoint_or_other_values_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    kept = KeptCheckpoints()
    Play("random", "fifo", journal=FileJournal(path, kept), kept=kept.all).go()
    kept.clear(2)
    again = Play("random", "fifo", journal=FileJournal(path, kept), kept=kept.all).go()
    assert {work.candidate for work in again.backend.started} == {2}
    other = Play("random", "fifo", seed=7, journal=FileJournal(path, kept), kept=kept.all).go()
    assert {work.candidate for work in other.backend.started} == set(range(9))
    assert all(work.start is None for work in other.backend.started)


def test_a_torn_line_never_was(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    kept = KeptCheckpoints()
    kept.all.add(Checkpoint(0, 3))
    values = {"rate": 0.1, "kind": "gru", "none": None, "odd": {1, 2}}
    FileJournal(path, kept).began(0, values)
    kept.all.add(Checkpoint(0, 3))
    FileJournal(path, kept).finished(0, values, 3, 0.5)
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(b'{"candidate": 1, "val')
    journal = FileJournal(path, kept)
    known = journal.result(0, values, 3)
    assert known is not None
    assert known.value == 0.5
    assert path.read_bytes() == whole
    assert journal.result(0, {**values, "rate": 0.2}, 3) is None
    assert (journal.kept(0, values, 4), journal.kept(0, values, 3), journal.kept(1, values, 4)) == (3, 0, 0)


def test_checkpoints_are_files_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "4").mkdir()
    for name in ("1.pt", "12.pt", "3.pt.tmp", "best.pt"):
        (tmp_path / "4" / name).write_bytes(b"")
    folder = Checkpoints(tmp_path)
    assert folder.kept(4) == [1, 12]
    assert folder.kept(5) == []
    folder.clear(4)
    folder.clear(5)
    assert folder.kept(4) == []
