"""A worker in virtual time: when batches start and end on its GPU, whatever the host is doing meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.serving.live.backends.emulated import EmulatedModel
from astrarium.serving.live.messages import (
    BatchBroken,
    BatchCancelled,
    BatchDone,
    BatchMember,
    CancelBatch,
    LoadModel,
    ModelUnloaded,
    News,
    Order,
    Ping,
    Pong,
    RunBatch,
    Stop,
    UnloadModel,
    packed,
    plain_files,
)
from astrarium.serving.live.tensors import TensorSpec
from tests.serving.live.world import FILES, MS, SPEC, TABLE, US, WHILE_IT_RUNS, World, done, news_of, run


@pytest.fixture(autouse=True, scope="module", params=["python", "native"])
def natively(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here holds whoever runs the batches."""
    World.natively = request.param == "native"
    yield
    World.natively = False


@pytest.mark.parametrize(("work", "late"), [(0, 0), (20 * US, 300 * US)])
def test_a_batch_sent_ahead_follows_the_one_before_without_a_gap(work: int, late: int) -> None:
    news = news_of(
        (8 * MS, run(1, 1)), (WHILE_IT_RUNS, run(2, 3)), (WHILE_IT_RUNS, run(3, 2)), work=work, late=late
    )
    first, second, third = map(done, news)
    assert first.started == first.received == 8 * MS + work
    assert first.computed - first.started == TABLE[1]
    assert (second.started, second.computed - second.started) == (first.computed, TABLE[3])
    assert (third.started, third.computed - third.started) == (second.computed, TABLE[2])
    assert all(one.computing == one.started for one in (first, second, third))


def test_the_end_that_is_reported_is_when_the_replies_are_there() -> None:
    first, second = map(done, news_of((8 * MS, run(1)), (WHILE_IT_RUNS, run(2)), work=20 * US, late=300 * US))
    assert first.finished > first.computed + 300 * US
    assert second.finished - second.started > TABLE[1]  # nobody takes it for faster than its profile


def test_an_idle_gpu_starts_when_the_order_is_there() -> None:
    _, second = map(done, news_of((8 * MS, run(1)), (20 * MS, run(2)), work=20 * US))
    assert second.started == second.received
    assert second.received - 20 * MS in range(100 * US)


def test_an_order_that_is_heard_while_replies_are_written_finds_the_gpu_free() -> None:
    """It was not there when the batch before ended, so there is no pretending that it was."""
    first, second = map(done, news_of((8 * MS, run(1)), (13 * MS + 10 * US, run(2)), late=50 * US))
    assert first.computed == 13 * MS
    assert second.started == second.received == 13 * MS + 50 * US


@pytest.mark.parametrize("received", [8 * MS + 1, 14 * MS])
def test_no_batch_starts_before_it_should(received: int) -> None:
    _, second = map(done, news_of((8 * MS, run(1)), (received, run(2, start=30 * MS)), late=100 * US))
    assert (second.started, second.computed) == (30 * MS, 30 * MS + TABLE[1])


def test_a_stopped_batch_frees_the_gpu_once_it_has_recovered() -> None:
    stop = CancelBatch(1, recovery=2 * MS)
    stopped, second = news_of((8 * MS, run(1)), (9 * MS, run(2)), (WHILE_IT_RUNS, stop))
    assert stopped == BatchCancelled(1, 8 * MS, WHILE_IT_RUNS)
    assert done(second).started == WHILE_IT_RUNS + 2 * MS
    assert done(second).computed == WHILE_IT_RUNS + 2 * MS + TABLE[1]


def test_a_batch_that_is_stopped_before_its_start_never_started() -> None:
    (stopped,) = news_of((8 * MS, run(1, start=30 * MS)), (WHILE_IT_RUNS, CancelBatch(1)))
    assert stopped == BatchCancelled(1, WHILE_IT_RUNS, WHILE_IT_RUNS)


def test_a_batch_that_is_stopped_while_it_waits_is_skipped() -> None:
    script = (8 * MS, run(1)), (9 * MS, run(2)), (9 * MS, run(3)), (WHILE_IT_RUNS, CancelBatch(2, MS))
    first, skipped, third = news_of(*script)
    assert skipped == BatchCancelled(2, done(first).computed, done(first).computed)
    assert done(third).started == done(first).computed + MS


def test_a_batch_that_breaks_is_told_in_its_turn_and_takes_no_time() -> None:
    script = (8 * MS, run(1)), (9 * MS, run(2, size=4)), (9 * MS, run(3)), (9 * MS, run(4, model=7))
    first, beyond, third, missing = news_of(*script)
    assert isinstance(beyond, BatchBroken)
    assert "the profile ends at 3" in beyond.error
    assert beyond.started == beyond.finished == done(first).computed == done(third).started
    assert isinstance(missing, BatchBroken)
    assert "model 7 is not loaded" in missing.error


def test_a_batch_that_everybody_has_left_takes_no_time() -> None:
    first, empty = map(done, news_of((8 * MS, run(1)), (9 * MS, run(2, size=0))))
    assert {empty.started, empty.computing, empty.computed, empty.finished} == {first.computed}


def test_what_is_not_a_batch_is_obeyed_while_one_runs() -> None:
    pong, unloaded, first, second = news_of(
        (8 * MS, run(1)), (9 * MS, run(2)), (9 * MS, Ping(5)), (WHILE_IT_RUNS, UnloadModel(0))
    )
    assert pong == Pong(5, 9 * MS)
    assert unloaded == ModelUnloaded(0)
    assert done(second).started == done(first).computed  # it was sent before the model had to go


def test_a_worker_that_is_told_to_stop_finishes_what_it_was_sent() -> None:
    load = (0, LoadModel(0, plain_files(FILES), [1]))
    world = World([load, (8 * MS, run(1)), (9 * MS, run(2)), (WHILE_IT_RUNS, Stop())])
    assert [done(news).tag for news in world.serve()] == [1, 2]


def test_answers_are_those_of_the_batch_they_belong_to() -> None:
    world = World([(0, LoadModel(0, plain_files(FILES), [1])), (8 * MS, run(1, 3)), (9 * MS, Stop())])
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    for i, row in enumerate(values):
        world.memory.view[i * 512 : i * 512 + 16] = row.tobytes()
    world.serve()
    replies = [np.frombuffer(world.memory.view, np.float32, 4, i * 512 + 256).tolist() for i in range(3)]
    assert replies == values.tolist()


IMAGE = TensorSpec("IMAGE", "UINT8", (3, 2))
WORDS = TensorSpec("WORDS", "INT64", (-1,))
SEVERAL = [
    replace(
        FILES,
        inputs=(IMAGE, SPEC),
        outputs=(TensorSpec("OUT", "FP32", (4,)), TensorSpec("TWO", "INT8", (2,))),
    ),
    replace(
        FILES,
        inputs=(WORDS,),
        outputs=(TensorSpec("SAME", "INT64", (-1,)), TensorSpec("NONE", "FP16", (2, -1))),
    ),
    replace(FILES, inputs=(SPEC, WORDS), outputs=(TensorSpec("LAST", "INT64", (-1,)),)),
    replace(FILES, inputs=(TensorSpec("TEXT", "BYTES", (1,)),), outputs=(TensorSpec("TEXT", "BYTES", (1,)),)),
]


@st.composite
def any_batch(draw: st.DrawFn) -> tuple[int, list[BatchMember], list[Any]]:
    """A model, and members of it with their shapes; some of them lie where they should not."""
    model = draw(st.integers(0, 2))
    rows = draw(st.integers(1, 3))
    places = draw(st.lists(st.integers(0, 15), min_size=1, max_size=4, unique=True))
    room = draw(st.sampled_from([256, 256, 256, 60]))
    block = draw(st.sampled_from([0, 0, 0, 1 << 20]))
    row = draw(st.integers(0, rows - 1))
    members = [BatchMember(block + 1024 * place, rows, row, 1024 * place + 512, room) for place in places]
    lengths = [draw(st.integers(1, 5)) for _ in places]
    words = [((rows, length), 8 * rows * length) for length in lengths]
    own: dict[int, list[Any]] = {
        1: [[one] for one in words],
        2: [[((rows, 4), 16 * rows), one] for one in words],
    }
    return model, members, own.get(model, [])


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(st.lists(st.tuples(st.integers(0, 40 * MS), any_batch()), min_size=1, max_size=6))
def test_native_code_says_and_writes_what_python_does(batches: list[Any]) -> None:
    before = World.natively
    outcomes = []
    for World.natively in (False, True):
        loads = [(0, LoadModel(number, plain_files(files), [1])) for number, files in enumerate(SEVERAL)]
        script: list[tuple[int, Order]] = [*loads, (1_000 * MS, Stop())]
        for number, (at, (model, members, shapes)) in enumerate(sorted(batches, key=lambda one: one[0])):
            script.append((at, RunBatch(number, model, packed(members), 0, shapes or None)))
        world = World(script)
        world.memory.view[:] = np.random.default_rng(1).bytes(len(world.memory.view))
        outcomes.append((world.serve(), bytes(world.memory.view)))
    World.natively = before
    assert outcomes[0] == outcomes[1]


def test_a_timed_model_needs_no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmulatedModel, "launch", None)
    monkeypatch.setattr(EmulatedModel, "run", None)
    (news,) = news_of((8 * MS, run(1)))
    assert isinstance(news, BatchDone if World.natively else BatchBroken)


orders = st.lists(
    st.tuples(
        st.integers(0, 60 * MS),
        st.integers(1, 4),
        st.integers(0, 70 * MS),
        st.none() | st.integers(0, 12 * MS),
    ),
    min_size=1,
    max_size=8,
).map(lambda found: sorted(found, key=lambda one: one[0]))


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(orders, st.sampled_from([0, 1, 30 * US]), st.sampled_from([0, 200 * US]), st.sampled_from([0, MS]))
def test_one_batch_at_a_time_each_as_long_as_its_profile(
    batches: list[tuple[int, int, int, int | None]], work: int, late: int, recovery: int
) -> None:
    script: list[tuple[int, Order]] = []
    for number, (at, size, start, stop) in enumerate(batches):
        script.append((at, run(number, size, start)))
        if stop is not None:
            script.append((at + stop, CancelBatch(number, recovery)))
    news = news_of(*script, work=work, late=late)
    free = 0
    ends = [one for one in news if isinstance(one, BatchDone | BatchBroken | BatchCancelled)]
    assert [one.tag for one in ends] == list(range(len(batches)))
    for one in news:
        free = left_the_gpu(one, free, batches, recovery)


def left_the_gpu(news: News, free: int, batches: list[tuple[int, int, int, Any]], recovery: int) -> int:
    """When, after checking what was told of its time there."""
    match news:
        case BatchDone(number, received, started, _, computed, finished):
            at, size, start, _ = batches[number]
            assert started == max(free, received, start)
            assert received >= at
            assert (computed - started, finished >= computed) == (TABLE[size], True)
            return computed
        case BatchCancelled(_, started, stopped):
            assert started <= stopped
            return stopped + recovery
        case BatchBroken(number, started, finished, error):
            assert "the profile ends" in error
            assert started <= finished
            return finished
    raise AssertionError(news)
