"""Where the disk or memory is full, a keeper writes the outcome later, and processes start later."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET, socketpair

import pytest

from astrarium.cluster.live.machine.folders import read_file
from astrarium.cluster.live.machine.keeping import job_logs, records
from astrarium.cluster.live.machine.keeping import keeper as keeper_module
from astrarium.cluster.live.machine.keeping.job_files import JobFolder
from astrarium.cluster.live.machine.keeping.job_logs import JobLog
from astrarium.cluster.live.machine.keeping.keeper import Keeper
from astrarium.cluster.live.machine.keeping.pauses import SELDOM
from astrarium.cluster.live.machine.keeping.runner import Runner
from astrarium.cluster.live.machine.outcome import Outcome, ending
from tests.support.cluster.full_disk import failing, os_error

ORDER = {
    "command": ["true"], "directory": "", "with_agent": False, "ready": False, "grace": 30, "least": 0,
    "account": {}, "umask": 0o022, "site": False, "place": 0, "run": 1, "resumed_run": 0, "logs": "part-0",
    "processes": [{"env": {}, "log": "log-0.txt"}], "locks": [],
}  # fmt: skip


def test_words_that_find_no_room_are_counted_and_the_last_ones_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = JobLog(JobFolder.open(tmp_path), "log.txt")
    real = os.write
    log.add(b"first\n")
    monkeypatch.setattr(os, "write", failing(1000, os_error(), real))
    for number in range(1000):
        log.add(f"{number:099}\n".encode())
    monkeypatch.setattr(os, "write", real)
    log.add(b"last\n")
    lost = 1000 * 100 - job_logs._HELD_BACK
    before, note, after = (
        (tmp_path / "log.txt").read_text().partition(f"\n[{lost} bytes are lost: the disk had no room]\n")
    )
    assert note
    assert before == "first\n"
    assert after.endswith(f"{999:099}\nlast\n")
    assert len(after) == job_logs._HELD_BACK + len("last\n")


def test_a_log_that_cannot_be_made_is_made_later(tmp_path: Path) -> None:
    (tmp_path / "log.txt").mkdir()
    log = JobLog(JobFolder.open(tmp_path), "log.txt")
    log.add(b"words\n")
    (tmp_path / "log.txt").rmdir()
    log.flush()
    assert (tmp_path / "log.txt").read_text() == "words\n"
    assert log.last_words() == "words"


def keeper(folder: Path) -> Keeper:
    (folder / "order.json").write_text(json.dumps(ORDER))
    return Keeper(folder)


def test_an_outcome_is_written_as_soon_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(keeper_module, "write_whole", failing(5, os_error(errno.EROFS), records.write_whole))
    keeper(tmp_path)._leave({"codes": [0]})
    assert len(pauses) == 5
    assert json.loads((tmp_path / "outcome.json").read_text()) == {"codes": [0]}


def test_a_keeper_whose_folder_is_gone_leaves(tmp_path: Path) -> None:
    folder = tmp_path / "part-0"
    folder.mkdir()
    one = keeper(folder)
    (folder / "order.json").unlink()
    folder.rmdir()
    one._leave({"codes": [0]})
    assert not folder.exists()


def test_a_process_is_started_when_there_is_memory_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, its = socketpair(AF_UNIX, SOCK_SEQPACKET)
    one = Runner(ORDER, its)
    pauses = list[float]()
    monkeypatch.setattr(one, "_keeper_says", pauses.append)
    monkeypatch.setattr(subprocess, "Popen", failing(3, os_error(errno.EAGAIN), subprocess.Popen))
    child = one._child({}, one._pump.open(JobFolder.open(tmp_path), "log.txt"))
    assert pauses == [SELDOM] * 3
    assert child is not None
    assert child.wait() == 0


@pytest.mark.parametrize("stopped", [False, True])
def test_a_runner_is_started_when_there_is_memory_for_it_and_it_is_still_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    order = {**ORDER, "folder": [str(tmp_path), "job-0", "run-1"]}
    (tmp_path / "order.json").write_text(json.dumps(order))
    one = Keeper(tmp_path)
    monkeypatch.setattr(time, "sleep", lambda _: (tmp_path / "stop").touch() if stopped else None)
    monkeypatch.setattr(one, "_fork", failing(3, os_error(errno.EAGAIN), lambda: None))
    assert one._start() is not stopped
    outcome = one._outcome()
    assert (outcome["codes"], outcome["asked"]) == ([], stopped)


def test_a_process_for_which_there_is_no_memory_is_not_started_after_a_wish_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, its = socketpair(AF_UNIX, SOCK_SEQPACKET)
    order = {**ORDER, "folder": [str(tmp_path), "job-0", "run-1"]}
    ours.send(b'{"stop": true}')
    monkeypatch.setattr(subprocess, "Popen", failing(99, MemoryError(), subprocess.Popen))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    Runner(order, its).run()
    (tmp_path / "order.json").write_text(json.dumps(ORDER))
    one = Keeper(tmp_path)
    one._ask()
    ours.setblocking(False)
    one.heard.hear(ours)
    one._leave(one._outcome())
    assert one.heard.codes == []
    assert ending(read_file(tmp_path / "outcome.json", Outcome)) == ("stopped", "")
