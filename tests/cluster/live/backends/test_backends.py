"""What every backend must do, whatever it runs jobs on: on this machine, on Ray, on Slurm, on Kubernetes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from astrarium.cluster.live.backend import Backend, Fenced, JobCommand, Order, RunKey, RunPart, RunStatus
from tests.support.cluster.backend import backend as local_backend
from tests.support.cluster.backend import result, seen, words
from tests.support.cluster.sites.kubernetes import FakeKubernetes
from tests.support.cluster.sites.slurm import FakeSlurm

pytest_plugins = ("tests.support.cluster.fixtures",)


class Site(Protocol):
    """Two machines with two GPUs each."""

    def backend(self, home: Path, epoch: int = 1, *, grace: float = 20.0) -> Backend: ...
    def lose(self, machine: str) -> None: ...
    def occupy(self, machine: str, gpus: int) -> None: ...


class Local:
    """Nothing of it can be lost, and a lock lets only one arbiter in."""

    def backend(self, home: Path, epoch: int = 1, *, grace: float = 20.0) -> Backend:
        one = local_backend(home, grace)
        one.enter(epoch)
        return one


@pytest.fixture(scope="module")
def ray_machines() -> Iterator[Any]:
    from tests.support.cluster.sites.ray import RaySite

    with RaySite.started() as one:
        yield one


@contextmanager
def slurm(folder: Path) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        one = FakeSlurm(folder, patch, {"left": {"gpus": 2}, "right": {"gpus": 2}})
        yield one
        one.close()


@contextmanager
def kubernetes() -> Iterator[Site]:
    one = FakeKubernetes({"left": {"gpus": 2}, "right": {"gpus": 2}})
    yield one
    one.close()


KINDS = [
    "local",
    "kubernetes",
    pytest.param("slurm", marks=pytest.mark.thorough),
    pytest.param("ray", marks=[pytest.mark.long, pytest.mark.thorough]),
]
ELSEWHERE = KINDS[1:]


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    kind = getattr(request, "param", "local")
    if kind == "local":
        yield Local()
    elif kind == "ray":
        one = request.getfixturevalue("ray_machines")
        yield one
        one.close()
    else:
        with slurm(tmp_path / kind) if kind == "slurm" else kubernetes() as one:
            yield one


every_backend = pytest.mark.parametrize("site", KINDS, indirect=True)
every_other = pytest.mark.parametrize("site", ELSEWHERE, indirect=True)


def order(one: Backend, run: int, task: JobCommand, *machines: int, gpus: int = 1) -> Order:
    """A run on so many GPUs of each of these machines, by their places."""
    names = sorted(one.look().machines)
    parts = tuple(RunPart(names[place], tuple(range(gpus))) for place in machines or (0,))
    used = tuple(place * 2 + gpu for place in machines or (0,) for gpu in range(gpus))
    return Order(RunKey(0, 0, run), "app", used, parts, task)


def python(code: str, **options: Any) -> JobCommand:
    return JobCommand((sys.executable, "-uc", code), **options)


@every_backend
def test_machines_are_shown(site: Site, home: Path) -> None:
    assert [machine.gpus for machine in site.backend(home).look().machines.values()] == [2, 2]


@every_backend
def test_a_job_runs_to_its_end_and_is_forgotten(site: Site, home: Path, script: Path) -> None:
    one = site.backend(home)
    one.start(order(one, 1, JobCommand(words(script))))
    assert seen(one, 1) == RunStatus((0,), "finished", 1.0, 1.0)
    assert result(home) == {"sum": sum(n * n for n in range(20)), "count": 20}
    one.forget(RunKey(0, 0, 1))
    ends = time.monotonic() + 60
    while one.look().runs:  # an answer from before may still show it
        assert time.monotonic() < ends
        one.forget(RunKey(0, 0, 1))
        time.sleep(0.05)
    assert not site.backend(home, 2).look().runs


@every_backend
def test_a_job_that_is_stopped_goes_on_where_it_was(site: Site, home: Path, script: Path) -> None:
    one = site.backend(home)
    task = JobCommand(words(script, 30, 0.05))
    one.start(order(one, 1, task))
    seen(one, 1, lambda run: run.progress > 0.1)
    one.stop(RunKey(0, 0, 1))
    one.stop(RunKey(0, 0, 1))
    first = seen(one, 1)
    assert (first.ended, first.error) == ("stopped", "")
    assert 0.1 <= first.kept < 1
    one.start(order(one, 2, task, 1))
    assert seen(one, 2).ended == "finished"
    assert result(home) == {"sum": sum(n * n for n in range(30)), "count": 30}


@every_backend
def test_an_order_is_carried_out_once(site: Site, home: Path, tmp_path: Path) -> None:
    task = python("import time; open('times', 'a').write('x'); time.sleep(1)", directory=str(tmp_path))
    one = site.backend(home)
    ordered = order(one, 1, task)
    one.start(ordered)
    one.start(ordered)
    seen(one, 1, lambda run: (tmp_path / "times").exists())
    another = site.backend(home, 2)
    another.start(ordered)
    assert seen(another, 1).ended == "finished"
    assert (tmp_path / "times").read_text() == "x"


@every_backend
def test_the_next_arbiter_finds_what_runs(site: Site, home: Path, script: Path) -> None:
    one = site.backend(home)
    one.start(order(one, 1, JobCommand(words(script, 60, 0.05)), 0, 1))
    seen(one, 1, lambda run: run.progress > 0)
    another = site.backend(home, 2)
    assert seen(another, 1, lambda run: run.gpus == (0, 2)).ended == ""
    another.stop(RunKey(0, 0, 1))
    assert seen(another, 1).ended == "stopped"


@every_other
def test_an_arbiter_that_was_superseded_is_refused(site: Site, home: Path, script: Path) -> None:
    one = site.backend(home)
    late = order(one, 1, JobCommand(words(script)))
    another = site.backend(home, 2)
    with pytest.raises(Fenced, match="arbiter 1 was superseded by arbiter 2"):
        insist(one, late)
    assert not another.look().runs


def insist(one: Backend, ordered: Order) -> None:
    """Some hear at once that they are superseded, some with an answer."""
    one.start(ordered)
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        one.look()
        time.sleep(0.05)


@every_backend
@pytest.mark.parametrize(
    ("code", "ended", "expected"),
    [
        ("raise SystemExit('it is over')", "failed", "exit code 1, it is over"),
        ("import os; os.kill(os.getpid(), 9)", "failed", "killed by SIGKILL (out of memory?)"),
        ("raise SystemExit(127)", "not found", "exit code 127"),
        ("raise SystemExit(75)", "stopped", ""),
    ],
)
def test_endings_are_told_apart(site: Site, home: Path, code: str, ended: str, expected: str) -> None:
    one = site.backend(home)
    one.start(order(one, 1, python(code)))
    status = seen(one, 1)
    assert (status.ended, status.error) == (ended, expected)


@every_backend
def test_a_command_that_does_not_listen_is_made_to_leave(site: Site, home: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(600)"
    one = site.backend(home, grace=0.5)
    one.start(order(one, 1, python(code, on_stop="restart")))
    seen(one, 1, lambda run: bool(list(home.glob("apps/*/*/*/part-0/log-0.txt"))))
    one.stop(RunKey(0, 0, 1))
    assert seen(one, 1).ended == "stopped"


TELL = """\
import json, os, pathlib
names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "ASTRARIUM_GPUS", "MINE")
pathlib.Path(os.environ["ASTRARIUM_FOLDER"], "rank-" + os.environ["RANK"]).write_text(
    json.dumps({name: os.environ.get(name) for name in names}))
"""


def environments_in(home: Path) -> list[dict[str, str]]:
    """What each rank has found in its environment."""
    return [json.loads(path.read_text()) for path in sorted(home.glob("apps/*/job-0/run-1/rank-*"))]


@every_backend
@pytest.mark.parametrize(("processes", "ranks"), [("machine", 2), ("gpu", 4), ("job", 1)])
def test_a_gang_knows_its_ranks(site: Site, home: Path, processes: Any, ranks: int) -> None:
    one = site.backend(home)
    one.start(order(one, 1, python(TELL, processes=processes, env={"MINE": "yes"}), 0, 1, gpus=2))
    assert seen(one, 1).ended == "finished"
    environments = environments_in(home)
    assert [row["RANK"] for row in environments] == [str(rank) for rank in range(ranks)]
    assert {row["WORLD_SIZE"] for row in environments} == {str(ranks)}
    assert {row["ASTRARIUM_GPUS"] for row in environments} == {"4"}
    assert {row["MINE"] for row in environments} == {"yes"}
    assert len({(row["MASTER_ADDR"], row["MASTER_PORT"]) for row in environments}) == 1
    assert [len(row["CUDA_VISIBLE_DEVICES"].split(",")) for row in environments] == [
        1 if ranks == 4 else 2
    ] * ranks


@every_backend
def test_a_gang_lives_and_dies_as_one(site: Site, home: Path) -> None:
    code = "import os, time; os.environ['RANK'] == '1' and exit('no luck'); time.sleep(600)"
    one = site.backend(home, grace=0.5)
    one.start(order(one, 1, python(code, on_stop="restart"), 0, 1))
    status = seen(one, 1)
    assert (status.ended, status.error) == ("failed", "exit code 1, no luck")


@pytest.mark.parametrize("site", KINDS[1:3], indirect=True)
def test_a_gang_has_failed_also_where_the_rest_had_to_be_killed(site: Any, home: Path) -> None:
    """The site ends what has no time to leave, keeper and all: nobody is left to tell how it ended."""
    code = "import os, time; os.environ['RANK'] == '1' and exit('no luck'); time.sleep(600)"
    one = site.backend(home, grace=0.0, patience=0.0)
    one.start(order(one, 1, python(code, on_stop="restart"), 0, 1))
    status = seen(one, 1)
    assert (status.ended, status.error) == ("failed", "exit code 1, no luck")


@every_other
def test_a_run_is_lost_with_its_machine(site: Site, home: Path, script: Path) -> None:
    one = site.backend(home)
    task = JobCommand(words(script, 40, 0.05))
    first = order(one, 1, task, 0, 1)
    one.start(first)
    seen(one, 1, lambda run: run.progress > 0.1)
    site.lose(first.parts[1].machine)
    status = seen(one, 1)
    assert status.ended == "lost"
    assert status.error
    seen(one, 1, lambda _: list(one.look().machines) == [first.parts[0].machine])
    one.forget(RunKey(0, 0, 1))
    one.start(order(one, 2, task))
    assert seen(one, 2).ended == "finished"
    assert result(home) == {"sum": sum(n * n for n in range(40)), "count": 40}


@every_other
def test_a_run_that_is_given_up_before_its_gpus_are_free_has_not_started(
    site: Site, home: Path, script: Path
) -> None:
    """Somebody else has them: of that the policy knows nothing."""
    one = site.backend(home)
    ordered = order(one, 1, JobCommand(words(script)), gpus=2)
    site.occupy(ordered.parts[0].machine, 1)
    one.start(ordered)
    seen(one, 1, lambda run: run.ended == "")
    one.stop(RunKey(0, 0, 1))
    assert seen(one, 1) == RunStatus(ordered.gpus, "unstarted")
    assert not list(home.glob("apps/*/*/*/progress.json"))
