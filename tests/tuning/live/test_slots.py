"""Processes that are kept: whoever trains next finds them as they were, and none is lost without a reason."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch

from astrarium.core.errors import InputError
from astrarium.tuning.live import local
from astrarium.tuning.live.backend import Checkpoint, GpusSeen, Iterated, RunEnded, Work
from astrarium.tuning.live.checkpoints import read, write
from astrarium.tuning.live.local import LocalTrialBackend
from astrarium.tuning.live.run.search import run_with
from astrarium.tuning.live.run.spec import SearchSpec
from astrarium.tuning.live.slots.fork_server import PRELOAD, ForkServer
from astrarium.tuning.live.slots.messages import Gone, SlotSetup
from astrarium.tuning.live.slots.pool import TRIES, LocalSlots, SlotMessage, SlotTemplate
from astrarium.tuning.live.slots.process_settings import ProcessSettings
from astrarium.tuning.live.training.packing import packed
from astrarium.tuning.live.training.workers import Emulated
from astrarium.tuning.optuna.sampler import OptunaSampler
from astrarium.tuning.runtime import Place
from tests.support.tuning.fakes import Clock, FakeBackend
from tests.support.tuning.processes import pids_of
from tests.support.tuning.trainings import odd, one_fork_server

pytestmark = pytest.mark.long

LIMIT = 60.0
ONE = Place((0,))
BOTH = Place((0, 1))


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    with one_fork_server():
        yield


@pytest.fixture(scope="module")
def backend() -> Iterator[LocalTrialBackend]:
    with LocalTrialBackend(odd, 2, Emulated(), most=1) as opened:
        yield opened


class Numbers:
    trials = 0


def begun(backend: LocalTrialBackend, kind: str, place: Place = ONE, total: int = 1, **values: Any) -> int:
    Numbers.trials += 1
    trial = Numbers.trials
    backend.start(Work(trial, 1, trial, {"kind": kind, **values}, place, total))
    return trial


def heard(backend: LocalTrialBackend, wanted: Callable[[Any], bool]) -> Any:
    limit = time.monotonic() + LIMIT
    while time.monotonic() < limit:
        for news in backend.hear(1.0):
            if wanted(news):
                return news
    raise AssertionError("it was not heard")


def end(backend: LocalTrialBackend, trial: int) -> RunEnded:
    event = heard(backend, lambda news: isinstance(news, RunEnded) and news.trial == trial)
    assert isinstance(event, RunEnded)
    return event


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(happened: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT
    while not happened():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.mark.thorough
def test_what_one_training_changes_the_next_does_not_find(backend: LocalTrialBackend) -> None:
    backend.warm_up(LIMIT)
    before = set(pids_of(backend))
    assert end(backend, begun(backend, "untidy")).ending == "finished"
    assert end(backend, begun(backend, "looks")).value == 0.0
    assert set(pids_of(backend)) == before  # it was the same process


def test_habits_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    habits = ProcessSettings()
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("high")
    torch.set_default_device("meta")
    torch.backends.cudnn.benchmark = True
    habits.set_back()
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.zeros(1).device.type == "cpu"
    assert not torch.backends.cudnn.benchmark


def test_a_training_that_cannot_be_saved_is_told_before_it_trains(backend: LocalTrialBackend) -> None:
    ended = end(backend, begun(backend, "unfinished"))
    assert ended.ending == "failed"
    assert "Unfinished has no save, no load" in ended.error


def test_what_a_process_leaves_behind_neither_hides_its_end_nor_stays(
    backend: LocalTrialBackend, tmp_path: Path
) -> None:
    file = tmp_path / "child"
    ended = end(backend, begun(backend, "dies_before_its_child", child=str(file)))
    assert (ended.ending, ended.error) == ("lost", "its process ended")  # and not that it was silent
    until(lambda: gone(int(file.read_text())))


def test_who_leads_a_gang_does_not_wait_for_those_who_will_not_leave(backend: LocalTrialBackend) -> None:
    trial = begun(backend, "stays", BOTH, total=100_000)
    heard(backend, lambda news: isinstance(news, Iterated) and news.trial == trial)
    backend.stop(trial, 1)
    ended = end(backend, trial)
    assert ended.ending == "left"
    assert ended.iterations > 0
    assert end(backend, begun(backend, "looks", BOTH)).ending == "finished"


@pytest.mark.thorough
def test_a_fork_server_that_is_killed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "ForkServer", ForkServer)
    with LocalTrialBackend(odd, 1, Emulated()) as backend:
        trial = begun(backend, "stays", total=100_000)
        heard(backend, lambda news: isinstance(news, Iterated))
        backend.warm_up(LIMIT)  # with the spare one
        pids = pids_of(backend)
        os.kill(backend._local._in_use[0].fork_server._process.pid, signal.SIGKILL)
        assert end(backend, trial).ending == "lost"
        until(lambda: all(map(gone, pids)))
        backend.hear(0.0)
        tries = (end(backend, begun(backend, "looks")) for _ in range(3))
        again = next(
            ending for ending in tries if ending.ending != "lost"
        )  # its slot may have been a dying one
        assert (again.ending, again.error) == ("finished", "")
        folder = backend.folder
    assert not folder.exists()


class Barren:
    def fork(self, setup: SlotSetup) -> Any:
        ours, theirs = Pipe()
        theirs.close()
        return ours

    def close(self) -> None:
        pass


def test_a_gpu_is_given_up_with_all_that_wait_on_it() -> None:
    fork_server: Any = Barren()
    slots = LocalSlots({0: SlotTemplate(fork_server, SlotSetup())}, most=8)
    leased = {slots.take(0) for _ in range(5)}
    lost = [event.slot for event in slots.hear(1.0) if isinstance(event.message, Gone)]
    assert leased <= set(lost)
    assert len(lost) == len(set(lost))
    assert slots.gpus() == ()
    slots.close()


@pytest.mark.parametrize(
    ("setup", "why"),
    [(SlotSetup(log="/nowhere/to/be/found"), "FileNotFoundError"), (SlotSetup("cuda:77"), "CUDA")],
)
def test_a_gpu_on_which_none_gets_ready_is_given_up_and_says_why(setup: SlotSetup, why: str) -> None:
    local_backend: Any = local
    slots = LocalSlots({0: SlotTemplate(local_backend.ForkServer(dict(os.environ), PRELOAD), setup)})
    messages: list[SlotMessage] = []

    def heard_more_than(before: int) -> bool:
        messages.extend(slots.hear(0.5))
        return len(messages) > before

    for _ in range(TRIES):
        slots.take(0)
        until(partial(heard_more_than, len(messages)))
        if not slots.gpus():
            break
    assert all(isinstance(event.message, Gone) and why in event.message.why for event in messages[:TRIES])
    assert slots.gpus() == ()
    assert why in slots.given_up
    slots.close()


def test_without_a_gpu_nobody_waits() -> None:
    with LocalTrialBackend(odd, 1, Emulated()) as backend:
        assert backend.hear(LIMIT) == [GpusSeen((0,))]
        backend.withdraw(0)
        assert backend.hear(LIMIT) == [GpusSeen(())]
        with pytest.raises(InputError, match="withdrawn"):
            backend.hear(LIMIT)
    with pytest.raises(RuntimeError, match="closed"):
        begun(backend, "looks")


def test_a_process_that_was_forked_from_the_backends_ends_nobody(backend: LocalTrialBackend) -> None:
    child = os.fork()
    if child == 0:
        backend.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert end(backend, begun(backend, "looks")).ending == "finished"


def test_modules_that_are_not_there_are_named() -> None:
    with pytest.raises(InputError, match="nowhere_to_be_found"):
        LocalTrialBackend(odd, 1, Emulated(), preload=["nowhere_to_be_found"])


def test_a_run_that_cannot_begin_leaves_no_backend() -> None:
    study = optuna.create_study(direction="maximize")
    sampler = OptunaSampler(study, {"rate": optuna.distributions.FloatDistribution(0, 1)})
    backend = FakeBackend(Clock(), lambda candidate: None, lambda candidate, iterations: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(InputError, match="goal"):
        run_with(SearchSpec({}, sampler=sampler, goal="min"), lambda: backend)
    assert backend.closed


def test_a_build_that_cannot_travel_is_told() -> None:
    lock = threading.Lock()
    with pytest.raises(InputError, match="pickled with all that it refers to"):
        packed(lambda values, workers: lock)


def test_a_full_disk_is_told_and_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "1.77.draft").touch()  # of one that was killed
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(OSError, match=r"3\.pt could not be written, with \d+ MiB free"):
            write(tmp_path, Checkpoint(0, 3), torch.zeros(1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list((tmp_path / "0").iterdir())
    write(tmp_path, Checkpoint(0, 3), 3)
    assert read(tmp_path, Checkpoint(0, 3)) == 3
