"""Objectives of Optuna train, stop and go on as trainings of ours; the guide does as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch

from astrarium import tuning
from astrarium.core.choice import Choice
from astrarium.core.errors import InputError
from astrarium.tuning.live.run.spec import bounded_spread
from astrarium.tuning.optuna.objective import ObjectiveBuild, ObjectiveTraining
from astrarium.tuning.optuna.sampler import OptunaSampler
from tests.support.paths import ROOT

pytestmark = pytest.mark.long

GUIDE = ROOT / "docs" / "tuning" / "optuna.md"
BLOCK = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```\n(?:```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)


def objective(trial: Any) -> float:
    """What it is worth is how often it has stepped, weighted."""
    rate = trial.suggest_float("rate", 0.1, 1.0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for epoch in tuning.iterations(trial, 5, model=model, optimizer=optimizer):
        optimizer.zero_grad()
        model(torch.randn(4, 1)).square().mean().backward()
        optimizer.step()
        trial.report(float(model.weight.item()), epoch)
    return -1.0


def training(function: Any = objective, **values: Any) -> ObjectiveTraining:
    torch.manual_seed(0)
    return ObjectiveTraining(function, {"rate": 0.5, **values}, tuning.Workers())


def test_one_that_stops_goes_on_as_if_it_had_not() -> None:
    whole = training()
    values = [whole.step() for _ in range(5)]
    first = training()
    begun = [first.step() for _ in range(2)]
    state = first.save()
    chance = torch.get_rng_state()
    first.close()
    second = training(rate=0.5)
    second.load(state)
    torch.set_rng_state(chance)
    assert [*begun, *(second.step() for _ in range(3))] == values
    assert second.step() == values[-1]  # it has come to its end, and stays there
    second.close()


def test_whoever_leaves_unwinds() -> None:
    ended: list[str] = []

    def careful(trial: Any) -> None:
        try:
            for epoch in tuning.iterations(trial, 10):
                trial.report(epoch, epoch)
        finally:
            ended.append(tuning.workers().device)

    one = training(careful)
    assert [one.step(), one.step()] == [0.0, 1.0]
    assert not ended
    one.close()
    assert ended == ["cpu"]


def pruned(trial: Any) -> None:
    for epoch in tuning.iterations(trial, 10):
        trial.report(7.0, epoch)
        if epoch == 1:
            raise optuna.TrialPruned


def silent(trial: Any) -> None:
    for _ in tuning.iterations(trial, 10):
        pass


def loopless(trial: Any) -> float:
    return 1.0


def late(trial: Any) -> None:
    for epoch in tuning.iterations(trial, 10):
        trial.report(trial.suggest_float("late", 0, 1), epoch)


def test_one_that_prunes_itself_is_over() -> None:
    one = training(pruned)
    assert [one.step() for _ in range(4)] == [7.0] * 4


def test_what_an_objective_must_do_is_said() -> None:
    with pytest.raises(InputError, match=r"trial\.report"):
        training(silent).step()
    with pytest.raises(InputError, match=r"over iterations\(trial"):
        training(loopless)
    with pytest.raises(InputError, match="before the loop"):
        training(late).step()
    with pytest.raises(InputError, match="state_dict"):
        tuning.iterations(None, 3, model=3)


def test_suggestions_are_made_where_the_study_is() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    sampler = OptunaSampler(study, ObjectiveBuild(objective).suggest)
    configuration = sampler.ask()
    assert configuration is not None
    assert configuration.values == study.trials[0].params
    assert set(configuration.values) == {"rate"}
    assert not study.trials[0].intermediate_values
    with pytest.raises(InputError, match=r"over iterations\(trial"):
        OptunaSampler(study, ObjectiveBuild(loopless).suggest).ask()


def test_optuna_runs_it_too() -> None:
    study = optuna.create_study()
    study.optimize(objective, n_trials=1)
    assert len(study.trials[0].intermediate_values) == 5
    assert study.best_value == -1.0


def test_policies_that_spread_are_bounded() -> None:
    fluid = Choice("dynamic-fluid", {"spread": 1})
    assert bounded_spread(Choice("dynamic-fluid"), 1) == fluid
    assert bounded_spread(Choice("dynamic-fluid", {"spread": 3}), 1) == Choice("dynamic-fluid", {"spread": 3})
    assert bounded_spread(Choice("fifo"), 1) == Choice("fifo")


@pytest.mark.thorough
def test_the_guide_can_be_followed(tmp_path: Path) -> None:
    blocks = BLOCK.findall(GUIDE.read_text())
    assert len(blocks) == 4
    for name, body, _ in blocks:
        (tmp_path / name).write_text(body)
    scripts = [name for name, _, shown in blocks if shown]
    assert followed(tmp_path, scripts) == "".join(shown for _, _, shown in blocks)


def followed(place: Path, scripts: list[str]) -> str:
    """One after another, each as what is run. They have no guard against being imported, and need none."""
    searched = os.pathsep.join([str(place), *filter(None, sys.path)])
    code = f"import runpy\nfor name in {scripts}: runpy.run_path(name, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, env={**os.environ, "PYTHONPATH": searched},
        timeout=240, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_links_lead_somewhere() -> None:
    text = GUIDE.read_text()
    for target in re.findall(r"\]\(#([\w-]+)\)", text):
        assert re.search(rf"^#+ {target.replace('-', ' ')}$", text, re.MULTILINE | re.IGNORECASE), target
    for target in re.findall(r"\]\(([^)#:]+)", text):
        assert (GUIDE.parent / target).exists(), target
