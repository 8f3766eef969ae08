"""Recorded time: a fresh policy decides as the recorded one did, and a changed one is found out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.trace import Step, read_trace, write_trace
from astrarium.run.replay import Divergence, replay
from astrarium.serving.contract import Action, Drop, Event
from astrarium.serving.policies.window import Deferred, Eager
from astrarium.serving.state import ServingState
from astrarium.testing.serving.cases import Case, Run, crowd
from tests.support.cases import run_case


def policy(kind: type[Any], case: Case, **parameters: Any) -> Any:
    return kind(case.setup, kind.Parameters(**parameters))


def fresh(kind: type[Any], case: Case) -> Engine[Any, Any, Any]:
    return Engine(ServingState(case.setup), policy(kind, case), validate=True)


@pytest.fixture(scope="module")
def run() -> Run:
    case = crowd(models=3, gpus=1, requests=200)  # more than one GPU can do: some are dropped
    return run_case(case, policy(Deferred, case))


def test_the_recorded_policy_decides_the_same_again(run: Run) -> None:
    assert replay(fresh(Deferred, run.case), run.steps) is None


def test_a_recording_on_disk_replays_to_the_same_books(run: Run, tmp_path: Path) -> None:
    write_trace(tmp_path / "trace", run.steps)
    engine = fresh(Deferred, run.case)
    assert replay(engine, read_trace(tmp_path / "trace", Event, Action)) is None
    engine.close(run.end)
    assert engine.state.ledger.outcome == run.state.ledger.outcome
    assert engine.state.ledger.done == run.state.ledger.done
    assert engine.state.ledger.batch_started == run.state.ledger.batch_started


def test_another_policy_diverges_at_the_first_step_it_would_decide_otherwise(run: Run) -> None:
    divergence = replay(fresh(Eager, run.case), run.steps)
    assert divergence is not None
    assert divergence.recorded == run.steps[0]  # eager sends the first request, deferred sets a timer
    assert divergence.decided != run.steps[0].actions


def test_one_forged_decision_is_found(run: Run) -> None:
    drops = [n for n, step in enumerate(run.steps) if any(isinstance(a, Drop) for a in step.actions)]
    number = drops[3]
    step = run.steps[drops[3]]
    forged = Step(step.now, step.events, tuple(a for a in step.actions if not isinstance(a, Drop)))
    steps = [*run.steps[:number], forged, *run.steps[number + 1 :]]
    assert replay(fresh(Deferred, run.case), steps) == Divergence(forged, step.actions)


def test_a_recording_of_another_level_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "trace").write_text('[0, [{"type": "TrialFinished", "trial": 3}], []]\n')
    with pytest.raises(InputError, match="line 1"):
        replay(fresh(Deferred, run.case), read_trace(tmp_path / "trace", Event, Action))
