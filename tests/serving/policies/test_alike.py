"""The switch for like lengths: a policy is shown a model for each bucket, and nobody else need know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from astrarium.core.errors import InputError
from astrarium.core.level import Watching
from astrarium.core.quantities import Time
from astrarium.core.trace import Step
from astrarium.run.experiment import recorded
from astrarium.run.replay import replay
from astrarium.serving.contract import Action, Dispatch, Event, Request, RequestArrived, RequestProfiled
from astrarium.serving.goodput import worst_bad
from astrarium.serving.ledger import Outcome
from astrarium.serving.level import LEVEL, run
from astrarium.serving.policies import serving_policies
from astrarium.serving.policies.alike import AlikePolicy, Division
from astrarium.serving.policies.window import Eager
from astrarium.serving.record import ServingRecord
from astrarium.serving.scenario import build
from astrarium.serving.state import ServingState
from astrarium.serving.twin.native import has_twin
from astrarium.testing.serving.cases import cluster, roomy
from tests.serving.scenario.texts import model_with_lengths, requests_of, setup_with_lengths, texts

OURS = "astrarium"
BUSY = {"workload": {"rate": "6000/s", "duration": "300ms"}}
KNOW_LENGTHS = (OURS, "turbo")
RIVALS = [name for name in serving_policies.names() if name not in KNOW_LENGTHS]
SETUP = cluster([roomy(0), model_with_lengths(), roomy(1)], gpus=2)
NAMES = ["model0", "m0[16]", "m0[64]", "m0[256]", "model1"]


def test_a_model_with_lengths_is_shown_as_one_for_each_bucket() -> None:
    shown = Division(SETUP)
    assert [model.name for model in shown.setup.models] == NAMES
    assert [model.index for model in shown.setup.models] == [0, 1, 2, 3, 4]
    assert shown.models == [0, 1, 1, 1, 2]
    known = SETUP.models[1].lengths
    assert known is not None
    assert [model.latency for model in shown.setup.models[1:4]] == list(known.latency)
    assert [model.lengths.longest if model.lengths else () for model in shown.setup.models] == [
        (),
        (16,),
        (64,),
        (256,),
        (),
    ]
    assert shown.setup.gpus == SETUP.gpus


@pytest.mark.parametrize(
    ("most", "buckets"), [(1, [256]), (2, [16, 256]), (3, [16, 64, 256]), (9, [16, 64, 256])]
)
def test_neighbouring_buckets_may_share_a_model(most: int, buckets: list[int]) -> None:
    setup = setup_with_lengths()
    shown = Division(setup, most)
    assert [model.name for model in shown.setup.models] == [f"m0[{bucket}]" for bucket in buckets]
    for request in requests_of(setup, [(0, 3), (0, 60), (0, 250)]):
        name = shown.setup.models[shown.shown(request).model].name
        assert name == f"m0[{next(bucket for bucket in buckets if bucket >= request.length)}]"


def test_a_request_names_the_model_of_its_bucket() -> None:
    shown = Division(SETUP)
    assert shown.shown(Request(7, 1, 5, 9, 0, 40, 1)) == Request(7, 2, 5, 9, 0, 40)
    assert shown.shown(Request(7, 2, 5, 9)) == Request(7, 4, 5, 9)


class Curious:
    """Writes down what it is shown, and sends whatever waits."""

    listens_to_profiler = True

    def __init__(self) -> None:
        self.heard: list[Event] = []
        self.seen: list[Any] = []

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        self.heard += events
        for id_ in list(state.waiting):
            self.seen.append(state.waiting[id_].model)
            yield Dispatch(0, (id_,))
        self.seen += [(batch.model, batch.requests[0].model) for batch in state.gpus[0].batches]


def test_the_policy_sees_divided_models_everywhere() -> None:
    state = ServingState(SETUP)
    inner = Curious()
    policy = AlikePolicy(inner, Division(SETUP))
    event = RequestArrived(Request(0, 1, 0, 10**9, 0, 40, 1))
    state.apply(0, event)
    for action in policy.decide(0, [event, RequestProfiled(0, 2, 0, 5)], state):
        state.commit(0, action)
    assert [getattr(heard, "request", None) for heard in inner.heard] == [Request(0, 2, 0, 10**9, 0, 40), 0]
    assert inner.heard[1] == RequestProfiled(0, 4, 0, 5)
    assert inner.seen == [2, (2, 2)]
    assert state.gpus[0].batches[0].model == 1
    assert policy.listens_to_profiler


def served(name: str, **parameters: Any) -> ServingRecord:
    return run(texts(**BUSY).with_policy(name, **parameters), "python")


def buckets_by_batch(record: ServingRecord) -> list[set[int]]:
    lengths = build.arrivals(texts(**BUSY)).length
    batch = record.requests.batch
    return [set(lengths[batch == number].tolist()) for number in np.unique(batch[batch >= 0])]


@pytest.mark.parametrize("name", RIVALS)
def test_every_rival_can_batch_like_lengths(name: str) -> None:
    record = served(name, batches="alike")
    assert all(len(lengths) == 1 for lengths in buckets_by_batch(record))
    assert set(record.requests.model.tolist()) == set(record.batches.model.tolist()) == {0}
    assert [model.name for model in record.setup.models] == ["encoder"]


@pytest.mark.parametrize("name", RIVALS)
def test_unless_asked_they_pad_to_the_longest(name: str) -> None:
    record = served(name)
    assert max(len(lengths) for lengths in buckets_by_batch(record)) == 3


def test_fewer_buckets_mix_neighbours() -> None:
    lengths = buckets_by_batch(served("eager", batches="alike", buckets=2))
    assert {16} in lengths
    assert {64, 256} in lengths
    assert {16, 64} not in lengths


def test_without_lengths_the_switch_changes_nothing() -> None:
    setup = cluster([roomy(0)], gpus=1)
    plain = texts().with_policy("eager", batches="alike").policy
    assert not isinstance(build.made_policy(plain, setup), AlikePolicy)


@pytest.mark.parametrize("name", KNOW_LENGTHS)
def test_those_who_know_lengths_have_no_such_switch(name: str) -> None:
    with pytest.raises(InputError, match=r"policy.batches"):
        LEVEL.policy(texts().with_policy(name, batches="alike"))


@pytest.mark.parametrize(
    ("parameters", "right"),
    [
        ({"batches": "same"}, "one of mixed, alike"),
        ({"batches": "alike", "buckets": 0}, "a whole number >= 1"),
    ],
)
def test_what_cannot_be_switched_is_refused(parameters: dict[str, Any], right: str) -> None:
    with pytest.raises(InputError, match=right):
        texts(policy={"name": "eager", **parameters})


def test_a_run_with_the_switch_replays() -> None:
    scenario = texts().with_policy("shepherd", batches="alike")
    steps = list[Step]()
    recorded(LEVEL, scenario, watching=Watching(trace=steps.append, validate=True))
    assert any(isinstance(action, Dispatch) for step in steps for action in step.actions)
    assert replay(LEVEL.books(scenario, LEVEL.policy(scenario)), steps) is None


@pytest.mark.skipif(not has_twin(Eager(SETUP, Eager.Parameters())), reason="no native extension")
@pytest.mark.parametrize("buckets", [None, 2])
@pytest.mark.parametrize("name", RIVALS)
def test_the_native_twin_decides_the_same(name: str, buckets: int | None) -> None:
    scenario = texts(**BUSY, cluster={"gpus": 2}).with_policy(name, batches="alike", buckets=buckets)
    if not has_twin(LEVEL.policy(scenario)):
        pytest.skip(f"{name} has no native twin")
    reference, twin = run(scenario, "python"), run(scenario, "native")
    for kind in ("requests", "batches"):
        for column, values in vars(getattr(reference, kind)).items():
            same = column == "reason" or np.array_equal(values, vars(getattr(twin, kind))[column])
            assert same, f"{kind}: {column}"
    reasons = [[one.reasons[code] for code in one.requests.reason] for one in (reference, twin)]
    assert reasons[0] == reasons[1]


@pytest.mark.skipif(not has_twin(Eager(SETUP, Eager.Parameters())), reason="no native extension")
def test_bad_shares_are_those_of_true_models() -> None:
    scenario = texts(workload={"rate": "9000/s", "duration": "300ms"}).with_policy("eager", batches="alike")
    requests = run(scenario, "python").requests
    assert worst_bad(scenario, allowed=1.0) == pytest.approx((requests.outcome != Outcome.IN_TIME).mean())
