"""What the server tells about itself (metrics, timelines, logs) and what it promises."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.core.trace import Step
from astrarium.server.contract import InferCall, Kind, Refused, Stages
from astrarium.server.control.accounts.accounts import Accounts
from astrarium.server.control.accounts.histogram import TIME_BOUNDS
from astrarium.server.control.accounts.last_minute import LastMinute
from astrarium.server.control.accounts.model_accounts import BatchesDone
from astrarium.server.control.calls.admission import admit
from astrarium.server.control.calls.objectives import wanted
from astrarium.server.control.calls.preprocessing import Preprocessor
from astrarium.server.control.calls.ticket import Ticket
from astrarium.server.control.devices import device_chooser, visible_gpus
from astrarium.server.control.health.calibration import CONTROL_MARGIN, PINGS, RESPONSE_MARGIN, Calibration
from astrarium.server.metrics import Metrics
from astrarium.server.process.logs import JsonLines
from astrarium.server.stage_line import BETWEEN
from astrarium.server.timelines import Timelines
from astrarium.serving.contract import (
    Dispatch,
    GpuSpec,
    ModelSpec,
    Network,
    Request,
    RequestArrived,
    Setup,
    latency_table,
)
from astrarium.serving.ledger import Outcome
from astrarium.serving.live.tensors import Tensor
from tests.support.live_fakes import Stage

SETUP = Setup((ModelSpec(0, "m", 25, latency_table([5, 6])),), (GpuSpec(0),))
STEP = Step(7, (RequestArrived(Request(0, 0, 5, 30)),), (Dispatch(0, (0,)),))


class Source:
    """Numbers from elsewhere, and the accounts that are shown with them."""

    def __init__(self) -> None:
        self.now = 0
        self.accounts = Accounts(["a", "b"], 2, lambda: self.now)

    def gauges(self) -> dict[str, tuple[str, float]]:
        return {"workers": ("Workers.", 2)}

    def counters(self) -> dict[str, tuple[str, float]]:
        return {"policy_errors": ("Errors.", 3)}

    def counters_by(self) -> dict[str, tuple[str, str, Mapping[str, float]]]:
        return {"long_way": ("Calls.", "reason", {"grpc": 4, "text": 1})}

    def facts(self) -> dict[str, tuple[str, Mapping[str, str]]]:
        return {"path": ("Who.", {"network": "native", "policy": "python"})}


def metrics_of(source: Source) -> Metrics:
    return Metrics(source.accounts, source, lambda: source.now)


def shown(source: Source) -> dict[str, dict[tuple[str, ...], float]]:
    families = text_string_to_metric_families(metrics_of(source).text().decode())
    samples = [sample for family in families for sample in family.samples]
    metrics: dict[str, dict[tuple[str, ...], float]] = {}
    for sample in samples:
        metrics.setdefault(sample.name, {})[tuple(sorted(sample.labels.values()))] = sample.value
    return metrics


def test_metrics_show_what_the_accounts_hold() -> None:
    source = Source()
    source.accounts.gpu_busy[0] = 3 * SECOND
    accounts = source.accounts.models[0]
    accounts.accepted = 5
    for outcome, reason in (
        (Outcome.IN_TIME, ""),
        (Outcome.LATE, ""),
        (Outcome.DROPPED, "expired"),
        (Outcome.FAILED, "worker_lost"),
    ):
        accounts.call_ended(outcome, reason, MILLISECOND)
    accounts.answered(Stages(0, 1, 2, 4 * MILLISECOND, 9 * MILLISECOND, 10 * MILLISECOND), 1)
    took = [int(place == 4) for place in range(len(TIME_BOUNDS) + 1)]  # 5 ms and a bit
    accounts.batches_done(BatchesDone(took, 1, 1, {3: (1, 5 * MILLISECOND)}), 0)
    accounts.refused["overloaded"] += 2
    accounts.refusing = "it has turned away all of the last 33 calls"
    metrics = shown(source)
    assert metrics["astrarium_accepted_total"] == {("a",): 5, ("b",): 0}
    assert metrics["astrarium_open"] == {("a",): 1, ("b",): 0}
    assert metrics["astrarium_ended_total"]["a", "dropped", "expired"] == 1
    assert metrics["astrarium_ended_total"]["a", "failed", "worker_lost"] == 1
    assert metrics["astrarium_refused_total"]["a", "overloaded"] == 2
    assert metrics["astrarium_long_way_total"] == {("grpc",): 4, ("text",): 1}
    assert metrics["astrarium_refuses_all"] == {("a",): 1, ("b",): 0}
    assert metrics["astrarium_latency_seconds_bucket"]["0.01", "a"] == 1
    assert metrics["astrarium_latency_seconds_bucket"]["0.005", "a"] == 0
    assert metrics["astrarium_batch_size_bucket"]["4", "a"] == 1
    assert metrics["astrarium_gpu_busy_seconds_total"] == {("0",): 3, ("1",): 0}
    assert metrics["astrarium_workers"] == {(): 2}
    assert metrics["astrarium_policy_errors_total"] == {(): 3}
    assert metrics["astrarium_path"] == {("native", "python"): 1}


def test_advice_follows_the_last_minute() -> None:
    source = Source()
    metrics = metrics_of(source)
    source.now = 100 * SECOND
    source.accounts.recent.add(10 * SECOND, ended=1000, good=0, busy=SECOND)  # too long ago
    source.accounts.recent.add(90 * SECOND, ended=100, good=80, busy=60 * SECOND)
    text = metrics.text().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["astrarium_bad_fraction"]) == pytest.approx(0.2)
    assert float(values["astrarium_gpu_busy_fraction"]) == pytest.approx(0.5)
    assert float(values["astrarium_gpus_to_add"]) == pytest.approx(2 * 0.2 / 0.8)
    assert float(values["astrarium_gpus_to_release"]) == 0


def test_the_last_minute_forgets() -> None:
    recent = LastMinute()
    for second in range(1000):
        recent.add(second * SECOND, ended=1)
    assert recent.totals(1000 * SECOND).ended == LastMinute.SECONDS - 1
    assert len(recent._by_second) <= LastMinute.SECONDS + 2


def test_a_timeline_has_a_slice_for_each_stage_and_forgets_old_calls() -> None:
    timelines = Timelines(kept=3)
    for number in range(5):
        start = number * MILLISECOND
        timelines.add("m", 0, number, 2, True, Stages(*(start + step for step in range(0, 600, 100))))
    trace = json.loads(timelines.trace(2))
    begun = [event for event in trace["traceEvents"] if event["ph"] == "b"]
    assert [event["name"] for event in begun] == ["m", *BETWEEN] * 2
    assert trace["metadata"] == {"calls_answered": 5, "calls_shown": 2}
    assert len(json.loads(timelines.trace(100))["traceEvents"]) == 2 + 1 + 3 + 3 * 2 * 6
    assert json.loads(timelines.trace(0))["metadata"]["calls_shown"] == 0


def test_json_logs_carry_what_was_given_beside_the_message() -> None:
    record = logging.makeLogRecord(
        {"name": "astrarium.x", "levelname": "INFO", "msg": "%d calls", "args": (3,)}
    )
    record.worker = 2
    line = json.loads(JsonLines().format(record))
    assert line["message"] == "3 calls"
    assert line["level"] == "info"
    assert line["worker"] == 2


def test_delays_are_taken_from_the_slow_trips() -> None:
    now = 0
    calibration = Calibration(lambda worker: None, lambda: now)
    assert calibration.delays() == Network(control=CONTROL_MARGIN, response=RESPONSE_MARGIN)
    for there, back in [(100_000, 200_000)] * 180 + [(1_000_000, 3_000_000)] * 20:
        now = there + back
        calibration.pong(0, there)
    assert calibration.delays() == Network(
        control=1_000_000 + CONTROL_MARGIN, response=3_000_000 + RESPONSE_MARGIN
    )
    for _ in range(PINGS - 5):  # a bad moment is forgotten
        calibration.pong(0, now)
    assert calibration.delays().response == RESPONSE_MARGIN


def test_a_pong_counts_from_when_it_was_heard() -> None:
    calibration = Calibration(lambda worker: None, lambda: 9_000_000)
    calibration.pong(0, 100_000, 150_000)  # the loop came to it much later
    assert calibration.delays().response == 50_000 + RESPONSE_MARGIN


def test_idle_workers_are_pinged_in_turn_while_the_server_serves() -> None:
    pinged: list[int] = []
    calibration = Calibration(pinged.append, lambda: 0)
    for idle in ([0, 1], [0, 1], [], [1], [0, 1, 2]):
        calibration.ping_one(idle)
    assert pinged == [0, 1, 1, 0]


def promise(
    timeout_ms: float | None = None, priority: int = 0, passed_ms: float = 0, patience_ms: float | None = None
) -> int:
    """Nanoseconds between receipt and deadline."""
    stage = Stage()
    entry = stage.repository.entries[0]
    object.__setattr__(entry.plan, "priorities", {1: 10 * MILLISECOND})
    timeout = None if timeout_ms is None else round(timeout_ms * MILLISECOND)
    patience = None if patience_ms is None else round(patience_ms * MILLISECOND)
    call = InferCall("m0", [], 1, stage.loop.now, timeout, priority, patience=patience)
    objective, _ = wanted(call, entry)
    stage.wait(passed_ms)
    admission = stage.coordinator.admission
    admit(admission, 0, "m0", admission.cost(0), call.received, objective, stage.loop.now)
    return objective


def test_the_deadline_is_the_calls_own_or_its_prioritys_or_the_models() -> None:
    assert promise() == 25 * MILLISECOND
    assert promise(priority=1) == 10 * MILLISECOND
    assert promise(timeout_ms=12, priority=1) == 12 * MILLISECOND


def test_a_client_that_waits_less_long_moves_its_deadline_and_one_that_waits_longer_does_not() -> None:
    assert promise(patience_ms=15) == 15 * MILLISECOND
    assert promise(patience_ms=60_000) == 25 * MILLISECOND
    assert promise(patience_ms=60_000, priority=1) == 10 * MILLISECOND


def test_what_an_idle_gpu_could_not_keep_is_refused_at_the_door() -> None:
    with pytest.raises(Refused, match="one request alone takes 6 ms") as refused:
        promise(timeout_ms=5)
    assert refused.value.kind is Kind.DEADLINE
    with pytest.raises(Refused, match="20 ms had passed"):
        promise(passed_ms=20)


def test_an_unknown_priority_is_told_which_there_are() -> None:
    with pytest.raises(Refused, match=r"expected one of 1 \(got 7\)") as refused:
        promise(priority=7)
    assert refused.value.kind is Kind.BAD_REQUEST


@pytest.mark.parametrize(
    ("wanted", "gpus", "devices"),
    [
        ("auto", 0, ["cpu", "cpu", "cpu"]),
        ("auto", 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cpu", 2, ["cpu", "cpu", "cpu"]),
        ("cuda", 0, ["cuda:0", "cuda:0", "cuda:0"]),  # asked for: the worker's error will say what is missing
    ],
)
def test_a_gpu_of_the_scenario_is_a_device_of_this_machine(
    wanted: str, gpus: int, devices: list[str]
) -> None:
    choose = device_chooser(wanted, gpus)
    assert [choose(gpu) for gpu in range(3)] == devices


def test_gpus_are_counted_without_a_driver(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus(tmp_path, "0,1,2") == 2
    assert visible_gpus(tmp_path, "1") == 1
    assert visible_gpus(tmp_path, "") == 0


def test_inputs_that_are_made_after_their_call_has_ended_keep_no_memory(tmp_path: Path) -> None:
    (tmp_path / "hook.py").write_text(
        "import numpy as np\n\ndef make(INPUT):\n    return {'INPUT': np.zeros((1, 2), np.float32)}\n"
    )
    reference = f"{tmp_path}/hook.py:make"

    async def run() -> int:
        stage = Stage()
        preparer = Preprocessor(stage.tensor_store, lambda: None)
        preparer.load("m0", reference)
        call = InferCall("m0", [Tensor("INPUT", "FP32", (1, 2), bytes(8))], 1, stage.loop.now)
        tensors = stage.repository.entries[0].tensors
        answer = asyncio.get_running_loop().create_future()
        ticket = Ticket(call, 0, tensors, 0, stage.loop.now, answer)
        preparer.prepare(ticket, reference)
        stage.open_calls.release(ticket)  # dropped while its inputs were being made
        await asyncio.gather(*preparer._running)
        preparer.close()
        assert ticket.inputs_ready
        assert not ticket.broken
        return stage.tensor_store.arena.used

    assert asyncio.run(run()) == 0
