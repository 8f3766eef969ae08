"""What policies learn of requests that take unequal times: history, profiled requests, drift."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astrarium.core.distributions import Histogram, Mode, Modes, Samples
from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.quantities import MILLISECOND as MS
from astrarium.core.quantities import SECOND, Duration
from astrarium.core.trace import Step, read_trace, write_trace
from astrarium.run.replay import replay
from astrarium.run.simulate import simulate
from astrarium.serving.contract import (
    Action,
    BatchFinished,
    Dispatch,
    DynamicSpec,
    Event,
    GpuLeft,
    Preempt,
    Request,
    RequestArrived,
    RequestProfiled,
)
from astrarium.serving.ledger import Outcome
from astrarium.serving.level import events
from astrarium.serving.policies.window import Eager
from astrarium.serving.scenario import Scenario, build, parse
from astrarium.serving.state import ServingState
from astrarium.serving.world import Profiler, ServingWorld, TableTruth
from astrarium.testing.checks import ContractError
from astrarium.testing.serving.audit import audit
from astrarium.testing.serving.cases import Case, cluster, crowd, linear_model
from tests.support.cases import run_case

CHAT = {"share": 0.75, "time": {"normal": {"mean": "4ms", "std": "1ms"}}}
MAIL = {"share": 0.25, "time": {"constant": "9ms"}}


def scenario(seed: int = 1, chat: dict[str, Any] = CHAT, **sections: Any) -> Scenario:
    dynamic = {"applications": {"chat": chat, "mail": MAIL}, "c0": "2ms", "c1": 0.3}
    return parse(
        {
            "cluster": {"gpus": 2},
            "models": {
                "talk": {"profile": {"dynamic": dynamic}, "slo": "100ms"},
                "plain": {"profile": {"alpha": "1ms", "beta": "2ms"}, "slo": "30ms"},
            },
            "policy": {"name": "eager"},
            "workload": {"arrivals": "poisson", "rate": "400/s", "duration": "10s"},
            "seed": seed,
            **sections,
        }
    )


def test_a_share_of_the_dynamic_models_requests_is_profiled() -> None:
    arrivals = build.arrivals(scenario())
    assert arrivals.profiled.dtype == np.bool_
    talk = arrivals.model == 0
    assert arrivals.profiled[talk].mean() == pytest.approx(0.1, abs=0.02)
    assert not arrivals.profiled[~talk].any()
    assert not build.arrivals(scenario(profiling={"share": 0})).profiled.any()
    assert build.arrivals(scenario(profiling={"share": 1})).profiled[talk].all()


def test_who_is_profiled_follows_from_the_seed() -> None:
    first, again, other = (build.arrivals(scenario(seed)).profiled for seed in (1, 1, 2))
    assert (first == again).all()
    count = min(len(first), len(other))
    assert (first[:count] != other[:count]).any()


def test_profiling_disturbs_no_other_draw() -> None:
    one = build.arrivals(scenario())
    other = build.arrivals(scenario(profiling={"share": 0.9, "history": 0}))
    for column in ("time", "model", "application", "work"):
        assert (getattr(one, column) == getattr(other, column)).all()


def test_an_application_drifts_from_a_moment_on() -> None:
    changes = [{"at": "4s", "time": {"constant": "20ms"}}, {"at": "8s", "time": {"constant": "1ms"}}]
    steady, drifting = (
        build.arrivals(scenario(chat={**CHAT, **more})) for more in ({}, {"changes": changes})
    )
    chat = (drifting.model == 0) & (drifting.application == 0)
    before = drifting.time < 4 * SECOND
    assert (drifting.work[before] == steady.work[before]).all()
    assert (drifting.work[~chat] == steady.work[~chat]).all()
    assert set(drifting.work[chat & ~before & (drifting.time < 8 * SECOND)]) == {20 * MS}
    assert set(drifting.work[chat & (drifting.time >= 8 * SECOND)]) == {MS}
    assert (drifting.time == steady.time).all()


def test_estimates_and_history_do_not_see_the_drift_coming() -> None:
    drifting = scenario(chat={**CHAT, "changes": [{"at": "1s", "time": {"constant": "20ms"}}]})
    assert build.setup(drifting) == build.setup(scenario())


def test_history_is_measured_before_the_run() -> None:
    setup = build.setup(scenario(profiling={"history": 500}))
    known = setup.models[0].dynamic
    assert known is not None
    assert (known.c0, known.c1) == (2 * MS, 0.3)
    chat, mail = known.history
    assert mail == (9 * MS,) * 500
    assert list(chat) == sorted(chat)
    assert sum(chat) / len(chat) == pytest.approx(4 * MS, rel=0.05)
    ran = build.arrivals(scenario()).work
    assert len(set(chat) & set(ran.tolist())) < 10  # other draws than those of the run
    assert setup.models[1].dynamic is None


def test_a_cold_start_knows_nothing() -> None:
    known = build.setup(scenario(profiling={"history": 0})).models[0].dynamic
    assert known == DynamicSpec(2 * MS, 0.3, ((), ()))


def test_cases_carry_what_is_known() -> None:
    known = DynamicSpec(2, 0.5, ((3, 4), ()))
    spec = linear_model(1, 1, 50)
    model = type(spec)(spec.index, spec.name, spec.slo, spec.latency, known)
    setup = cluster([linear_model(1, 1, 40), model], gpus=1)
    assert setup.models[1].dynamic == known
    assert Case(setup).relabelled([1, 0]).setup.models[0].dynamic == known
    stretched = Case(setup).stretched(3).setup
    assert stretched.models[1].dynamic == DynamicSpec(6, 0.5, ((9, 12), ()))


class Played:
    """Four requests of l(b) = 10 b on two GPUs; 0 and 2 are chosen, news takes 7."""

    def __init__(self, delay: int = 7) -> None:
        setup = cluster([linear_model(10, 0, slo=500)], gpus=2, cost=4)
        profiler = Profiler([True, False, True, False], [3, 4, 5, 6], delay)
        self.state = ServingState(setup)
        self.world = ServingWorld(setup, TableTruth.of(setup), profiler)
        for id_ in range(4):
            self.hear(0, RequestArrived(Request(id_, 0, 0, 500, application=id_ % 3)))

    def hear(self, now: int, event: Event) -> list[tuple[int, Event]]:
        self.state.apply(now, event)
        return list(self.world.aftermath(now, event, self.state))

    def ask(self, now: int, action: Action) -> None:
        self.state.commit(now, action)
        list(self.world.consequences(now, action, self.state))


def test_chosen_requests_are_reported_after_their_batch_has_ended() -> None:
    played = Played()
    played.ask(0, Dispatch(0, (0, 1, 2)))
    expected = [(37, RequestProfiled(0, 0, 0, 3)), (37, RequestProfiled(2, 0, 2, 5))]
    assert played.hear(30, BatchFinished(0, 0, 0)) == expected
    assert played.hear(31, BatchFinished(0, 0, 0)) == []  # old news


def test_a_report_never_comes_in_the_instant_of_the_end() -> None:
    played = Played(delay=0)
    played.ask(0, Dispatch(0, (0,)))
    assert played.hear(10, BatchFinished(0, 0, 0)) == [(11, RequestProfiled(0, 0, 0, 3))]


def test_what_did_not_finish_is_not_profiled() -> None:
    played = Played()
    played.ask(0, Dispatch(0, (0, 1)))
    played.hear(5, GpuLeft(0))
    assert played.hear(20, BatchFinished(0, 0, 0)) == []
    played.ask(5, Dispatch(1, (2,)))
    played.ask(8, Preempt(1))
    assert played.hear(15, BatchFinished(1, 1, 5)) == []
    played.ask(15, Dispatch(1, (2, 3)))
    assert played.hear(39, BatchFinished(1, 2, 19)) == [(46, RequestProfiled(2, 0, 2, 5))]


class Curious(Eager):
    """Eager batching that writes down what the profiler reports."""

    listens_to_profiler = True

    def decide(self, now: int, events: Sequence[Event], state: ServingState) -> Any:
        self.heard = [
            *getattr(self, "heard", []),
            *((now, event) for event in events if isinstance(event, RequestProfiled)),
        ]
        return super().decide(now, events, state)


def ran(kind: type[Eager], case: Scenario) -> tuple[Any, ServingState, list[Step]]:
    setup = build.setup(case)
    arrivals = build.arrivals(case)
    steps = list[Step]()
    policy: Any = kind(setup, kind.Parameters())
    state = ServingState(setup)
    world = ServingWorld(setup, build.truth(case, setup, arrivals), build.profiler(case, arrivals, policy))
    engine: Engine[Any, Any, Any] = Engine(state, policy, validate=True, record=steps.append)
    simulate(engine, events(arrivals, setup), world)
    return policy, state, steps


def test_a_policy_that_listens_hears_of_every_chosen_request_that_finished() -> None:
    case = scenario(profiling={"share": 0.2, "delay": "30ms"})
    arrivals = build.arrivals(case)
    policy, state, _ = ran(Curious, case)
    ledger = state.ledger
    finished = [
        id_
        for id_, outcome in enumerate(ledger.outcome)
        if arrivals.profiled[id_] and outcome in (Outcome.IN_TIME, Outcome.LATE)
    ]
    assert len(finished) > 200
    assert sorted(event.request for _, event in policy.heard) == finished
    for now, event in policy.heard:
        assert now == ledger.done[event.request] + 30 * MS
        assert (event.model, event.time) == (0, arrivals.work[event.request])
        assert event.application == arrivals.application[event.request]


def test_a_policy_that_does_not_listen_hears_nothing_and_decides_the_same() -> None:
    _, quiet, steps = ran(Eager, scenario())
    _, loud, _ = ran(Curious, scenario())
    assert not any(isinstance(event, RequestProfiled) for step in steps for event in step.events)
    assert quiet.ledger.outcome == loud.ledger.outcome
    assert quiet.ledger.done == loud.ledger.done


def test_reports_are_recorded_and_replayed(tmp_path: Path) -> None:
    policy, state, steps = ran(Curious, scenario())
    write_trace(tmp_path / "trace", steps)
    again = Curious(state.setup, Curious.Parameters())
    engine: Engine[Any, Any, Any] = Engine(ServingState(state.setup), again, validate=True)
    assert replay(engine, read_trace(tmp_path / "trace", Event, Action)) is None
    assert again.heard == policy.heard


def test_the_auditor_finds_a_report_of_a_request_that_never_finished() -> None:
    case = crowd(1, 1, 5)
    run = run_case(case, Eager(case.setup, Eager.Parameters()))
    audit(run)
    forged = [Step(0, (RequestProfiled(4, 0, 0, 9),), ()), *run.steps]
    run.steps[:] = forged
    with pytest.raises(ContractError, match="request 4 was profiled at 0 ns without having finished"):
        audit(run)


@pytest.mark.parametrize("weights", [(), (0.0, 0.0), (1.0, -0.5), (float("nan"),), (float("inf"), 1.0)])
def test_weights_that_chance_cannot_pick_by(weights: tuple[float, ...]) -> None:
    with pytest.raises(InputError):
        Modes(tuple(Mode(Duration(MS), Duration(0), weight) for weight in weights))
    with pytest.raises(InputError, match="counts"):
        Histogram(tuple(map(Duration, range(len(weights) + 1))), weights)


def test_samples_that_are_no_times() -> None:
    with pytest.raises(InputError, match="at least 0"):
        Samples((Duration(-5), Duration(3)))
