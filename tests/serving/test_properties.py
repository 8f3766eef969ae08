"""Properties that hold for some policies by their nature, beyond what the suite asks of all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astrarium.core.quantities import MILLISECOND
from astrarium.serving.contract import (
    Action,
    BatchFailed,
    BatchFinished,
    BatchPreempted,
    Dispatch,
    Drop,
    Event,
    GpuJoined,
    GpuLeft,
    Preempt,
    Request,
    RequestArrived,
    RequestProfiled,
    Setup,
)
from astrarium.serving.ledger import Outcome
from astrarium.serving.policies import serving_policies
from astrarium.serving.policies.astrarium import Astrarium
from astrarium.serving.policies.window import Deferred, Eager, Gather, Timeout
from astrarium.serving.state import ServingState
from astrarium.testing.serving.audit import audit
from astrarium.testing.serving.cases import Case, Run, cluster, linear_model, requests_at
from astrarium.testing.serving.strategies import NO_DELAY, cases
from tests.support.cases import run_case

BOUNDED = settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
WITHOUT_DELAYS = cases(delays=st.just(NO_DELAY))


def run(kind: type, case: Case, **parameters: Any) -> Run:
    return run_case(case, kind(case.setup, kind.Parameters(**parameters)))  # type: ignore[attr-defined]


def dispatches(seen: Run) -> Iterator[tuple[int, list[Request]]]:
    """When each batch left, and with whom."""
    for batch in audit(seen).sent:
        yield batch.ordered, list(batch.requests)


@BOUNDED
@given(case=WITHOUT_DELAYS, gather=st.sampled_from(["window", "fcfs"]))
def test_a_deferred_batch_leaves_inside_its_schedulable_window(case: Case, gather: Gather) -> None:
    for now, members in dispatches(run(Deferred, case, gather=gather)):
        latency = case.setup.models[members[0].model].latency
        deadline = min(request.deadline for request in members)
        assert deadline - latency[len(members) + 1] <= now <= deadline - latency[len(members)]


@BOUNDED
@given(case=WITHOUT_DELAYS, gather=st.sampled_from(["window", "fcfs"]))
def test_eager_batching_is_work_conserving(case: Case, gather: Gather) -> None:
    class Watching(ServingState):
        def validate(self) -> None:
            super().validate()
            assert not (self.waiting and any(gpu.idle for gpu in self.gpus)), (
                "a GPU idles while requests wait"
            )

    policy = Eager(case.setup, Eager.Parameters(gather=gather))
    run_case(case, policy, state=Watching(case.setup))


@pytest.mark.parametrize("kind", [Astrarium, Deferred, Eager, Timeout])
@BOUNDED
@given(case=cases(own_deadlines=True))
def test_the_earlier_deadline_leaves_first_within_a_model(kind: type, case: Case) -> None:
    """Of two requests that were both there, the one with the earlier deadline never leaves later."""
    for now, members in dispatches(seen := run(kind, case)):
        last: dict[tuple[int, int], int] = {}  # by length: those of another may join, or wait for their like
        for request in members:
            alike = request.bucket, request.length
            last[alike] = max(request.deadline, last.get(alike, 0))
        left_behind = [
            other
            for other in case.requests
            if other.model == members[0].model
            and other.arrival <= now
            and other.deadline < last.get((other.bucket, other.length), -1)
        ]
        assert all(decided_by(seen, other, now) for other in left_behind)


def decided_by(seen: Run, request: Request, now: int) -> bool:
    ledger = seen.state.ledger
    batch = ledger.batch[request.id]
    return (ledger.batch_dispatched[batch] if batch >= 0 else ledger.done[request.id]) <= now


@BOUNDED
@given(seed_case=cases(max_models=1, max_requests=50, delays=st.just(NO_DELAY)))
def test_another_gpu_does_not_hurt_requests_that_run_alone(seed_case: Case) -> None:
    """With equal service times, deadlines in the order of arrival and no batching, theory says so."""
    model = seed_case.setup.models[0]
    single = linear_model(0, model.latency[1], model.slo, max_batch=1)
    answered = []
    for gpus in (1, 2, 3, 4):
        case = Case(cluster([single], gpus), seed_case.requests)
        answered.append(list(run(Eager, case, gather="fcfs").state.ledger.outcome).count(Outcome.IN_TIME))
    assert answered == sorted(answered)


def test_load_decides_how_many_gpus_deferred_batching_uses() -> None:
    model = linear_model(MILLISECOND, 5 * MILLISECOND, 25 * MILLISECOND)
    used = []
    for gap_us in (8000, 1500, 700):
        setup = cluster([model], gpus=8)
        arrivals = [(number * gap_us * 1000, 0) for number in range(400)]
        seen = run(Deferred, Case(setup, requests_at(setup, arrivals)))
        used.append(max(seen.state.ledger.batch_gpu) + 1)
    assert used == sorted(used)
    assert used[0] == 1
    assert used[-1] < 8


def happening(kind: int, gpu: int, run_: int, fresh: int) -> Event:
    """News of any kind, about runs that exist, have ended or never were."""
    news: list[Event] = [
        RequestArrived(Request(fresh, run_ % 2, 0, 200)),
        BatchFinished(gpu, run_, 0),
        BatchFailed(gpu, run_, "broken"),
        BatchPreempted(gpu, run_, 0, 0),
        GpuJoined(gpu),
        GpuLeft(gpu),
        RequestProfiled(run_, 0, 0, 5),
    ]
    return news[kind % len(news)]


def allowed(kind: int, gpu: int, state: ServingState) -> Action | None:
    """An action of the kind that the books must accept now, if there is one."""
    waiting = list(state.waiting.values())
    if kind == 0 and waiting:
        return Drop(waiting[-1].id, "whim")
    if kind == 1 and waiting and state.gpus[gpu].present:
        mine = [request.id for request in waiting if request.model == waiting[0].model]
        return Dispatch(gpu, tuple(mine[:4]))
    if kind == 2 and state.gpus[gpu].present and len(state.gpus[gpu].batches) == 1:
        return Preempt(gpu)
    return None


MOVES = st.tuples(st.booleans(), st.integers(0, 6), st.integers(0, 1), st.integers(0, 12))


@settings(BOUNDED, max_examples=300)
@given(moves=st.lists(MOVES, max_size=60))
def test_whatever_happens_the_books_stay_in_order(moves: list[tuple[bool, int, int, int]]) -> None:
    models = [linear_model(1, 5, slo=40, max_batch=4), linear_model(2, 3, slo=40, max_batch=4)]
    state = ServingState(cluster(models, gpus=2))
    arrived = 0
    for now, (request, kind, gpu, run_) in enumerate(moves):
        action = allowed(kind % 3, gpu, state) if request else None
        if action is not None:
            state.commit(now, action)
        else:
            event = happening(kind, gpu, run_, arrived)
            arrived += isinstance(event, RequestArrived)
            state.apply(now, event)
        state.validate()
    state.close(len(moves))
    state.validate()
    assert Outcome.OPEN not in state.ledger.outcome
    assert len(state.ledger.outcome) == arrived


DIGESTS = """
import hashlib
from astrarium.core.choice import parameters_of
from astrarium.serving.policies import serving_policies
from astrarium.testing.serving.cases import crowd
from tests.support.cases import run_case
for name, policy in serving_policies:
    case = crowd(models=5, gpus=3, requests=400)
    steps = run_case(case, policy(case.setup, parameters_of(policy)())).steps
    print(name, hashlib.sha256(repr(steps).encode()).hexdigest())
"""


def digests(hash_seed: str) -> list[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONHASHSEED": hash_seed,
    }
    command = [sys.executable, "-c", DIGESTS]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_traces_do_not_depend_on_the_hash_seed_of_the_process() -> None:
    first = digests("1")
    assert first == digests("2")
    assert [line.split()[0] for line in first] == serving_policies.names()


def test_setups_are_values() -> None:
    """Policies made for equal setups may share what they derive from them."""
    one, other = (cluster([linear_model(1, 2, 30)], gpus=2) for _ in range(2))
    assert isinstance(one, Setup)
    assert (one, hash(one)) == (other, hash(other))
