"""No process on the path of requests collects garbage while it serves, and requests leave none."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from astrarium.core.quantities import SECOND, Time
from astrarium.server.control.calls.ticket import Ticket
from astrarium.serving.live.garbage import TOO_MANY, WORTH_IT, GarbageKeeper
from astrarium.serving.live.messages import Ping, Stop
from tests.serving.live.world import World
from tests.support.live_fakes import Stage
from tests.support.server.live_server import PATIENCE, Server, eventually, serving


@pytest.fixture(autouse=True)
def _collector_as_it_was() -> Iterator[None]:
    watched = list(gc.callbacks)
    yield
    gc.callbacks[:] = watched
    gc.unfreeze()
    gc.enable()


class Keeper(GarbageKeeper):
    """One whose pile a test decides on."""

    def __init__(self) -> None:
        super().__init__(lambda: self.pile)
        self.pile = 0


@pytest.fixture
def keeper() -> Keeper:
    keeper = Keeper()
    keeper.settle()
    return keeper


def test_the_interpreter_does_not_collect_by_itself_any_more(keeper: Keeper) -> None:
    kept = [list[int]() for _ in range(20 * gc.get_threshold()[0])]
    assert len(kept) > 1000
    assert not gc.isenabled()
    assert keeper.collections == {"idle": 0, "busy": 0}


def test_an_idle_moment_is_used_where_it_is_worth_it(keeper: Keeper) -> None:
    keeper.pile = WORTH_IT - 1
    keeper.idle_moment()
    assert keeper.collections["idle"] == 0
    keeper.pile = WORTH_IT
    keeper.idle_moment()
    assert keeper.collections == {"idle": 1, "busy": 0}


def test_a_busy_moment_collects_only_before_memory_runs_out(keeper: Keeper) -> None:
    keeper.pile = TOO_MANY - 1
    keeper.busy_moment()
    assert keeper.collections["busy"] == 0
    keeper.pile = TOO_MANY
    keeper.busy_moment()
    assert keeper.collections == {"idle": 0, "busy": 1}


def test_what_is_left_behind_is_collected_in_the_next_idle_moment() -> None:
    keeper = GarbageKeeper()
    keeper.settle()
    for _ in range(2 * WORTH_IT):  # others may be tidying up meanwhile
        cycle: list[object] = []
        cycle.append(cycle)
    assert keeper.worth_it
    keeper.idle_moment()
    assert not keeper.worth_it


@pytest.mark.parametrize("slower", [1.0, 3.0])  # answered in time; some late, some dropped
def test_calls_leave_no_cycles(slower: float) -> None:
    stage = Stage()
    stage.workers.slower = slower
    gc.collect()
    gc.disable()
    for _ in range(50):
        stage.call()
        stage.wait(4)
    stage.wait(200)
    ended = len(stage.ended)
    stage.ended.clear()
    tickets = [one for one in gc.get_objects() if isinstance(one, Ticket)]
    assert ended == 50
    assert len(tickets) <= 1, "only the last call may still be known to somebody"


def test_a_worker_that_is_only_pinged_settles_its_garbage(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "natively", True)
    settled: list[Time] = []
    world = World([*((at * SECOND // 10, Ping(0)) for at in range(1, 40)), (4 * SECOND, Stop())])
    monkeypatch.setattr(keeper, "settle", lambda: settled.append(world.now))
    pongs = world.serve(keeper)
    assert len(pongs) == 39
    assert settled == [SECOND]


SCENARIO = """
cluster: {gpus: 1}
models:
  counting: {profile: {alpha: 0.1ms, beta: 0.1ms}, slo: 20s, max_batch: 4, backend: {python: counting.py:run},
             inputs: [{name: X, datatype: FP32, shape: [1]}],
             outputs: [{name: COLLECTIONS, datatype: INT64, shape: [1]}]}
policy: {name: eager}
"""
COUNTING = """
import gc
import numpy as np

seen = []
gc.callbacks.append(lambda phase, _: seen.append(phase))

def run(X):
    return {"COLLECTIONS": np.full((len(X), 1), len(seen), np.int64)}
"""
CLIENTS = 8
EACH = 500


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    (tmp_path / "counting.py").write_text(COUNTING)
    with serving(tmp_path / "scenario.yaml") as running:
        yield running


async def ask(server: Server, times: int, *lines: str) -> list[int]:
    """How many collections the worker had seen, by request, on one connection."""
    host, port = server.http.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]})
    head = [
        "POST /v2/models/counting/infer HTTP/1.1",
        "Host: x",
        f"Content-Length: {len(body)}",
        *lines,
        "",
        "",
    ]
    answers = []
    for _ in range(times):
        writer.write(("\r\n".join(head) + body).encode())
        answer = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)).decode()
        length = int(answer.lower().split("content-length: ")[1].split("\r\n")[0])
        answers += json.loads(await reader.readexactly(length))["outputs"][0]["data"]
    writer.close()
    return answers


def test_nobody_collects_under_load(server: Server) -> None:
    async def load(*lines: str) -> list[list[int]]:
        return await asyncio.gather(*(ask(server, EACH, *lines) for _ in range(CLIENTS)))

    first = asyncio.run(ask(server, 1))[0]
    worker = [count for one in asyncio.run(load()) for count in one]
    asyncio.run(load("Proxy-Connection: keep-alive"))  # the long way leaves none either
    assert len(worker) == CLIENTS * EACH
    # a worker may settle once, a moment after it has loaded its model: two phases of one collection
    assert max(worker) - first <= 2
    assert server.metric("astrarium_collections_total", moment="busy") == 0
    assert server.metric("astrarium_express_calls_total") >= CLIENTS * EACH
    assert server.metric("astrarium_long_way_total", reason="proxy-connection") == CLIENTS * EACH
    assert server.metric("astrarium_long_way_total") == CLIENTS * EACH
    eventually(lambda: server.metric("astrarium_open") == 0, "nothing is open")
