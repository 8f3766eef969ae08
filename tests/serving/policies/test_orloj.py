"""Orloj event by event, and in worlds that must be learnt."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from astrarium.core.errors import InputError
from astrarium.core.policy import SetTimer
from astrarium.core.quantities import FOREVER, Duration
from astrarium.serving.contract import (
    EXPIRED,
    Dispatch,
    Drop,
    DynamicSpec,
    Event,
    ModelSpec,
    Network,
    Request,
    RequestArrived,
    RequestProfiled,
)
from astrarium.serving.ledger import Outcome
from astrarium.serving.level import run
from astrarium.serving.policies.orloj import Orloj
from astrarium.serving.scenario import Scenario, load
from astrarium.testing.serving.cases import cluster, linear_model
from tests.support.orloj_runs import played, scenario
from tests.support.paths import ROOT
from tests.support.rival_runs import MS, SteppedPolicy, ms, resnet50, simulated

EXAMPLES = ROOT / "examples"


def static(slo: float = 100, alpha: float = 1, beta: float = 9, max_batch: int = 8) -> ModelSpec:
    """l(b) = b + 9 ms: 10, 11, 13 and 17 ms for batches of 1, 2, 4 and 8."""
    return linear_model(ms(alpha), ms(beta), ms(slo), max_batch)


def stepped(
    *models: ModelSpec, gpus: int = 1, network: Network | None = None, **parameters: Any
) -> SteppedPolicy:
    return SteppedPolicy("orloj", cluster(models or [static()], gpus, network), **parameters)


def busy(stepped: SteppedPolicy, until: float = 10) -> None:
    """The first GPU runs request 1000 until then."""
    assert stepped.arrive(0, 1000) == [Dispatch(0, (1000,))]
    assert stepped.setup.models[0].latency[1] == ms(until)


@pytest.mark.parametrize(("waiting", "sent"), [(1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (20, 8)])
def test_of_equally_urgent_sizes_the_largest_that_can_be_filled_goes(waiting: int, sent: int) -> None:
    at = stepped()
    busy(at)
    at.arrive(1, *range(waiting))
    assert at.finish(10, 0) == [Dispatch(0, tuple(range(sent)))]


def test_the_size_with_the_most_urgent_request_goes() -> None:
    """One request can only be saved alone: its deadline is the earliest, so that size is chosen."""
    at = stepped()
    busy(at)
    at.arrive(1, 1, 2, 3, 4)
    at.arrive(2, 5, slo=18.5)  # due at 20.5: at 10 it has 10.5 left, enough for one and not for two
    assert at.finish(10, 0) == [Dispatch(0, (5,))]
    assert at.finish(20, 0, started=10) == [Dispatch(0, (1, 2, 3, 4))]


def test_the_latest_deadline_first_is_the_largest_batch_that_can_be_filled() -> None:
    at = stepped(order="latest")
    busy(at)
    at.arrive(1, 1, 2, 3, 4)
    at.arrive(2, 5, slo=18.5)  # as above
    assert at.finish(10, 0) == [Dispatch(0, (1, 2, 3, 4))]


@pytest.mark.parametrize("order", ["earliest", "latest"])
def test_among_models_the_earliest_deadline_always_goes_first(order: str) -> None:
    at = stepped(static(slo=100), static(slo=60), order=order)
    wave = [*at.requests(0, range(8), model=0), *at.requests(0, [8, 9, 10], model=1)]
    assert at.hear(0, *wave) == [Dispatch(0, (8, 9))]


def test_static_load_is_kept_up_with_by_large_batches() -> None:
    """What the earliest deadline alone does under load: a batch of one for each request about to be late."""
    shares = []
    for order in ("latest", "earliest"):
        ledger = simulated("orloj", cluster([resnet50()], 8), 5000, 2, order=order).ledger
        shares.append(list(ledger.outcome).count(Outcome.IN_TIME) / len(ledger.outcome))
    assert shares[0] > 0.95 > 0.7 > shares[1]


def test_a_request_is_left_out_of_batches_that_would_be_too_late_for_it() -> None:
    at = stepped(batch_sizes=(1, 2))
    busy(at)
    at.arrive(1, 1, 2, 3, slo=59)
    at.arrive(1, 4, slo=19.999)  # due at 20.999: a hair less than a batch of two takes
    assert at.finish(10, 0) == [Dispatch(0, (4,))]
    at = stepped(batch_sizes=(1, 2))
    busy(at)
    at.arrive(1, 1, 2, 3, slo=59)
    at.arrive(1, 4, slo=20)  # due at 21
    assert at.finish(10, 0) == [Dispatch(0, (4, 1))]


def test_network_delays_count() -> None:
    at = stepped(static(max_batch=2), network=Network(ms(1), ms(0.5), ms(2)))
    at.arrive(0, 1000)  # until 11.5
    at.arrive(1, 1, 2, slo=25.5)  # a pair: 2 ms before its 11 ms, 2 after: at 11.5 it ends at 26.5
    assert at.finish(11.5, 0) == [Dispatch(0, (1, 2))]
    at = stepped(static(max_batch=2), network=Network(ms(1), ms(0.5), ms(2)))
    at.arrive(0, 1000)
    at.arrive(1, 1, 2, slo=25.49)
    assert at.finish(11.5, 0) == [Dispatch(0, (1,))]


def test_the_most_urgent_model_goes_first_and_every_idle_gpu_gets_a_batch() -> None:
    at = stepped(static(slo=100), static(slo=60), gpus=3)
    wave = [*at.requests(0, [0, 1, 2], model=0), *at.requests(0, [3, 4], model=1)]
    assert at.hear(0, *wave) == [Dispatch(0, (3, 4)), Dispatch(1, (0, 1)), Dispatch(2, (2,))]


def test_chosen_batch_sizes() -> None:
    at = stepped(static(max_batch=8), batch_sizes=(1, 3, 9))
    busy(at)
    at.arrive(1, *range(8))
    assert at.finish(10, 0) == [Dispatch(0, (0, 1, 2))]
    with pytest.raises(InputError, match="batch_sizes"):
        Orloj.Parameters(batch_sizes=(2, 4))
    with pytest.raises(InputError, match="batch_sizes"):
        Orloj.Parameters(batch_sizes=(1, 4, 4))


def test_what_no_size_can_save_is_dropped_at_the_first_moment_it_is_certain() -> None:
    at = stepped()
    busy(at)
    at.arrive(1, 1, slo=18.5)  # due at 19.5: it must leave by 9.5
    assert at.timers == {"drop": ms(9.5) + 1}
    at.arrive(2, 2, slo=60)
    assert at.timers == {"drop": ms(9.5) + 1}
    assert at.wake("drop") == [Drop(1, EXPIRED)]
    assert at.timers == {"drop": ms(52) + 1}
    assert at.finish(10, 0) == [Dispatch(0, (2,))]
    assert at.timers == {"drop": FOREVER}


def test_one_that_is_hopeless_from_the_start_is_dropped_at_once() -> None:
    at = stepped()
    assert at.arrive(0, 1, slo=9.99) == [Drop(1, EXPIRED)]
    assert at.arrive(0, 2, slo=10) == [Dispatch(0, (2,))]


def dynamic(*history: list[float], slo: float = 100, **terms: Any) -> ModelSpec:
    """Batches of k take k max(single times), unless the terms say otherwise."""
    known = tuple(tuple(sorted(map(ms, times))) for times in history)
    table = linear_model(ms(10), 0, ms(slo), 8).latency
    return ModelSpec(0, "m", ms(slo), table, DynamicSpec(terms.get("c0", 0), terms.get("c1", 1.0), known))


def ask(id_: int, at: float, due: float, application: int = 0) -> Event:
    return RequestArrived(Request(id_, 0, ms(at), ms(due), application))


def test_short_requests_go_before_long_ones_that_are_as_urgent() -> None:
    """Told apart by their own application's time; to the mixture they look alike."""
    model = dynamic([4.0, 6.0] * 50, [30.0, 40.0] * 50, slo=200)
    for members, first in (("own", 3), ("mixture", 1)):
        at = stepped(model, members=members, batch_sizes=(1,))
        at.hear(0, ask(1000, 0, 200))
        at.hear(1, ask(1, 1, 160, application=1), ask(2, 1, 160, application=1), ask(3, 1, 160))
        assert at.finish(10, 0) == [Dispatch(0, (first,))]


def test_a_lost_cause_is_passed_over_for_one_that_can_be_saved() -> None:
    """Half of the batches take 10 ms and half 50: what has 35 ms left is in time with the short half only."""
    model = dynamic([10.0] * 50 + [50.0] * 50, slo=200)
    at = stepped(model, batch_sizes=(1,), bins=40, b=0.05)
    at.hear(0, ask(1000, 0, 200))
    at.hear(1, ask(1, 1, 45), ask(2, 1, 61))  # the mean is 30 ms: both are still in the queue
    assert at.finish(10, 0) == [Dispatch(0, (2,))]


def test_a_cold_start_believes_the_table() -> None:
    at = stepped(dynamic([], []))
    assert at.arrive(0, 1, slo=9.99) == [Drop(1, EXPIRED)]
    at.hear(1, *(RequestProfiled(900 + n, 0, 0, ms(4)) for n in range(10)))
    assert at.arrive(2, 2, slo=4.1) == [Dispatch(0, (2,))]


def test_who_waits_is_judged_by_what_was_learnt_last() -> None:
    at = stepped(dynamic([4.0] * 10), refresh=Duration(ms(5)))
    at.hear(0, ask(1000, 0, 200))
    at.hear(1, ask(1, 1, 30))
    assert at.timers["drop"] == pytest.approx(ms(26), abs=1000)
    at.hear(8, *(RequestProfiled(900 + n, 0, 0, ms(16)) for n in range(30)))
    assert at.timers["drop"] == pytest.approx(ms(17), abs=2 * MS)  # a mean of 13 ms now
    assert at.finish(17.9, 0) == [Drop(1, EXPIRED)]


def test_a_drifting_application_is_followed() -> None:
    drift = {"changes": [{"at": "10s", "time": {"constant": "30ms"}}]}
    learning: dict[str, Any] = {
        "profiling": {"share": 0.5, "history": 500},
        "policy": {"window": "3s", "members": "own"},
    }
    for end, mean in (("9s", 8), ("20s", 30)):
        policy, _, _ = played(scenario(short=drift, duration=end, **learning))
        assert policy._times[0].batch(1, 0).mean == pytest.approx(ms(3 + 0.3 * mean), rel=0.08)


def test_a_cold_start_ends_where_knowledge_from_the_start_would() -> None:
    learning: dict[str, Any] = {"duration": "30s", "rate": 60}
    cold, _, _ = played(scenario(profiling={"share": 0.5, "history": 0}, **learning))
    warm, _, _ = played(scenario(profiling={"share": 0.0, "history": 5000}, **learning))
    for size in (1, 2, 4):
        ours, theirs = (policy._times[0].batch(size).mean for policy in (cold, warm))
        assert ours == pytest.approx(theirs, rel=0.05)


def test_knowing_the_distribution_pays() -> None:
    """Against the same policy that believes in one number, and against a policy made for static models."""

    def in_time(case: Scenario) -> float:
        return float((run(case).requests.outcome == Outcome.IN_TIME).mean())

    case = scenario(duration="40s", rate=110, slo=120)
    blind = scenario(duration="40s", rate=110, slo=120, profiling={"share": 0.0, "history": 0})
    assert in_time(case) > in_time(blind) + 0.02
    assert in_time(case) > in_time(case.with_policy("clockwork")) + 0.02


@pytest.mark.parametrize("name", ["cold_start", "drift"])
def test_the_examples_are_served(name: str) -> None:
    record = run(load(EXAMPLES / f"{name}.yaml"))
    assert record.policy == "orloj"
    assert (record.requests.outcome == Outcome.IN_TIME).mean() > 0.7
    assert (record.requests.outcome > 0).all()


def test_timers_are_set_only_when_they_change() -> None:
    _, _, steps = played(scenario())
    timers = [action.at for step in steps for action in step.actions if isinstance(action, SetTimer)]
    assert all(one != other for one, other in pairwise(timers))
    assert timers[-1] == FOREVER


def test_queues_of_sizes_that_are_never_chosen_do_not_grow() -> None:
    policy, _, steps = played(scenario(duration="5s"))
    assert len(steps) > 500
    for queues in policy._queues:
        assert len(queues) == 0
        assert not any(queue._fresh for queue in queues._queues)


def test_same_seed_same_run() -> None:
    first, second = (run(scenario()).requests for _ in range(2))
    np.testing.assert_array_equal(first.done, second.done)
