"""A job on a full disk goes on with its checkpoint before, and its last one and its result wait."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

import pytest

from astrarium.cluster.live.machine import checkpoint_file
from astrarium.cluster.live.machine import session as session_module
from astrarium.cluster.live.machine.keeping import records
from astrarium.cluster.live.machine.keeping.pauses import SELDOM
from astrarium.cluster.live.machine.session import STOPPED, Session
from tests.support.cluster.full_disk import Clock, failing, os_error


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A session in a folder of its own, in virtual time, with a grace of 20 s."""
    monkeypatch.setenv("ASTRARIUM_FOLDER", str(tmp_path / "kept"))
    monkeypatch.setenv("ASTRARIUM_GRACE", "20")
    one = Clock()
    monkeypatch.setattr(session_module, "time", one)
    return one


def test_a_checkpoint_without_room_leaves_the_one_before_it(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Session(every=10)
    real = checkpoint_file._dump
    for step in one.steps(100):
        clock.now += 1
        broken = 20 <= step < 75
        monkeypatch.setattr(checkpoint_file, "_dump", failing(1, os_error(), real) if broken else real)
        one.checkpoint(step)
        if step == 70:
            assert Session().restore() == 10
            report = json.loads((one.folder / "progress.json").read_text())
            assert report["kept"] == 0.11
            assert report["progress"] > 0.6
    assert Session().restore() == 99
    assert sorted(path.name for path in one.folder.iterdir()) == ["checkpoint", "progress.json", "ready"]
    first, second = capsys.readouterr().err.splitlines()
    assert "checkpoint cannot be written: [Errno 28] No space left on device; it needs more than the" in first
    assert first.endswith("the job goes on, with 11 of 100 steps kept")
    assert second.endswith("checkpoint is written: there is room again")


def test_progress_that_cannot_be_told_troubles_no_job(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "write_whole", failing(3, os_error(), records.write_whole))
    monkeypatch.setattr(Path, "touch", failing(2, os_error(), Path.touch))
    one = Session(every=1000)
    for _ in one.steps(10):
        clock.now += 1
    assert json.loads((one.folder / "progress.json").read_text())["progress"] == 1.0
    assert (one.folder / "ready").exists()


@pytest.mark.parametrize("shared", [True, False])
def test_each_machine_of_a_gang_hears_that_the_job_is_up(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """Also one that shares no folder with the first, and is full at first."""
    monkeypatch.setenv("RANK", "1")
    one = Session()
    if shared:
        (one.folder / "part-0").mkdir()
    monkeypatch.setattr(Path, "touch", failing(2, os_error(), Path.touch))
    for _ in one.steps(10):
        clock.now += 1
    assert (one.folder / "ready").exists() == (not shared)
    assert not (one.folder / "progress.json").exists()


def test_the_last_checkpoint_and_the_result_wait_for_room(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Session(every=1000)
    monkeypatch.setattr(checkpoint_file, "_dump", failing(500, os_error(errno.EDQUOT), checkpoint_file._dump))
    for step in one.steps(3):
        one.checkpoint(step)
    monkeypatch.setattr(session_module, "write_whole", failing(500, os_error(), records.write_whole))
    one.result({"steps": 3})
    assert clock.now >= 1000 + 2 * 500 * SELDOM
    assert Session().restore() == 2
    assert json.loads((one.folder / "result.json").read_text()) == {"steps": 3}


@pytest.mark.parametrize("at", ["a step", "the last checkpoint", "the result"])
def test_who_is_asked_to_stop_leaves_without_room_before_it_is_ended(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """With the checkpoint before, early enough to leave by itself."""
    one = Session(every=1)
    total = 10
    real = checkpoint_file._dump, records.write_whole
    asked_at = {"a step": 5, "the last checkpoint": total - 1}.get(at)

    def job() -> None:
        for step in one.steps(total):
            clock.now += 2
            if step == asked_at:
                one.ask()
                monkeypatch.setattr(checkpoint_file, "_dump", failing(99, os_error(), real[0]))
            one.checkpoint(step)
        one.ask()
        monkeypatch.setattr(session_module, "write_whole", failing(99, os_error(), real[1]))
        one.result(7)

    with pytest.raises(SystemExit) as left:
        job()
    assert left.value.code == STOPPED
    kept = total - 1 if asked_at is None else asked_at - 1
    assert Session().restore() == kept
    assert clock.now <= 1000 + 2 * (asked_at or total) + 2 + 20 / 2


def test_a_state_that_cannot_be_pickled_is_no_full_disk(clock: Clock) -> None:
    one = Session(every=0)
    with pytest.raises((TypeError, AttributeError)):
        one.write(1, lambda: 0)
    assert list(one.folder.iterdir()) == []


def test_pytorch_does_not_hide_a_full_disk(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    assert torch.__name__ in sys.modules
    with open("/dev/full", "wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        checkpoint_file._dump({"done": 1, "state": torch.zeros(1000)}, file)
