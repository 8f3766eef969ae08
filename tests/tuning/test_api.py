"""`astrarium.tune`: searches that really train, from start to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

import astrarium
from astrarium import tuning
from astrarium.core.choice import Choice
from astrarium.core.errors import InputError
from astrarium.core.trace import read_trace
from astrarium.tuning.contract import Action, Event, TrialFinished
from astrarium.tuning.live.loop.live_tuning import LiveTuning
from astrarium.tuning.live.run.interrupts import INTERRUPTED
from astrarium.tuning.live.run.search import run_with
from astrarium.tuning.live.run.spec import SearchSpec
from astrarium.tuning.optuna import optimize
from astrarium.tuning.ray_tune import fit
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.samplers import Configuration, RandomSampler
from astrarium.tuning.spaces import space_of
from astrarium.tuning.state import Outcome
from tests.support.paths import ROOT
from tests.support.scenario_files import load_tuning as load
from tests.support.tuning.trainings import Small, Troubled, build, one_fork_server

SPACE = {"rate": {"low": 0.001, "high": 0.1, "log": True}, "pause": {"options": [0.005]}}
HALVING = tuning.SuccessiveHalving(candidates=6, iterations=9)
EXAMPLE = ROOT / "examples" / "tuning" / "small_cnn.py"


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    with one_fork_server():
        yield


def search(**settings: Any) -> TuningRecord:
    chosen: dict[str, Any] = {"search": HALVING, "gpus": 2, "emulated": True, **settings}
    record: TuningRecord = astrarium.tune(
        chosen.pop("build", build), chosen.pop("space", SPACE), **chosen
    ).record
    return record


def outcomes(record: TuningRecord) -> list[Any]:
    return [
        (
            candidate.values,
            candidate.standing.name,
            [(one.iterations, one.value) for one in candidate.history],
        )
        for candidate in record.candidates
    ]


def test_a_search_trains_and_is_found_again_and_resumed(tmp_path: Path) -> None:
    seen: list[LiveTuning] = []
    record = search(folder=tmp_path, progress=seen.append)
    assert record.over == "the search is done"
    assert {row.outcome for row in record.rows} == {Outcome.FINISHED}
    assert [candidate.done for candidate in record.candidates].count(9) >= 1
    assert record.best[-1].value == min(
        candidate.value for candidate in record.candidates if candidate.value is not None
    )
    assert seen
    steps = list(read_trace(tmp_path / "trace.jsonl", Event, Action))
    ends = [event for step in steps for event in step.events if isinstance(event, TrialFinished)]
    assert len(ends) == len(record.rows)
    with pytest.raises(InputError, match="resume"):
        search(folder=tmp_path)
    again = search(folder=tmp_path, resume=True, policy="fifo")  # nothing is trained twice
    assert outcomes(again) == outcomes(record)


def test_nobody_else_may_search_in_the_folder_meanwhile(tmp_path: Path) -> None:
    refused: list[str] = []

    def look(live: LiveTuning) -> None:
        if not refused:
            with pytest.raises(InputError, match="no other search is running") as error:
                search(folder=tmp_path, resume=True)
            refused.append(str(error.value))

    record = search(folder=tmp_path, progress=look)
    assert refused
    assert record.over == "the search is done"
    assert outcomes(search(folder=tmp_path, resume=True)) == outcomes(
        record
    )  # the refused one changed nothing


class Impatient:
    """Sends an interrupt, as the keyboard would, once a search has results."""

    def __init__(self) -> None:
        self.sent = False

    def __call__(self, live: LiveTuning) -> None:
        if live.session.best and not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_ends_the_search_with_what_it_found() -> None:
    before = signal.getsignal(signal.SIGINT)
    record = search(search="random:candidates=40,iterations=30", progress=Impatient())
    assert record.over == INTERRUPTED
    assert record.best
    assert {row.outcome for row in record.rows} >= {Outcome.WITHDRAWN}
    assert signal.getsignal(signal.SIGINT) is before
    assert not [thread for thread in threading.enumerate() if thread.name == "slots"]


class Interrupted(RandomSampler):
    """Somebody loses patience while it draws."""

    def ask(self) -> Configuration:
        os.kill(os.getpid(), signal.SIGINT)
        return super().ask()


@pytest.fixture
def interruptible() -> Iterator[Any]:
    """The handler that Python has, also where whoever started the tests ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_before_the_first_trial_comes_through_and_leaves_nothing(
    tmp_path: Path, interruptible: Any
) -> None:
    with pytest.raises(KeyboardInterrupt):
        search(sampler=Interrupted(space_of(SPACE), 0), folder=tmp_path / "runs" / "first")
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGINT) is interruptible


def test_what_others_put_beside_a_search_that_never_began_stays(tmp_path: Path) -> None:
    def neighbour() -> Any:
        (tmp_path / "runs" / "second").mkdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_with(SearchSpec(SPACE, folder=tmp_path / "runs" / "first"), neighbour)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["second"]


def hanging(values: dict[str, Any], workers: tuning.Workers) -> Small:
    return Troubled({**values, "trouble": "sleep"}, workers)


def hanging_objective(trial: Any) -> None:
    trial.suggest_float("rate", 0.1, 1.0)
    for _ in tuning.iterations(trial, 3):
        time.sleep(600)


@pytest.mark.thorough
def test_an_iteration_may_take_so_long_and_no_longer() -> None:
    one: dict[str, Any] = {"search": "random:candidates=1,iterations=3", "gpus": 1, "longest": "2s"}
    reason = "no iteration ended within 2 s, the longest it may take"
    assert [candidate.reason for candidate in search(build=hanging, **one).candidates] == [reason]
    study = optuna.create_study()
    result = optimize(study, hanging_objective, emulated=True, **one)
    assert result.candidates["reason"].tolist() == [reason]
    assert [trial.state.name for trial in study.trials] == ["FAIL"]


@pytest.mark.parametrize("longest", ["0s", "soon", 10, "-3s"])
@pytest.mark.parametrize("verb", [astrarium.tune, fit, optimize])
def test_the_limit_is_read_as_that_of_a_file(verb: Any, longest: Any, tmp_path: Path) -> None:
    """Before anything else is looked at."""
    (tmp_path / "train.py").write_text("def build(values, workers): ...")
    file = tmp_path / "live.yaml"
    space = "space: {rate: {low: 1, high: 2}}"
    file.write_text(f"train: train.py:build\ngoal: min\n{space}\nlive: {{longest: {longest}}}\n")
    with pytest.raises(InputError) as of_file:
        load(file)
    with pytest.raises(InputError) as of_python:
        verb(None, {}, *(["metric"] if verb is fit else []), longest=longest)
    assert str(of_file.value) == f"{file}: live.{of_python.value}"


def test_the_example_learns() -> None:
    space = {"rate": {"options": [0.05]}, "momentum": {"options": [0.9]}, "channels": {"options": [8, 16]}}
    record = search(
        build=f"{EXAMPLE}:build", space=space, search=tuning.Grid(iterations=3), goal="max", gpus=1
    )
    assert [candidate.values["channels"] for candidate in record.candidates] == [8, 16]
    assert record.best[-1].value > 0.2  # a guess is right in one of ten


def failing(values: dict[str, Any], workers: tuning.Workers) -> Small:
    if values["rate"] > 0.5:
        raise ValueError("the rate is too high")
    return Small(values, workers)


def test_trials_that_fail_do_not_end_the_search() -> None:
    record = search(build=failing, space={"rate": {"options": [0.05, 0.9]}}, search="grid:iterations=2",
                    gpus=1)  # fmt: skip
    reasons = [candidate.reason for candidate in record.candidates]
    assert reasons[1] == "ValueError: the rate is too high"
    assert record.best[-1].candidate == 0


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"goal": "least"}, "goal"),
        ({"search": Choice("guessing")}, "guessing"),
        ({"search": Choice("random", {"candidate": 3})}, r"search\.candidate"),
        ({"policy": Choice("fluid")}, "fluid"),
        ({"sampler": "clever"}, "sampler"),
        ({"resume": True}, "folder"),
        ({"space": {"rate": 3}}, "space.rate"),
    ],
)
def test_what_cannot_be_used_is_named_before_anything_is_started(wrong: dict[str, Any], field: str) -> None:
    def no_backend() -> Any:
        raise AssertionError("a backend was started")

    with pytest.raises(InputError, match=field):
        run_with(SearchSpec(**{"space": SPACE, **wrong}), no_backend)


def test_importing_it_is_light() -> None:
    heavy = ("torch", "ray", "optuna", "numpy", "cloudpickle")
    code = f"import sys, astrarium.tuning; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
