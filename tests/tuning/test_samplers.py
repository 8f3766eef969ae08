"""Configurations from Optuna and Ray Tune: each library hears of every candidate, and of its end once."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest

from astrarium.core.errors import InputError
from astrarium.testing.tuning_runs import run
from astrarium.tuning.samplers import Standing
from astrarium.tuning.scenario.tasks import TASKS
from astrarium.tuning.spaces import space_of

CIFAR = TASKS["cifar10-alexnet"]
SPACE = CIFAR.space
optuna = pytest.importorskip("optuna")
optuna.logging.set_verbosity(optuna.logging.WARNING)

from astrarium.tuning.optuna.sampler import OptunaSampler  # noqa: E402


def study(**settings: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=3, constant_liar=True)
    return optuna.create_study(**{"direction": "maximize", "sampler": sampler} | settings)


SMALL = {
    "random": {"candidates": 6, "iterations": 3},
    "successive-halving": {"candidates": 9, "iterations": 9},
    "hyperband": {"iterations": 9},
    "sync-bohb": {"iterations": 9},
    "bohb": {"iterations": 9, "concurrency": 4},
    "asha": {"candidates": 12, "iterations": 9, "concurrency": 4},
    "pbt": {"population": 4, "iterations": 6, "interval": 2},
}


@pytest.mark.parametrize("search", SMALL)
def test_an_optuna_study_sees_all_trials_in_a_final_state(search: str) -> None:
    mine = study()
    record = run(CIFAR, search, "dynamic-fluid", 4, 0, SMALL[search], sampler=OptunaSampler(mine, SPACE))
    assert len(mine.trials) == len(record.candidates)
    names = {Standing.COMPLETE: "COMPLETE", Standing.STOPPED: "PRUNED"}
    for candidate in record.candidates:
        trial = mine.trials[candidate.configuration.id]
        assert trial.state.name == names[candidate.standing]
        assert trial.params == candidate.values
        assert trial.intermediate_values == {entry.iterations: entry.value for entry in candidate.history}
        assert trial.value == candidate.value
    complete = [entry for entry in record.candidates if entry.standing is Standing.COMPLETE]
    assert mine.best_value == max(entry.value for entry in complete if entry.value is not None)


def test_a_space_may_be_defined_by_running_it() -> None:
    def space(trial: Any) -> dict[str, Any]:
        values = {name: dimension.at(trial.suggest_float(name, 0, 1)) for name, dimension in SPACE.items()}
        return {**values, "more": 1}

    mine = study()
    record = run(CIFAR, "random", "fifo", 4, 0, SMALL["random"], sampler=OptunaSampler(mine, space))
    assert all(candidate.values["more"] == 1 for candidate in record.candidates)
    assert all("more" not in trial.params for trial in mine.trials)


def test_candidates_fail_in_the_study_of_errors_only() -> None:
    """Those that are withdrawn, with a value or without one, are pruned."""
    mine = study()
    sampler = OptunaSampler(mine, SPACE)
    one, two, three = (sampler.ask() for _ in range(3))
    assert one is not None
    assert two is not None
    assert three is not None
    sampler.report(two.id, 4, 0.5)
    sampler.tell(one.id, None, Standing.WITHDRAWN)
    sampler.tell(two.id, 0.5, Standing.WITHDRAWN)
    sampler.tell(three.id, None, Standing.FAILED)
    assert [trial.state.name for trial in mine.trials] == ["PRUNED", "PRUNED", "FAIL"]


def test_the_same_study_is_asked_the_same_under_every_policy() -> None:
    """A model that learns between rungs chooses alike, whoever was faster."""
    suggested = []
    for policy in ("fifo", "static-fluid", "dynamic-fluid"):
        mine = study()
        run(
            CIFAR,
            "sync-bohb",
            policy,
            4,
            0,
            {"iterations": 9, "passes": 2},
            sampler=OptunaSampler(mine, SPACE),
        )
        suggested.append([(trial.params, trial.value) for trial in mine.trials])
    assert suggested[0] == suggested[1] == suggested[2]
    assert len(suggested[0]) > 20


def test_a_grid_of_optuna_that_is_done_has_no_more() -> None:
    grid = optuna.samplers.GridSampler({"x": [0.25, 0.75]}, seed=1)
    sampler = OptunaSampler(study(sampler=grid), space_of({"x": {"low": 0, "high": 1}}))
    for value in (0.5, 0.6):
        suggested = sampler.ask()
        assert suggested is not None
        sampler.report(suggested.id, 1, value)
        sampler.tell(suggested.id, value, Standing.COMPLETE)
    assert sampler.ask() is None


def test_a_sampler_gives_at_most_so_many() -> None:
    sampler = OptunaSampler(study(), SPACE, most=2)
    assert [sampler.ask() is None for _ in range(3)] == [False, False, True]
    sampler.adopt({"learning_rate": 0.5})


def test_its_own_pruner_is_asked_where_one_wants_it() -> None:
    pruner = optuna.pruners.ThresholdPruner(lower=0.5)
    for wanted in (False, True):
        sampler = OptunaSampler(study(pruner=pruner), SPACE, pruning=wanted)
        suggested = sampler.ask()
        assert suggested is not None
        assert sampler.report(suggested.id, 1, 0.1) is wanted


def test_a_study_with_several_objectives_is_refused() -> None:
    mine = optuna.create_study(directions=["minimize", "maximize"])
    with pytest.raises(InputError, match="one objective"):
        OptunaSampler(mine, SPACE)
    with pytest.raises(InputError, match=r"space\.x"):
        OptunaSampler(study(), {"x": 3})


def searcher(space: Any = None) -> Any:
    pytest.importorskip("ray.tune.search")
    from ray.tune.search import Searcher

    class Told(Searcher):
        """Suggests what Ray Tune's own space samples."""

        def __init__(self) -> None:
            super().__init__(metric="accuracy", mode="max")
            self.space = space
            self.results: list[tuple[str, dict[str, Any]]] = []
            self.ended: dict[str, tuple[dict[str, Any] | None, bool]] = {}
            self.suggested: list[str] = []

        def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
            self.space, known = config, self.space
            return known is None

        def suggest(self, trial_id: str) -> Any:
            if len(self.suggested) == 20:
                return Searcher.FINISHED
            self.suggested.append(trial_id)
            return {name: domain.sample() for name, domain in self.space.items()}

        def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
            self.results.append((trial_id, result))

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            assert trial_id not in self.ended
            self.ended[trial_id] = (result, error)

    return Told()


@pytest.mark.parametrize("search", SMALL)
def test_a_searcher_of_ray_tune_is_told_everything_once(search: str) -> None:
    from astrarium.tuning.ray_tune.sampler import RayTuneSampler

    mine = searcher()
    record = run(CIFAR, search, "dynamic-fluid", 4, 0, SMALL[search], sampler=RayTuneSampler(mine, SPACE))
    own = [candidate for candidate in record.candidates if candidate.source is None]
    assert len(mine.suggested) == len(own)
    assert mine.ended.keys() == set(mine.suggested)
    assert not any(error for _, error in mine.ended.values())
    reports = Counter((name, result["training_iteration"]) for name, result in mine.results)
    assert len(reports) == len(mine.results) == sum(len(candidate.history) for candidate in own)
    for candidate in own:
        result, _ = mine.ended[f"{candidate.configuration.id:05d}"]
        assert result["accuracy"] == candidate.value


def test_a_searcher_that_has_finished_ends_a_grid() -> None:
    from astrarium.tuning.ray_tune.sampler import RayTuneSampler

    mine = searcher()
    record = run(CIFAR, "grid", "fifo", 4, 0, {"iterations": 2}, sampler=RayTuneSampler(mine, SPACE))
    assert len(record.candidates) == 20


def test_ray_tunes_optuna_searcher_works_through_rungs() -> None:
    pytest.importorskip("ray.tune.search")
    from ray.tune.search.optuna import OptunaSearch

    from astrarium.tuning.ray_tune.sampler import RayTuneSampler

    mine = OptunaSearch(metric="accuracy", mode="max", seed=1)
    sampler = RayTuneSampler(mine, SPACE, "max")
    record = run(CIFAR, "sync-bohb", "dynamic-fluid", 4, 0, {"iterations": 9}, sampler=sampler)
    study: Any = mine._ot_study
    states = Counter(trial.state.name for trial in study.trials)
    assert states == {"COMPLETE": len(record.candidates)}


def test_what_is_no_searcher_is_refused() -> None:
    pytest.importorskip("ray.tune.search")
    from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Searcher

    from astrarium.tuning.ray_tune.sampler import RayTuneSampler

    with pytest.raises(InputError, match="a Searcher"):
        RayTuneSampler(BasicVariantGenerator())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="how many run at a time"):
        RayTuneSampler(ConcurrencyLimiter(searcher(), max_concurrent=2))
    with pytest.raises(InputError, match="made with its own"):
        RayTuneSampler(searcher(space={}), SPACE)
    with pytest.raises(InputError, match="min or max"):
        RayTuneSampler(Searcher(metric=["a", "b"], mode=["min", "max"]))  # type: ignore[arg-type]


def test_a_searcher_hears_of_failures() -> None:
    from astrarium.tuning.ray_tune.sampler import RayTuneSampler

    mine = searcher()
    sampler = RayTuneSampler(mine, SPACE)
    one = sampler.ask()
    two = sampler.ask()
    assert one is not None
    assert two is not None
    sampler.report(one.id, 1, 0.5)
    sampler.tell(one.id, 0.5, Standing.FAILED)
    sampler.tell(two.id, None, Standing.WITHDRAWN)
    assert [error for _, error in mine.ended.values()] == [True, False]
