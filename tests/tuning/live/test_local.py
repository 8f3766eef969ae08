"""Trials as processes: they go on elsewhere as if nothing had happened, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

from astrarium.core.errors import AstrariumError, InputError
from astrarium.run.leased import GPUS, USED
from astrarium.tuning.live.backend import Checkpoint, GpusSeen, Iterated, News, RunEnded, Work
from astrarium.tuning.live.checkpoints import Checkpoints, path, read, write
from astrarium.tuning.live.local import LocalTrialBackend, chosen_gpus
from astrarium.tuning.live.slots.backend import SlotBackend
from astrarium.tuning.live.slots.environment import environment
from astrarium.tuning.live.slots.member import GangMember
from astrarium.tuning.live.slots.messages import Begin, Message, RendezvousSetup, SlotSetup
from astrarium.tuning.live.slots.pool import TRIES, LocalSlots, SlotTemplate
from astrarium.tuning.live.slots.rendezvous import Rendezvous
from astrarium.tuning.live.slots.search_folder import SearchFolder
from astrarium.tuning.live.slots.slot import Slot
from astrarium.tuning.live.training.packing import named, opened, packed
from astrarium.tuning.live.training.workers import Emulated, Workers
from astrarium.tuning.runtime import Place, Width
from tests.support.gate.build import Built
from tests.support.gate.fakes import fresh_user
from tests.support.paths import ROOT
from tests.support.tuning.processes import pids_of
from tests.support.tuning.trainings import build, one_fork_server

pytestmark = pytest.mark.long
pytest_plugins = ("tests.support.gate.fixtures",)

LIMIT = 60.0  # seconds for anything that is awaited
ONE = Place((0,))
OTHER = Place((1,))
BOTH = Place((0, 1))
HALF = Place((0,), 2)
BUILD = f"{ROOT / 'tests' / 'support' / 'tuning' / 'trainings.py'}:build"


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    with one_fork_server():
        yield


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTrialBackend]:
    folder = tmp_path_factory.mktemp("backend")
    with LocalTrialBackend(build, 2, Emulated(), folder, patience=20.0, keep="last") as opened:
        assert opened.hear(LIMIT) == [GpusSeen((0, 1))]
        yield opened


class Until:
    """Listens to a backend. Trials have numbers of their own in all tests."""

    trials = 0

    def __init__(self, backend: LocalTrialBackend) -> None:
        self.backend = backend
        self.news = list[News]()

    @classmethod
    def new(cls) -> int:
        cls.trials += 1
        return cls.trials

    def iterated(self, trial: int, run: int, count: int = 1) -> None:
        """That many reports of a run were heard."""
        self._until(lambda: len(self.iterations(trial, run)) >= count)

    def ended(self, trial: int, run: int) -> RunEnded:
        self._until(lambda: any(self._ends(trial, run)))
        [end] = self._ends(trial, run)
        return end

    def iterations(self, trial: int, run: int) -> list[int]:
        return [
            news.iterations for news in self.news
            if isinstance(news, Iterated) and (news.trial, news.run) == (trial, run)
        ]  # fmt: skip

    def _ends(self, trial: int, run: int) -> list[RunEnded]:
        return [
            news for news in self.news
            if isinstance(news, RunEnded) and (news.trial, news.run) == (trial, run)
        ]  # fmt: skip

    def _until(self, happened: Any) -> None:
        limit = time.monotonic() + LIMIT
        while not happened():
            assert time.monotonic() < limit, self.news[-5:]
            self.news += self.backend.hear(1.0)


def order(
    trial: int, run: int, place: Place, total: int, start: Checkpoint | None = None, **values: Any
) -> Work:
    return Work(trial, run, trial, values, place, total, start)


def weights(backend: LocalTrialBackend, candidate: int, iterations: int) -> torch.Tensor:
    state = read(backend.folder, Checkpoint(candidate, iterations))
    return torch.cat([tensor.flatten() for tensor in state["model"].values()])


def unbroken(backend: LocalTrialBackend, trial: int, total: int, **values: Any) -> torch.Tensor:
    """The same candidate, trained on one GPU in one go."""
    until = Until(backend)
    backend.start(order(trial, 1000, ONE, total, **values))
    assert until.ended(trial, 1000).ending == "finished"
    return weights(backend, trial, total)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_run_reports_each_iteration_and_finishes_with_a_checkpoint(backend: LocalTrialBackend) -> None:
    until = Until(backend)
    trial = Until.new()
    backend.start(order(trial, 1, ONE, 4))
    ended = until.ended(trial, 1)
    assert (ended.ending, ended.iterations, ended.error) == ("finished", 4, "")
    assert until.iterations(trial, 1) == [1, 2, 3, 4]
    last = [news for news in until.news if isinstance(news, Iterated)][-1]
    assert ended.value == last.value is not None
    assert last.took > 0
    assert path(backend.folder, Checkpoint(trial, 4)).is_file()


def test_one_that_moves_ends_with_the_very_weights_of_one_that_does_not(backend: LocalTrialBackend) -> None:
    """From a GPU to a half of it, and to another GPU, with dropout: random numbers go on too."""
    until = Until(backend)
    trial = Until.new()
    values = {"dropout": 0.3, "pause": 0.01}
    start = None
    seen = list[int]()
    for run, place in enumerate([ONE, HALF, OTHER], 1):
        total = 40
        backend.start(order(trial, run, place, total, start, **values))
        if place != OTHER:
            until.iterated(trial, run, 2)
            backend.stop(trial, run)
        ended = until.ended(trial, run)
        seen += until.iterations(trial, run)
        start = Checkpoint(trial, ended.iterations)
        assert ended.ending == ("finished" if place == OTHER else "left")
        assert ended.iterations == seen[-1]
    assert seen == list(range(1, 41))
    moved = weights(backend, trial, 40)
    assert len(list((backend.folder / str(trial)).iterdir())) == 1  # those it left with are gone
    assert torch.equal(moved, unbroken(backend, trial, 40, dropout=0.3))


def test_two_workers_train_the_same_as_one(backend: LocalTrialBackend) -> None:
    """And back to one: the batch is the same everywhere, each has a half of it."""
    until = Until(backend)
    trial = Until.new()
    backend.start(order(trial, 1, BOTH, 20, pause=0.01))
    until.iterated(trial, 1, 3)
    backend.stop(trial, 1)
    left = until.ended(trial, 1)
    assert left.ending == "left"
    backend.start(order(trial, 2, ONE, 20, Checkpoint(trial, left.iterations)))
    assert until.ended(trial, 2).ending == "finished"
    moved = weights(backend, trial, 20)
    assert torch.allclose(moved, unbroken(backend, trial, 20), atol=1e-9)


def test_a_copy_begins_with_the_checkpoint_of_another(backend: LocalTrialBackend) -> None:
    until = Until(backend)
    source = Until.new()
    copy = Until.new()
    backend.start(order(source, 1, ONE, 3))
    until.ended(source, 1)
    backend.start(order(source, 2, ONE, 6, Checkpoint(source, 3)))
    until.ended(source, 2)
    backend.start(order(copy, 1, OTHER, 3, Checkpoint(source, 3)))
    assert until.ended(copy, 1).iterations == 3
    assert torch.equal(weights(backend, copy, 3), weights(backend, source, 3))


@pytest.mark.parametrize(("place", "where"), [(ONE, 0), (BOTH, 1)])
def test_an_error_in_the_training_fails_it_and_says_which(
    backend: LocalTrialBackend, place: Place, where: int
) -> None:
    until = Until(backend)
    trial = Until.new()
    backend.start(order(trial, 1, place, 10, trouble="error", where=where))
    ended = until.ended(trial, 1)
    assert (ended.ending, ended.error) == ("failed", "ValueError: the loss is green")
    backend.start(order(Until.trials, 2, place, 2))  # its slots are free, and work
    assert until.ended(trial, 2).ending == "finished"


@pytest.mark.parametrize(("place", "where"), [(ONE, 0), (BOTH, 1)])
def test_a_process_that_dies_is_a_lost_run_which_goes_on(
    backend: LocalTrialBackend, tmp_path: Path, place: Place, where: int
) -> None:
    until = Until(backend)
    trial = Until.new()
    values: dict[str, Any] = {"trouble": "death", "where": where, "once": str(tmp_path / "died")}
    backend.start(order(trial, 1, place, 2, **values))
    first = until.ended(trial, 1)
    assert first.iterations == 2
    start = Checkpoint(trial, 2)
    backend.start(order(trial, 2, place, 6, start, **values))
    lost = until.ended(trial, 2)
    assert (lost.ending, lost.iterations) == ("lost", 2)
    assert "ended" in lost.error
    backend.start(order(trial, 3, place, 6, start, **values))
    assert until.ended(trial, 3).ending == "finished"


def test_what_nobody_wants_leaves_at_once_and_its_process_stays(backend: LocalTrialBackend) -> None:
    until = Until(backend)
    trial = Until.new()
    backend.start(order(trial, 1, ONE, 10, trouble="sleep"))
    until.iterated(trial, 1, 2)
    before = set(pids_of(backend))
    backend.drop(trial, 1)
    assert until.ended(trial, 1).ending == "left"
    assert before <= set(pids_of(backend))
    assert not path(backend.folder, Checkpoint(trial, 2)).exists()
    backend.drop(trial, 1)  # of one that has ended
    backend.stop(trial, 1)


def test_a_gang_that_hangs_is_dropped_all_the_same(backend: LocalTrialBackend) -> None:
    until = Until(backend)
    trial = Until.new()
    backend.start(order(trial, 1, BOTH, 10, trouble="sleep", where=1))
    until.iterated(trial, 1, 2)
    backend.drop(trial, 1)
    assert until.ended(trial, 1).ending == "left"
    backend.start(order(trial, 2, BOTH, 2))
    assert until.ended(trial, 2).ending == "finished"


def test_a_build_that_cannot_be_opened_is_the_end_of_each_run_and_not_of_the_slot(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "parcel").write_bytes(packed(f"{tmp_path / 'broken.py'}:build"))
    pipe, _ = Pipe()
    slot = Slot(pipe, SlotSetup(build=str(tmp_path / "parcel")))
    messages = list[Message]()
    for run in (1, 2):
        begin = Begin(order(0, run, ONE, 2), str(tmp_path), every=30.0)
        ended = GangMember(begin, SlotSetup(), messages.append).train(slot._build)
        assert ended.ending == "failed"
        assert "nowhere_to_be_found" in ended.error
    assert not messages


def test_silence_is_death_and_in_between_checkpoints_count() -> None:
    """A build by name, which needs no pickle; a slot that is stopped gives no sign of life."""
    with LocalTrialBackend(
        BUILD, 2, Emulated(), patience=1.5, checkpoint_seconds=0.0, memory=True
    ) as backend:
        until = Until(backend)
        backend.start(order(0, 1, ONE, 5, trouble="silence"))
        lost = until.ended(0, 1)
        assert (lost.ending, lost.iterations) == ("lost", 2)
        assert "sign of life" in lost.error
        backend.withdraw(1)
        backend.start(order(1, 1, OTHER, 5))
        assert until.ended(1, 1).ending == "lost"
        until._until(lambda: GpusSeen((0,)) in until.news)
        pids = pids_of(backend)
        folder = backend.folder
    assert pids
    assert all(map(gone, pids))
    assert not folder.exists()


@pytest.mark.thorough
def test_a_search_follows_the_gpus_that_a_cluster_leases_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FOLDER": str(tmp_path), "ELASTIC": "1", "DEVICES": "0"}.items():
        monkeypatch.setenv(f"ASTRARIUM_{name}", value)
    with LocalTrialBackend(BUILD, 2, Emulated(), patience=20.0, memory=True) as backend:
        until = Until(backend)
        until._until(lambda: GpusSeen((0,)) in until.news)
        (tmp_path / GPUS).write_text('{"run": 2, "devices": [0, 1]}')
        until._until(lambda: GpusSeen((0, 1)) in until.news)
        assert (tmp_path / USED).read_text() == '{"run": 2}'
        backend.start(order(0, 1, OTHER, 3))
        assert until.ended(0, 1).ending == "finished"
        (tmp_path / GPUS).write_text('{"run": 3, "devices": [1]}')
        until._until(lambda: GpusSeen((1,)) in until.news)
        assert (tmp_path / USED).read_text() == '{"run": 3}'
        backend.start(order(1, 1, ONE, 3))
        assert until.ended(1, 1).ending == "lost"


class Barren:
    """A fork server whose slots die before they are there, as on a GPU that is broken."""

    def fork(self, setup: SlotSetup) -> Any:
        ours, theirs = Pipe()
        theirs.close()
        return ours

    def close(self) -> None:
        pass


def test_a_gpu_on_which_no_process_comes_up_is_given_up(tmp_path: Path) -> None:
    fork_server: Any = Barren()
    slots = LocalSlots({0: SlotTemplate(fork_server, SlotSetup())})
    backend = SlotBackend(slots, SearchFolder(tmp_path, b"", False), Rendezvous(lambda: "", fork_server))
    news = backend.hear(1.0)
    for run in range(TRIES):
        backend.start(order(0, run, ONE, 2))
        news += backend.hear(1.0)
    news += backend.hear(0.0)
    assert [event.ending for event in news if isinstance(event, RunEnded)] == ["lost"] * TRIES
    assert [event for event in news if isinstance(event, GpusSeen)] == [GpusSeen((0,)), GpusSeen(())]
    backend.close()


class Keepers:
    """A fork server of processes that keep a store: each says its port, or ends without a word."""

    def __init__(self, *ports: int | None) -> None:
        self._ports = list(ports)
        self.pipes = list[Any]()

    def fork(self, role: RendezvousSetup) -> Any:
        ours, theirs = Pipe()
        port = self._ports.pop(0)
        if port is None:
            theirs.close()
        else:
            theirs.send(port)
        self.pipes.append(theirs)
        return ours


def test_a_store_that_died_is_replaced() -> None:
    fork_server: Any = Keepers(4001, 4002, None)
    rendezvous = Rendezvous(lambda: "127.0.0.1", fork_server)
    rendezvous.begin()
    assert rendezvous() == rendezvous() == ("127.0.0.1", 4001)
    fork_server.pipes[0].close()
    assert rendezvous() == ("127.0.0.1", 4002)
    fork_server.pipes[1].close()
    with pytest.raises(AstrariumError, match="no store came up"):
        rendezvous()


def test_lanes_are_threads_of_one_process() -> None:
    lanes = "astrarium.testing.plain_backend:PlainLaneBackend"
    with LocalTrialBackend(build, 1, Emulated(), packing="lanes", lane_backend=lanes) as backend:
        until = Until(backend)
        for trial in range(2):
            backend.start(order(trial, 1, HALF, 10_000 if trial else 6, pause=0.01))
        assert until.ended(0, 1).ending == "finished"
        until.iterated(1, 1)
        assert len(pids_of(backend)) == 1
        backend.stop(1, 1)
        left = until.ended(1, 1)
        assert left.ending == "left"
        assert 0 < left.iterations < 10_000


ORPHANS = """
import os, sys, time
from astrarium.tuning.live.local import LocalTrialBackend
from astrarium.tuning.live.training.workers import Emulated
from astrarium.tuning.live.backend import Iterated, Work
from astrarium.tuning.runtime import Place

def build(values, workers):  # of the script itself: travels by value
    from tests.support.tuning.trainings import Small
    return Small(values, workers)

backend = LocalTrialBackend(build, 1, Emulated())
backend.start(Work(0, 1, 0, {"pause": 0.1}, Place((0,)), 10_000))
while not any(isinstance(message, Iterated) for message in backend.hear(1.0)):
    pass
pids = [slot.pid for slot in backend._local._slots.values() if slot.pid]
print(backend.folder.parent, *pids, backend._local._in_use[0].fork_server._process.pid, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
raise RuntimeError("something else went wrong")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["killed", "failed"])
def test_slots_end_with_whoever_started_them(how: str) -> None:
    searched = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    shown = subprocess.run(
        [sys.executable, "-c", ORPHANS, how], env={**os.environ, "PYTHONPATH": searched},
        capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert shown.returncode == (-signal.SIGKILL if how == "killed" else 1), shown.stderr
    folder, *written = shown.stdout.split()
    pids = [int(pid) for pid in written]
    limit = time.monotonic() + LIMIT
    while not all(map(gone, pids)) or Path(folder).exists():
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert len(pids) > 1


def test_shares_of_a_batch_are_all_of_it() -> None:
    batch = list(range(7))
    parts = [Workers(rank, 3).share((batch, batch)) for rank in range(3)]
    assert [example for one, _ in parts for example in one] == batch
    assert max(len(one) for one, _ in parts) - min(len(one) for one, _ in parts) <= 1
    few = [Workers(rank, 3).share([1, 2]) for rank in range(3)]  # the last batch of an epoch, say
    assert few == [[1], [2], [1]]
    assert Workers(0, 3).share([]) == []


def test_emulated_places_are_as_slow_as_the_equation_says() -> None:
    emulated = Emulated(packing=1.5, scaling=1.2)
    assert emulated.factor(Width(1, 3)) == pytest.approx(1.5**2)
    assert emulated.factor(Width(3)) == pytest.approx(1.2**2 / 3)


def test_checkpoints_that_a_trial_ended_with_stay(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    for iterations, ends in ((2, False), (3, True), (5, False), (6, False)):
        write(tmp_path, Checkpoint(0, iterations), iterations)
        kept.wrote(0, iterations, ends)
    assert sorted(file.name for file in (tmp_path / "0").iterdir()) == ["3.pt", "6.pt"]
    assert read(tmp_path, Checkpoint(0, 3)) == 3
    with pytest.raises(InputError, match="still there"):
        read(tmp_path, Checkpoint(0, 2))


@pytest.mark.parametrize("text", ["build", ":build", "nowhere.py:build", "astrarium.tuning:nothing"])
def test_a_build_that_is_not_there_is_named(text: str) -> None:
    with pytest.raises(InputError, match="objective"):
        named(text)


@pytest.mark.parametrize("text", ["build", "nowhere.py:build"])
def test_a_file_that_is_not_there_is_told_before_anything_is_started(text: str) -> None:
    with pytest.raises(InputError, match=r"objective: expected .* of a file that is there"):
        packed(text)


def test_builds_travel() -> None:
    factor = 3
    assert opened(packed(lambda values, workers: values * factor))(2, None) == 6
    assert opened(packed(BUILD)).__name__ == "build"
    with pytest.raises(InputError, match="a function"):
        packed(3)  # type: ignore[arg-type]


def test_gpus_that_are_not_there_are_not_used() -> None:
    assert chosen_gpus(3, Emulated()) == (0, 1, 2)
    assert chosen_gpus([4, 7], Emulated()) == (4, 7)
    with pytest.raises(InputError, match="1 or more"):
        chosen_gpus(0, Emulated())
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="emulated"):
            chosen_gpus(2, None)


@pytest.mark.thorough
def test_where_there_is_a_gate_slots_come_under_it(
    gate_built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `astrarium gate run --class best-effort` does it, on a driver that is a stub."""
    fresh_user(tmp_path, monkeypatch)
    monkeypatch.setenv("ASTRARIUM_CUDA_DRIVER", str(gate_built.stub))
    monkeypatch.setenv("ASTRARIUM_GATE_LIBRARY", str(gate_built.gate))
    variables = environment(0, SlotSetup("cuda:0"), gate=True)
    assert variables["CUDA_VISIBLE_DEVICES"] == "0"
    assert variables["ASTRARIUM_GATE_CLASS"] == "best-effort"
    assert variables["LD_PRELOAD"].endswith("libcuda.so.1")
    assert Path(variables["ASTRARIUM_GATE_BOARD"]).is_absolute()
    assert "LD_PRELOAD" not in environment(0, SlotSetup("cuda:0"), gate=False)


def test_a_slot_sees_its_own_gpu_only_and_without_a_gate_nothing_else() -> None:
    variables = {"CUDA_VISIBLE_DEVICES": "4,6", "ASTRARIUM_CUDA_DRIVER": "/nowhere/libcuda.so"}
    assert environment(1, SlotSetup("cuda:0"), gate=True, environ=variables)["CUDA_VISIBLE_DEVICES"] == "6"
    assert "LD_PRELOAD" not in environment(1, SlotSetup("cuda:0"), gate=True, environ=variables)
    assert environment(1, SlotSetup("cpu"), gate=True, environ=variables)["CUDA_VISIBLE_DEVICES"] == ""
