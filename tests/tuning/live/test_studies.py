"""What a study of Optuna hears of its trainings, and when one search goes on with another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch

from astrarium import tuning
from astrarium.core.errors import InputError
from astrarium.tuning.live.run.folder import check_same_search
from astrarium.tuning.live.training.parked import ParkedFunction
from astrarium.tuning.optuna import optimize
from astrarium.tuning.optuna.objective import ObjectiveTraining
from tests.support.tuning.trainings import attributed, one_fork_server

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    with one_fork_server():
        yield


def test_the_study_hears_of_attributes() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.add_trial(optuna.trial.create_trial(value=9.0))  # numbers of trials and candidates differ
    halving = tuning.SuccessiveHalving(candidates=1, iterations=2, eta=2)
    optimize(study, attributed, halving, gpus=1, emulated=True, n_trials=1)
    trial = study.trials[1]
    assert trial.user_attrs == {"before": trial.params["rate"], "epoch": 1, "after": ["all", 1]}


def test_attributes_go_on_with_the_checkpoint_and_must_be_what_optuna_can_keep() -> None:
    noted: list[tuple[str, str]] = []
    workers = tuning.Workers()
    workers.noted = lambda name, value: noted.append((name, value))
    one = ObjectiveTraining(attributed, {"rate": 0.5}, workers)
    one.step()
    assert noted == [("before", "0.5"), ("epoch", "0")]
    other = ObjectiveTraining(attributed, {"rate": 0.5}, tuning.Workers())
    other.load(one.save())
    assert other._trial.user_attrs == {"before": 0.5, "epoch": 0}
    with pytest.raises(InputError, match=r"user_attrs\.model"):
        one._trial.set_user_attr("model", torch.nn.Linear(1, 1))
    with pytest.raises(AttributeError, match="where it trains, a trial has no 'set_system_attr'"):
        one._trial.set_system_attr("a", 1)
    one.close()
    other.close()


def test_one_that_is_dropped_before_its_loop_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def dropped(parked: ParkedFunction) -> None:
        parked._thread.start()
        raise KeyboardInterrupt

    monkeypatch.setattr(ParkedFunction, "next", dropped)
    before = threading.enumerate()
    with pytest.raises(KeyboardInterrupt):
        ObjectiveTraining(attributed, {"rate": 0.5}, tuning.Workers())
    assert "objective" not in [thread.name for thread in threading.enumerate() if thread not in before]


def test_one_that_prunes_itself_before_its_loop_says_so() -> None:
    def choosy(trial: Any) -> None:
        raise optuna.TrialPruned("no such pair")

    with pytest.raises(optuna.TrialPruned, match="no such pair"):
        ObjectiveTraining(choosy, {}, tuning.Workers())


def tuned(study: optuna.Study, folder: Path, **more: Any) -> Any:
    once = tuning.Random(candidates=3, iterations=2)
    return optimize(study, attributed, once, gpus=1, emulated=True, folder=folder, **more)


def test_a_study_that_goes_on_has_the_candidates_it_had(tmp_path: Path) -> None:
    """Though its sampler would choose others by now."""
    first, second = (optuna.create_study(direction="maximize") for _ in range(2))
    tuned(first, tmp_path)
    again = tuned(second, tmp_path, resume=True)
    assert [trial.params for trial in second.trials] == [trial.params for trial in first.trials]
    assert again.summary.remembered == len(first.trials)
    with pytest.raises(InputError, match="seed: expected 0, as in the run that this one goes on with"):
        tuned(second, tmp_path, resume=True, seed=3)


def test_a_search_in_another_space_does_not_go_on_with_this_one(tmp_path: Path) -> None:
    definition = {"space": {"rate": {"low": 0, "high": 1}}, "seed": 0}
    check_same_search(tmp_path, definition, resume=False)
    check_same_search(tmp_path, definition, resume=True)
    with pytest.raises(InputError, match="space: expected"):
        check_same_search(tmp_path, {**definition, "space": {"rate": {"low": 0, "high": 2}}}, resume=True)
    check_same_search(tmp_path, {**definition, "seed": 1}, resume=False)  # of which nothing was kept
    check_same_search(tmp_path, {**definition, "seed": 1}, resume=True)
    (tmp_path / "search.json").write_text("{")
    with pytest.raises(InputError, match="first run wrote"):
        check_same_search(tmp_path, definition, resume=True)
