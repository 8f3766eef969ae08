"""When apps will start: foreseen in the middle of a run, and compared with what then happens."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.level import LEVEL, prepare
from astrarium.cluster.live.watching import forecast as forecasts
from astrarium.cluster.live.watching.forecast import Forecast, ForecastProcess, as_bytes, foreseen
from astrarium.cluster.live.watching.status import status
from astrarium.cluster.policies import Allocator
from astrarium.cluster.scenario.read import ClusterScenario, parse
from astrarium.cluster.state import ClusterState
from astrarium.core.choice import chosen
from astrarium.core.level import Watching
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.core.trace import Step
from astrarium.run.simulate import simulate
from tests.support.cluster.live_fakes import Immediate
from tests.support.cluster.virtual_cluster import VirtualCluster

LEASED = ["gandiva", "optimus", "slaq", "srtf", "themis", "tiresias"]
POLICIES = ["fifo", "drf", "astrarium", *LEASED, "max-min", "finish-time-fair"]


def scenario(policy: str) -> ClusterScenario:
    parameters = {"lease": "10min"} if policy in LEASED else {}
    apps = [
        {"name": f"app-{n}", "gpus": 1 + 3 * n % 4, "length": f"{20 + 7 * n}min", "arrival": f"{2 * n}min"}
        for n in range(8)
    ]
    return parse(
        {"machines": [{"count": 2, "gpus": 2}], "apps": apps, "policy": {"name": policy, **parameters}}
    )


def run_and_ask(policy: str, at: Time) -> tuple[bytes, dict[int, Time], list[int]]:
    """A whole run: the question at an instant, when apps began to run after it, and who waited then."""
    asked = list[bytes]()
    waiting = list[int]()
    began: dict[int, Time] = {}
    timers: dict[str, Time] = {}

    def trace(step: Step) -> None:
        for event in step.events:
            if isinstance(event, TimerFired):
                timers.pop(event.name, None)
        for action in step.actions:
            if isinstance(action, SetTimer):
                timers[action.name] = action.at
            elif type(action).__name__ == "Run" and step.now > at:
                began.setdefault(action.app, step.now)

    def look(now: Time, state: ClusterState, allocator: Allocator) -> None:
        asked.append(as_bytes(now, state, allocator, timers, ()))
        waiting.extend(a for a, row in state.apps.items() if not any(j.gpus for j in row.jobs.values()))

    one = scenario(policy)
    ready = prepare(one, chosen(LEVEL.policies, one.policy), Watching(trace), look=(at, look))
    simulate(ready.engine, ready.arrivals, ready.world)
    return asked[0], {app: began[app] for app in waiting}, waiting


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_foreseen_happens_where_owners_are_right_and_nobody_comes(policy: str) -> None:
    asked, began, waiting = run_and_ask(policy, 31 * 60 * SECOND)
    assert waiting
    forecast = foreseen(asked)
    assert forecast is not None
    assert forecast.later == ()
    assert forecast.starts.keys() == began.keys()
    for app, at in forecast.starts.items():
        assert abs(at - began[app]) <= MILLISECOND, (policy, app)


def test_a_forecast_is_broken_off_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 31 * 60 * SECOND
    asked, _, _ = run_and_ask("tiresias", at)
    monkeypatch.setattr(forecasts, "MOST_STEPS", 4)
    few = foreseen(asked)
    assert few is not None
    assert few.until > at
    assert few.later
    assert not few.starts.keys() & set(few.later)


def test_a_forecast_has_a_bound_on_its_cpu_time() -> None:
    """In a process of its own, whatever the policy is doing."""
    code = "from astrarium.cluster.live.watching.forecast import bounded, _Enough\n"
    code += "try:\n    with bounded(0.05):\n        while True: pass\nexcept _Enough: print('enough')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "enough\n"


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [
        (None, (20.5, "leases")),
        (Forecast(0, {1: 30 * SECOND}), (30.0, "simulated")),
        (Forecast(0, later=(1,), until=40 * SECOND), (40.0, "not before")),
        (Forecast(0, later=(1,), until=10 * SECOND), (20.5, "leases")),
        (Forecast(0), (20.5, "leases")),
    ],
)
def test_the_status_says_how_a_start_is_known(tmp_path: Path, ahead: Forecast | None, expected: Any) -> None:
    cluster = VirtualCluster(tmp_path, "fifo")
    cluster.submit("first", 2)
    cluster.submit("wide", 4)
    cluster.go(1)
    arbiter = cluster.arbiter
    shown = status(arbiter.now(), arbiter.state, arbiter._allocator_now, {}, ahead)
    assert (shown["apps"][1]["starts_s"], shown["apps"][1]["starts_how"]) == expected


def test_a_policy_that_cannot_be_kept_is_not_foreseen() -> None:
    assert foreseen(as_bytes(0, ClusterState(), lambda: None, {}, ())) is None


def test_another_process_foresees_the_same() -> None:
    asked, _, _ = run_and_ask("astrarium", 31 * 60 * SECOND)
    child = ForecastProcess()
    try:
        assert child.ask(0, lambda: asked) is None
        ends = time.monotonic() + 60
        while (forecast := child.ask(1, lambda: asked)) is None and time.monotonic() < ends:
            time.sleep(0.05)
    finally:
        child.close()
    assert forecast == foreseen(asked)


def test_the_status_says_when_apps_start_and_for_whom_gpus_are_held(tmp_path: Path) -> None:
    cluster = VirtualCluster(tmp_path, "fifo", foresight=Immediate())
    for name, gpus in (("first", 2), ("wide", 4), ("small", 1)):
        cluster.submit(name, gpus)
    cluster.go(1)
    first, wide, small = cluster.arbiter.status()["apps"]
    assert (first["starts_s"], first["starts_how"], first["place"]) == (None, None, None)
    assert (wide["place"], small["place"]) == (1, 2)
    assert (wide["starts_s"], wide["starts_how"]) == (pytest.approx(20.5), "simulated")  # after 20 s
    assert (small["starts_s"], small["starts_how"]) == (
        pytest.approx(42.5),
        "simulated",
    )  # over two machines, 10 % slower
    assert small["why"] == (
        "it needs 1, 2 of 4 are free, and held for wide, which needs 4 together; "
        "number 2 of 2 in line (by its arrival)"
    )
    assert wide["why"].startswith("it needs 4 together, 2 of 4 are free; number 1 of 2")
    cluster.go(400)
    assert {app["starts_s"] for app in cluster.arbiter.status()["apps"]} == {None}
