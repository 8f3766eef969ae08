"""A model that answers nothing but failures is not ready, says why, and comes back by a trial of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.error
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as over_grpc

from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.server.contract import Kind, Refused
from astrarium.server.control.accounts.model_accounts import ModelAccounts
from astrarium.server.control.calls.handler import CallHandler
from astrarium.server.control.calls.preprocessing import made_tensor
from astrarium.server.control.health.failure_watch import (
    FEWEST_FAILED,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    WHILE,
    FailureWatch,
)
from astrarium.serving.ledger import Outcome
from astrarium.serving.live.backends import examples
from astrarium.serving.live.tensors import DATATYPES, TensorSpec
from tests.support.live_fakes import (
    PATHS,
    FakeLoop,
    Stage,
    admit,
    handler_of,
    make_plan,
    on_path,
    service_of,
)
from tests.support.server.live_server import Server, eventually, serving

path = pytest.fixture(on_path, params=PATHS)


class Looks:
    """Two models, looked at every second; every trial that is due has its outcome at once."""

    def __init__(self) -> None:
        self.now = 5 * SECOND
        self.accounts = [ModelAccounts("a"), ModelAccounts("b")]
        self.watch = FailureWatch(self.accounts, self.now)
        self.trial = "ValueError: no"  # why trials fail; empty: they are answered
        self.trials: list[int] = []  # when, in seconds

    def pass_time(self, seconds: int, *happens: Callable[[], None]) -> list[int]:
        """The models of which something changed, but for trials."""
        changed: list[int] = []
        for _ in range(seconds):
            self.now += SECOND
            for one in happens:
                one()
            changed += self.watch.look(self.now)
            for model in self.watch.due(self.now):
                self.trials.append(self.now // SECOND)
                self.watch.tried(model, self.trial, self.now)
        return changed

    def fails(self, model: int, calls: int, cause: str = "model_error") -> Callable[[], None]:
        def fail() -> None:
            for _ in range(calls):
                self.accounts[model].call_ended(Outcome.FAILED, cause, MILLISECOND)

        return fail

    def answers(self, model: int) -> Callable[[], None]:
        return lambda: self.accounts[model].call_ended(Outcome.LATE, "", MILLISECOND)


def test_a_model_that_fails_every_call_for_a_while_is_said_to_and_why() -> None:
    looks = Looks()
    assert looks.pass_time(5, looks.fails(0, 3)) == []
    assert looks.pass_time(1, looks.fails(0, 3)) == [0]
    reason = "all of the last 18 calls failed, and so did a trial: ValueError: no"
    assert looks.accounts[0].failing == reason
    assert not looks.accounts[1].failing


def test_a_model_that_loses_its_workers_is_not_tried_at_once() -> None:
    looks = Looks()
    looks.fails(1, 5)()
    looks.pass_time(5, looks.fails(0, 3))
    assert looks.pass_time(1, looks.fails(0, 3, "worker_lost")) == [0]
    assert looks.accounts[0].failing == "all of the last 18 calls failed (model_error, worker_lost)"
    looks.pass_time(2)
    assert looks.trials == [looks.now // SECOND]


@pytest.mark.parametrize("cause", ["policy_error", "inputs"])
def test_failures_that_are_not_the_models_say_nothing_of_it(cause: str) -> None:
    looks = Looks()
    assert looks.pass_time(60, looks.fails(0, 3, cause)) == []


def test_a_burst_and_a_few_are_not_enough() -> None:
    looks = Looks()
    assert looks.pass_time(1, looks.fails(0, 1000)) == []
    assert looks.pass_time(1, looks.answers(0)) == []
    assert looks.pass_time(60, looks.fails(0, 3), looks.answers(0)) == []
    looks.pass_time(1, looks.fails(0, FEWEST_FAILED - 1))
    assert looks.pass_time(60) == []
    assert looks.pass_time(1, looks.fails(0, 1)) == [0]


def test_trials_come_at_once_and_then_with_growing_pauses() -> None:
    looks = Looks()
    looks.pass_time(6, looks.fails(0, 3))
    began = looks.now // SECOND
    looks.pass_time(200)
    pauses = [after - before for before, after in zip([began, *looks.trials], looks.trials, strict=False)]
    assert pauses == [0, 2, 4, 8, 16, 32, 60, 60]
    assert LONGEST_PAUSE == 60 * SECOND


def test_a_trial_that_is_answered_makes_it_ready_again() -> None:
    looks = Looks()
    looks.pass_time(6, looks.fails(0, 3))
    looks.trial = ""
    looks.pass_time(1)
    assert looks.accounts[0].failing  # not before it is due
    looks.pass_time(1)
    assert not looks.accounts[0].failing


def test_a_clients_answer_makes_it_ready_again() -> None:
    looks = Looks()
    looks.pass_time(6, looks.fails(0, 3))
    assert looks.pass_time(1, looks.answers(0)) == [0]
    assert not looks.accounts[0].failing
    assert looks.trials == [looks.now // SECOND - 1]


def test_where_only_trials_are_answered_it_is_not_ready_for_longer_and_longer() -> None:
    """Its made-up input works, and what its clients send does not: until one of them has an answer."""
    looks = Looks()
    looks.trial = ""
    away: list[int] = []
    for _ in range(4):
        while not looks.pass_time(1, looks.fails(0, 3)):
            pass
        began = looks.now
        while looks.accounts[0].failing:
            looks.pass_time(1)
        away.append((looks.now - began) // SECOND)
    assert away == [0, 2, 4, 8]
    looks.pass_time(1, looks.answers(0))
    assert looks.pass_time(6, looks.fails(0, 3)) == [0]
    assert not looks.accounts[0].failing  # tried at once, as the first time


def test_a_client_is_let_through_now_and_then() -> None:
    looks = Looks()
    assert looks.watch.lets_through(0, looks.now)
    looks.watch.let_through(0, looks.now)
    assert looks.watch.lets_through(0, looks.now)  # nobody is counted while all is well
    looks.pass_time(6, looks.fails(0, 3))
    assert not looks.watch.lets_through(0, looks.now)
    later = looks.now + FIRST_PAUSE
    assert looks.watch.lets_through(0, later)
    looks.watch.let_through(0, later)
    assert not looks.watch.lets_through(0, later + FIRST_PAUSE)


def test_a_trial_for_which_there_was_no_room_is_made_soon() -> None:
    looks = Looks()
    looks.pass_time(6, looks.fails(0, 3))
    now = looks.now + 10 * SECOND
    assert list(looks.watch.due(now)) == [0]
    assert list(looks.watch.due(now)) == []  # it is under way
    looks.watch.not_tried(0, now)
    assert list(looks.watch.due(now + FIRST_PAUSE)) == [0]


def test_a_model_that_is_loaded_anew_is_given_another_chance() -> None:
    looks = Looks()
    looks.pass_time(6, looks.fails(0, 3))
    looks.watch.forget(0, looks.now)
    assert not looks.accounts[0].failing
    assert looks.pass_time(5, looks.fails(0, 3)) == []


async def tried_out(stage: Stage, calls: CallHandler, model: int = 0) -> str:
    trial = asyncio.create_task(calls.try_out(stage.repository.entries[model]))
    await asyncio.sleep(0)
    assert stage.coordinator.unaccounted() == 0
    stage.wait(1000)
    return await trial


@pytest.mark.parametrize(("broken", "why"), [(False, ""), (True, "ValueError: no")])
def test_a_trial_is_in_accounts_of_its_own(path: str, broken: bool, why: str) -> None:
    stage = Stage(gpus=1)
    calls = handler_of(stage)
    stage.workers.broken = {0} if broken else set()
    assert asyncio.run(tried_out(stage, calls)) == why
    trials = stage.coordinator.accounts.trials[0]
    accounts = stage.coordinator.accounts.models[0]
    assert (trials.accepted, trials.ended_in_all, accounts.accepted, accounts.ended_in_all) == (1, 1, 0, 0)
    assert stage.coordinator.unaccounted() == 0
    assert stage.coordinator.admission.open() == 0
    assert stage.tensor_store.arena.used == 0


def test_a_trial_whose_worker_dies_has_failed(path: str) -> None:
    stage = Stage(gpus=1)
    calls = handler_of(stage)

    async def die() -> str:
        trial = asyncio.create_task(calls.try_out(stage.repository.entries[0]))
        await asyncio.sleep(0)
        stage.wait(1)
        stage.workers.kill(0)
        stage.wait(1000)
        return await trial

    assert asyncio.run(die())
    assert stage.coordinator.accounts.trials[0].ended_in_all == 1
    assert stage.coordinator.unaccounted() == 0


def test_a_trial_that_is_dropped_was_none(path: str) -> None:
    """Others have the GPU for longer than the trial can wait: that says nothing of the model."""
    stage = Stage(gpus=1, models=2)
    calls = handler_of(stage)
    stage.workers.stuck = {0}
    admit(stage, calls)
    stage.wait(1)
    with pytest.raises(Refused, match="the deadline can no longer be met"):
        asyncio.run(tried_out(stage, calls, model=1))
    trials = stage.coordinator.accounts.trials[1]
    assert dict(trials.ended) == {("dropped", "expired"): 1}
    assert len(stage.open_calls) == 1


def test_a_model_that_fails_takes_one_call_and_refuses_the_others(path: str) -> None:
    stage = Stage(gpus=1)
    calls = handler_of(stage)
    entry = stage.repository.entries[0]
    watch = calls._failures
    accounts = stage.coordinator.accounts.models[0]
    for _ in range(FEWEST_FAILED):
        accounts.accepted += 1
        accounts.call_ended(Outcome.FAILED, "model_error", MILLISECOND)
    for after in (0, WHILE):
        stage.loop.run_until(stage.loop.now + after)
        list(watch.look(stage.loop.now))
    entry.failing = accounts.failing
    with pytest.raises(Refused, match="model m0 is not ready: all of the last 10 calls failed") as refused:
        admit(stage, calls)
    assert refused.value.kind is Kind.UNAVAILABLE
    stage.loop.run_until(stage.loop.now + FIRST_PAUSE)
    admit(stage, calls)
    with pytest.raises(Refused, match="is not ready"):
        admit(stage, calls)
    stage.wait(1000)
    assert accounts.refused == {"unavailable": 2}
    assert list(watch.look(stage.loop.now)) == [0]
    assert not accounts.failing


@pytest.mark.parametrize("datatype", [*DATATYPES, "BYTES", "BF16"])
def test_a_trial_can_be_made_of_every_datatype(datatype: str) -> None:
    spec = TensorSpec("X", datatype, (3, -1))
    inputs = examples.batch([spec], 1, np.random.default_rng(0)).inputs
    assert made_tensor(spec, inputs, 1).shape == (1, 3, 1)


def test_a_service_says_so_once_and_once_that_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    async def fail_everybody() -> None:
        plan = make_plan(1, 2, "eager", 25 * MILLISECOND, 1 << 20)
        loop = FakeLoop()
        service = service_of(plan, loop)
        service.coordinator.begin(plan.setup)
        service.coordinator.present.add(0)
        for entry in service.repository.entries:
            entry.state = "READY"
            entry.reason = ""
        tries = ["ValueError: no", ""]

        async def try_out(entry: object) -> str:
            return tries.pop(0)

        service.calls.try_out = try_out  # type: ignore[method-assign]
        for second in range(8):
            for _ in range(3):
                service.coordinator.accounts.models[0].call_ended(Outcome.FAILED, "model_error", MILLISECOND)
            service.readiness.look_for_failures()
            await asyncio.gather(*service.readiness.trials)
            loop.now += SECOND
            if second == 6:
                assert service.card("m0").health[0] == "UNAVAILABLE"
                assert service.card("m0").health[1].endswith("and so did a trial: ValueError: no")
                assert service.card("m1").health == ("READY", "")
                assert service.ready  # the other model is well, though nobody asks it
                service.repository.entries[1].state = "UNAVAILABLE"
                assert not service.ready
                assert b'astrarium_fails_all{model="m0"} 1.0' in service.metrics()
        assert tries == []
        assert service.card("m0").health == ("READY", "")
        assert service.ready
        service.coordinator.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(fail_everybody())
    messages = [record.getMessage() for record in caplog.records]
    assert (
        len([line for line in messages if "model m0 is not ready: all of the last 18 calls failed" in line])
        == 1
    )
    assert (
        len([line for line in messages if "model m0 is ready again: a trial call was answered" in line]) == 1
    )


SCENARIO = """
cluster: {gpus: 1}
models:
  whole: {profile: {alpha: 0.1ms, beta: 1ms}, slo: 20s}
  broken: {profile: {alpha: 1ms, beta: 1ms}, slo: 20s, backend: {python: broken.py:run},
           inputs: [{name: X, datatype: FP32, shape: [1]}], outputs: [{name: Y, datatype: FP32, shape: [1]}]}
"""
MODEL = """
from pathlib import Path

def run(X):
    if Path("FLAG").exists():
        raise ValueError("out of order")
    return {"Y": X}
"""
BODY = b'{"inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}'


@pytest.mark.parametrize("way", ["auto", "python"])
def test_a_model_whose_every_batch_fails_is_not_ready_until_it_works(tmp_path: Path, way: str) -> None:
    flag = tmp_path / "flag"
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SCENARIO)
    (tmp_path / "broken.py").write_text(MODEL.replace("FLAG", str(flag)))
    with serving(scenario, "-o", f"server.path={way}") as server:
        assert status(server) == 200
        flag.touch()
        statuses: set[int] = set()

        def is_away() -> bool:
            statuses.add(status(server))
            return 503 in statuses

        eventually(is_away, "its calls are refused")
        assert statuses == {500, 503}
        assert "model broken is not ready" in said(server)
        index = {row["name"]: row for row in json.loads(server.post("/v2/repository/index", b"{}"))}
        assert index["whole"]["state"] == "READY"
        assert index["broken"]["state"] == "UNAVAILABLE"
        eventually(lambda: "ValueError: out of order" in server.post("/v2/repository/index", b"{}"), "why")
        with over_grpc.InferenceServerClient(server.grpc) as client:
            assert not client.is_model_ready("broken")
            assert client.is_model_ready("whole")
        with pytest.raises(urllib.error.HTTPError, match="503"):
            server.get("/v2/models/broken/ready")
        assert server.metric("astrarium_fails_all", model="broken") == 1
        assert server.metric("astrarium_trials_total", model="broken", outcome="failed") >= 1
        flag.unlink()
        eventually(lambda: server.metric("astrarium_fails_all") == 0, "it is ready again, by a trial")
        assert server.metric("astrarium_trials_total", model="broken", outcome="in_time") == 1
        assert status(server) == 200
        assert server.metric("astrarium_unaccounted") == 0
        assert server.stop() == 0
        assert server.process.stderr is not None
        log = server.process.stderr.read()
    assert log.count("model broken is not ready") == 1
    assert log.count("model broken is ready again: a trial call was answered") == 1


def status(server: Server) -> int:
    try:
        server.post("/v2/models/broken/infer", BODY)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def said(server: Server) -> str:
    try:
        server.post("/v2/models/broken/infer", BODY)
    except urllib.error.HTTPError as error:
        return error.read().decode()
    return ""
