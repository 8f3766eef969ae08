"""A process in reserve takes the place of a worker that died; nobody is hurt by what becomes of it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astrarium.core.optional import extension
from astrarium.server.control.workers.hearing import HearingScheduler
from astrarium.serving.live import reserve
from astrarium.serving.live.backends.contract import ModelFiles, Place
from astrarium.serving.live.messages import LoadModel, ModelLoaded, News, UnloadModel, WorkerUp, plain_files
from astrarium.serving.live.process import Death
from astrarium.serving.live.reserve import Depth, Reserve, available_memory
from astrarium.serving.live.shared_memory import SharedMemory
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker import preparing
from astrarium.serving.live.workers import LocalWorkers, NativeEars, WorkerSpec

PATIENCE = 60.0
X = TensorSpec("X", "FP32", (2,))
Y = TensorSpec("Y", "FP32", (2,))
SPEC = WorkerSpec(0, Place(3, "fast"))

# What a model imports; it goes wrong in a process in reserve only.
TROUBLE = """\
import os, pathlib, time

if pathlib.Path("/proc/self/comm").read_text().startswith("astra-reserve"):
    pathlib.Path(os.environ["TOLD"]).touch()
    {trouble}
"""


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.news: list[News] = []
        self.deaths: list[str] = []

    def heard(self, worker: int, news: News) -> None:
        self.news.append(news)

    def died(self, worker: int, death: Death) -> None:
        self.deaths.append(death.reason)

    def count(self, kind: type) -> int:
        return sum(isinstance(one, kind) for one in self.news)


def ears(memory: SharedMemory) -> NativeEars:
    front: Any = extension("_front")
    native: Any = extension("_scheduler")
    scheduler = native.Scheduler(front.Exchange(memory.view, 1, 1, 1), 1)
    scheduler.start()
    return HearingScheduler(scheduler, lambda: None)


class Setting:
    """Local workers with a listener and a reserve that is made at once."""

    def __init__(self, home: Path, wanted: bool = True, **reserve: Any) -> None:
        memory = SharedMemory.create(1 << 16)
        self.heard = Heard()
        self.reserve = Reserve(memory, wanted, **{"delay": 0.0, **reserve})
        self.workers = LocalWorkers(memory, self.heard, ears(memory), self.reserve)
        options = {"model": f"{home / 'model.py'}:run"}
        self.files = plain_files(ModelFiles("m", "python", options, (X,), (Y,), 2, home))

    async def begin(self) -> None:
        """Start the worker and let it load its model."""
        ups = self.heard.count(WorkerUp)
        loads = self.heard.count(ModelLoaded)
        self.workers.start(SPEC)
        await until(lambda: self.heard.count(WorkerUp) > ups)
        self.workers.send(0, LoadModel(5, self.files, [1]))
        await until(lambda: self.heard.count(ModelLoaded) > loads)

    async def kill(self) -> None:
        deaths = len(self.heard.deaths)
        os.kill(self.workers.pids()[0], signal.SIGKILL)
        await until(lambda: len(self.heard.deaths) > deaths)

    async def until_ready(self) -> int:
        await until(lambda: self.workers.in_reserve() == 1)
        assert self.reserve.pid is not None
        return self.reserve.pid


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE / 0.01)):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("never")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, and another one with a package that it imports."""
    home = tmp_path / "home"
    packages = tmp_path / "packages"
    home.mkdir()
    packages.mkdir()
    (home / "model.py").write_text("import trouble\n\n\ndef run(X):\n    return X * 2\n")
    (packages / "trouble.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages), *filter(None, sys.path)]))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    monkeypatch.setattr(reserve, "_FIRST_AGAIN", 0.0)
    return home


def trouble(home: Path, what: str) -> Path:
    (home.parent / "packages" / "trouble.py").write_text(TROUBLE.format(trouble=what))
    return home.parent / "told"


def run(test: Callable[[Setting], Coroutine[Any, Any, None]], home: Path, **reserve: Any) -> None:
    async def whole() -> None:
        setting = Setting(home, **reserve)
        try:
            await test(setting)
        finally:
            await setting.workers.stop(0.0)

    asyncio.run(whole())


def test_the_successor_of_a_killed_worker_is_the_reserve(home: Path) -> None:
    log = trouble(home, "pass")

    async def test(setting: Setting) -> None:
        await setting.begin()
        for _ in range(2):
            pid = await setting.until_ready()
            assert log.exists(), "it has imported what the model imports"
            assert pid not in setting.workers.pids().values()
            await setting.kill()
            await setting.begin()
            assert setting.workers.pids() == {0: pid}
            assert setting.heard.news[-3] == WorkerUp(pid)  # and then loads its model
            assert Path(f"/proc/{pid}/comm").read_text() == "astra-gpu3\n"
        assert setting.heard.deaths == ["was killed by SIGKILL"] * 2

    run(test, home)


def test_one_that_is_taken_leaves_an_heir_that_imports_nothing_again(home: Path) -> None:
    """Workers may die one after the other; how each ended is known, though none but the first was started."""
    log = trouble(home, "time.sleep(0.5)")
    ended = [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT]

    async def test(setting: Setting) -> None:
        await setting.begin()
        pids = [await setting.until_ready()]
        log.unlink()
        for number in ended:
            deaths = len(setting.heard.deaths)
            os.kill(setting.workers.pids()[0], number)
            await until(lambda deaths=deaths: len(setting.heard.deaths) > deaths)  # type: ignore[misc]
            await setting.begin()
            assert setting.workers.pids() == {0: pids[-1]}
            pids.append(await setting.until_ready())
        assert not log.exists(), "an heir has imported what it needs"
        assert len(set(pids)) == len(pids)
        assert setting.heard.deaths == [f"was killed by {number.name}" for number in ended]
        assert Path(f"/proc/{pids[-1]}/comm").read_text() == "astra-reserve\n"
        await setting.workers.stop(1.0)
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)

    run(test, home)


def test_workers_that_die_together_all_have_successors_out_of_the_reserve(home: Path) -> None:
    """The second one waits for the heir, which is sooner than a start from nothing."""
    log = trouble(home, "pass")

    async def test(setting: Setting) -> None:
        await setting.begin()
        await setting.until_ready()
        log.unlink()
        await setting.kill()
        for worker in range(3):
            setting.workers.start(WorkerSpec(worker, Place(worker)))
        await until(lambda: len(setting.workers.pids()) == 3)
        assert all(setting.workers._running[worker].reserved for worker in range(3))
        assert not log.exists()

    run(test, home)


def test_a_worker_that_waits_for_an_heir_and_is_no_longer_wanted_is_not_started(home: Path) -> None:
    async def test(setting: Setting) -> None:
        await setting.begin()
        await setting.until_ready()
        await setting.kill()
        for worker in range(2):
            setting.workers.start(WorkerSpec(worker, Place(worker)))
        setting.workers.kill(1, Death("is no longer needed"))
        await setting.until_ready()
        assert list(setting.workers.pids()) == [0]

    run(test, home)


def test_an_heir_that_does_not_come_is_not_waited_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve, "_HEIR_WITHIN", 0.0)

    async def test(setting: Setting) -> None:
        await setting.begin()
        pid = await setting.until_ready()
        await setting.kill()
        await setting.begin()
        assert setting.workers.pids() == {0: pid}
        assert await setting.until_ready() != pid  # one that was made from nothing

    run(test, home)


def test_a_worker_is_started_from_nothing_where_no_reserve_is_ready(home: Path) -> None:
    async def test(setting: Setting) -> None:
        await setting.begin()
        before = setting.workers.pids()[0]
        await setting.kill()
        await setting.begin()
        assert setting.workers.pids()[0] != before

    run(test, home, wanted=False)


@pytest.mark.parametrize("what", ["os._exit(3)", "os.kill(os.getpid(), 11), time.sleep(1000)"])
def test_one_that_dies_while_it_prepares_is_told_once_and_the_next_prepares_less(
    home: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = trouble(home, what)

    async def test(setting: Setting) -> None:
        await setting.begin()
        await setting.until_ready()
        assert log.exists()
        assert setting.reserve._depth is Depth.BACKENDS
        worker = setting.workers.pids()[0]
        assert not setting.heard.deaths, "the worker has nothing to do with it"
        await setting.kill()
        await setting.begin()
        assert setting.workers.pids()[0] != worker
        await setting.until_ready()

    run(test, home)
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].endswith("the next one imports packages, but holds no weights")


def test_one_that_hangs_while_it_prepares_is_ended(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = trouble(home, "time.sleep(1000)")

    async def test(setting: Setting) -> None:
        await setting.begin()
        await until(log.exists)
        hung = setting.reserve.pid
        assert setting.reserve.take(SPEC.place) is None, "it is not ready"
        setting.reserve._hung()
        assert not Path(f"/proc/{hung}").exists()
        assert await setting.until_ready() != hung
        assert setting.workers.pids()

    run(test, home)
    assert "not ready after 300 s" in caplog.text


def test_a_reserve_that_always_fails_is_given_up(home: Path) -> None:
    async def test(setting: Setting) -> None:
        await setting.begin()
        for _ in Depth.MODELS, Depth.BACKENDS, Depth.WORKER:
            await setting.until_ready()
            setting.reserve._failed("for some reason")
        assert setting.reserve._depth is Depth.NOTHING
        setting.reserve.settled()
        assert setting.reserve._timer is None

    run(test, home)


def test_one_that_is_killed_when_it_is_ready_is_made_again(home: Path) -> None:
    async def test(setting: Setting) -> None:
        await setting.begin()
        pid = await setting.until_ready()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: setting.reserve.pid not in (None, pid))
        await setting.until_ready()
        assert setting.reserve._depth is Depth.MODELS

    run(test, home)


def test_one_that_was_stopped_is_not_taken(home: Path) -> None:
    async def test(setting: Setting) -> None:
        await setting.begin()
        pid = await setting.until_ready()
        os.kill(pid, signal.SIGSTOP)
        await setting.kill()
        await setting.begin()
        assert setting.workers.pids()[0] != pid
        assert not Path(f"/proc/{pid}").exists()

    run(test, home)


def test_nothing_is_left_behind_after_a_stop(home: Path) -> None:
    left: list[int] = []

    async def test(setting: Setting) -> None:
        await setting.begin()
        left.append(await setting.until_ready())

    run(test, home)
    assert not Path(f"/proc/{left[0]}").exists()


def test_without_a_reserve_there_is_none(home: Path) -> None:
    async def test(setting: Setting) -> None:
        await setting.begin()
        assert (setting.reserve.pid, setting.reserve._timer) == (None, None)
        assert setting.workers.in_reserve() == 0

    run(test, home, wanted=False)


def test_what_was_prepared_is_thrown_away_when_a_model_is_loaded_again_or_unloaded(home: Path) -> None:
    """Its files may have changed: that is why people load a model that is loaded."""

    async def test(setting: Setting) -> None:
        await setting.begin()
        first = await setting.until_ready()
        setting.workers.send(0, LoadModel(5, setting.files, [1]))
        assert setting.reserve.pid is None
        second = await setting.until_ready()
        assert second != first
        setting.workers.send(0, UnloadModel(5))
        assert setting.reserve.pid is None
        assert await setting.until_ready() != second
        assert setting.reserve._orders() == []

    run(test, home)


def test_it_is_made_when_all_workers_have_all_models(home: Path) -> None:
    async def test(setting: Setting) -> None:
        setting.workers.start(SPEC)
        setting.workers.start(WorkerSpec(1, Place(1)))
        await until(lambda: setting.heard.count(WorkerUp) == 2)
        for worker, model in ((0, 5), (0, 6), (1, 5)):
            setting.workers.send(worker, LoadModel(model, setting.files, [1]))
        await until(lambda: setting.heard.count(ModelLoaded) >= 2)
        assert setting.heard.count(ModelLoaded) == 3 or setting.reserve.pid is None
        await setting.until_ready()
        assert setting.heard.count(ModelLoaded) == 3

    run(test, home, delay=0.2)


@pytest.mark.parametrize(("free", "code"), [(399, False), (400, True)])
def test_weights_are_held_where_a_quarter_of_the_free_memory_is_enough(
    home: Path, free: int, code: bool
) -> None:
    async def test(setting: Setting) -> None:
        setting.reserve.loads(LoadModel(5, setting.files, [1]), again=False)
        setting.reserve.loads(LoadModel(6, setting.files, [1]), again=False)
        for model, weights in ((5, 30), (6, 70)):
            setting.reserve.loaded(ModelLoaded(model, (), (), weights=weights))
        assert [order.code for order in setting.reserve._orders()] == [code, code]

    run(test, home, free_memory=lambda: free)


def test_memory_that_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   5 kB\n")
    monkeypatch.setattr(reserve, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(reserve, "_CGROUP", tmp_path)
    assert available_memory() == 5 * 1024
    for name, text in (("memory.max", "4000"), ("memory.current", "3500")):
        (tmp_path / name).write_text(text)
    (tmp_path / "memory.stat").write_text("anon 7\ninactive_file 100\n")
    assert available_memory() == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory() == 5 * 1024


def test_code_that_uses_the_gpu_in_reserve_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for used in (False, True):
        fake = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda used=used: used))
        monkeypatch.setitem(sys.modules, "torch", fake)
        assert ("used the GPU" in preparing._problem()) is used
