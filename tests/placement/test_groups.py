"""Groups of GPUs, simulated: by hand, against queueing theory, and the native kernels against Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.errors import InputError
from astrarium.core.optional import extension
from astrarium.core.quantities import FOREVER, MILLISECOND, SECOND
from astrarium.placement.groups.layout import REJECTED, Group, GroupLayout, Served, Tables
from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.groups.simulation import Engine, SimulatedRequests, in_time, score, simulate_groups
from astrarium.placement.problem import ALONE, Form, PlacedModel, PlacementRequests, Shape

PLAIN = GroupRuntime(stage_overhead=0, fixed_overhead=0)
QUEUES = GroupRuntime(dispatch="queue", stage_overhead=0, fixed_overhead=0)
TWO = Shape(stages=2)
ENGINES: tuple[Engine, ...] = ("python", "native")


def model(index: int, slo: int, **stages: tuple[int, ...]) -> PlacedModel:
    """Forms by keyword: one=(10,), two=(4, 6)."""
    shapes = {"one": ALONE, "two": TWO, "three": Shape(3)}
    forms = {
        shapes[name]: Form(shapes[name], tuple((0, *[time] * 4) for time in times), (1,) * len(times))
        for name, times in stages.items()
    }
    return PlacedModel(index, f"m{index}", slo, 1.0, forms)


def served(
    models: list[PlacedModel], groups: list[Group], requests: list[tuple[int, int]], runtime: GroupRuntime
) -> Served:
    tables = Tables.of(models, runtime)
    times, of = zip(*requests, strict=True)
    workload = SimulatedRequests.of(tables, PlacementRequests(times, of))
    results = [simulate_groups(GroupLayout.of(tables, groups), workload, engine=engine) for engine in ENGINES]
    assert results[0].finish.tolist() == results[1].finish.tolist()
    assert results[0].group.tolist() == results[1].group.tolist()
    return results[0]


def test_stages_of_a_pipeline_work_at_the_same_time() -> None:
    one = [model(0, 100, two=(4, 6))]
    result = served(one, [Group((0, 1), TWO, (0,))], [(0, 0), (0, 0), (1, 0)], PLAIN)
    assert result.finish.tolist() == [10, 16, 22]
    assert result.work.tolist() == [18]


def test_who_would_be_late_is_rejected_and_leaves_no_trace() -> None:
    one = [model(0, 15, one=(10,))]
    result = served(one, [Group((0,), ALONE, (0,))], [(0, 0), (1, 0), (6, 0)], PLAIN)
    assert result.finish.tolist() == [10, REJECTED, 20]


def test_overheads_count_against_the_objective() -> None:
    one = [model(0, 1000, two=(400, 400))]
    runtime = GroupRuntime(stage_overhead=0.05, fixed_overhead=120)
    result = served(one, [Group((0, 1), TWO, (0,))], [(0, 0), (0, 0)], runtime)
    assert result.finish.tolist() == [2 * 440 + 120, REJECTED]
    assert (
        served(one, [Group((0, 1), TWO, (0,))], [(0, 0)], GroupRuntime(fixed_overhead=220)).finish[0]
        == REJECTED
    )


def test_the_earliest_last_stage_is_not_the_shortest_queue() -> None:
    models = [model(0, 100, one=(30,)), model(1, 100, one=(5,))]
    groups = [Group((0,), ALONE, (0, 1)), Group((1,), ALONE, (1,))]
    requests = [(0, 0), (0, 1), (0, 1), (1, 1)]
    assert served(models, groups, requests, PLAIN).group.tolist() == [0, 1, 1, 1]
    assert served(models, groups, requests, QUEUES).group.tolist() == [0, 1, 0, 1]


def test_who_ends_just_now_is_in_no_queue() -> None:
    one = [model(0, 100, one=(10,))]
    groups = [Group((0,), ALONE, (0,)), Group((1,), ALONE, (0,))]
    assert served(one, groups, [(0, 0), (10, 0)], QUEUES).group.tolist() == [0, 0]
    assert served(one, groups, [(0, 0), (9, 0)], QUEUES).group.tolist() == [0, 1]


def test_another_group_is_tried_before_a_request_is_rejected() -> None:
    """One long request makes no longer a queue than one short one."""
    models = [model(0, 100, one=(30,)), model(1, 20, one=(5,))]
    groups = [Group((0,), ALONE, (0, 1)), Group((1,), ALONE, (1,))]
    requests = [(0, 0), (0, 1), (0, 1), (0, 1)]
    alone = served(models, groups, requests, QUEUES)
    assert alone.finish.tolist() == [30, 5, REJECTED, REJECTED]
    helped = served(models, groups, requests, GroupRuntime("queue", True, stage_overhead=0, fixed_overhead=0))
    assert helped.finish.tolist() == [30, 5, 10, 15]


def test_a_model_without_a_group_is_rejected() -> None:
    models = [model(0, 100, one=(30,)), model(1, 20, one=(5,))]
    result = served(models, [Group((0,), ALONE, (1,))], [(0, 0), (0, 1)], PLAIN)
    assert (result.finish.tolist(), result.group.tolist()) == ([REJECTED, 5], [-1, 0])


def test_the_earliest_deadline_goes_first() -> None:
    models = [model(0, 100, one=(10,)), model(1, 25, one=(10,))]
    both = [Group((0,), ALONE, (0, 1))]
    requests = [(0, 0), (1, 0), (2, 1)]
    by_deadline = replaced(QUEUES, order="deadline")
    assert served(models, both, requests, by_deadline).finish.tolist() == [10, 30, 20]
    assert served(models, both, requests, QUEUES).finish.tolist() == [10, 20, REJECTED]


def test_batches_are_as_large_as_deadlines_allow() -> None:
    times = ((0, 10, 14, 30),)
    one = [PlacedModel(0, "m", 40, 1.0, {ALONE: Form(ALONE, times, (1,))})]
    group = [Group((0,), ALONE, (0,))]
    requests = [(0, 0), (1, 0), (2, 0), (3, 0)]
    result = served(one, group, requests, replaced(QUEUES, max_batch=3))
    # The first starts alone, for nobody else is there. Three at once from 10 end at 40, in time for all.
    assert result.finish.tolist() == [10, 40, 40, 40]
    tighter = [PlacedModel(0, "m", 38, 1.0, {ALONE: Form(ALONE, times, (1,))})]
    assert served(tighter, group, requests, replaced(QUEUES, max_batch=3)).finish.tolist() == [10, 24, 24, 34]


def replaced(runtime: GroupRuntime, **changes: Any) -> GroupRuntime:
    fields = {name: getattr(runtime, name) for name in runtime.__struct_fields__}
    return GroupRuntime(**{**fields, **changes})


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_batch": 0},
        {"max_batch": 2},
        {"order": "deadline"},
        {"order": "deadline", "dispatch": "queue", "clock": "seconds"},
        {"fixed_overhead": -1},
    ],
)
def test_runtimes_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        GroupRuntime(**wrong)  # type: ignore[arg-type]


def test_a_group_in_a_shape_that_its_model_lacks_is_refused() -> None:
    models = [model(0, 100, one=(30,)), model(1, 100, two=(5, 5))]
    with pytest.raises(InputError, match=r"groups\[0\].models"):
        GroupLayout.of(Tables.of(models), [Group((0,), ALONE, (1,))])


def queueing(rate: float, groups: list[Group]) -> float:
    """The mean latency in seconds of two BERT-6.7B, as in AlpaServe's section 3.4: 0.4 s, no overheads."""
    forms = {
        ALONE: Form(ALONE, ((0, 400 * MILLISECOND),), (1,)),
        TWO: Form(TWO, ((0, 200 * MILLISECOND),) * 2, (1, 1)),
    }
    models = [PlacedModel(index, "m", FOREVER, rate, forms) for index in (0, 1)]
    tables = Tables.of(models, PLAIN)
    chance = np.random.default_rng(1)
    arrivals = np.cumsum(chance.exponential(SECOND / (2 * rate), 400_000)).astype(np.int64)
    of = chance.integers(0, 2, len(arrivals)).astype(np.int32)
    workload = SimulatedRequests.from_columns(arrivals, of, 2)
    finish = simulate_groups(GroupLayout.of(tables, groups), workload).finish
    return float((finish - arrivals).mean()) / SECOND


def test_waiting_times_are_those_of_queueing_theory() -> None:
    apart = queueing(1.5, [Group((0,), ALONE, (0,)), Group((1,), ALONE, (1,))])
    assert apart == pytest.approx(0.4 + 1.5 * 0.16 / (2 * (1 - 0.6)), rel=0.02)
    together = queueing(1.5, [Group((0, 1), TWO, (0, 1))])
    assert together == pytest.approx(0.4 + 3 * 0.04 / (2 * (1 - 0.6)), rel=0.02)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[GroupLayout, SimulatedRequests]:
    """Few models, few times, many ties. Often all models are alike, which the native kernel makes use of."""
    runtime = draw(
        st.sampled_from(
            [
                PLAIN,
                QUEUES,
                GroupRuntime("clock", True, fixed_overhead=3),
                GroupRuntime("queue", True, stage_overhead=0.1, fixed_overhead=1),
                GroupRuntime(clock="seconds", fixed_overhead=2),
                GroupRuntime("queue", True, clock="seconds"),
                replaced(QUEUES, order="deadline"),
                replaced(QUEUES, order="deadline", another=True, max_batch=3, fixed_overhead=2),
                replaced(QUEUES, max_batch=4, stage_overhead=0.2),
            ]
        )
    )
    alike = draw(st.booleans())
    shapes = [ALONE, TWO, Shape(3, 2)]
    stage = st.lists(st.integers(1, 9), min_size=3, max_size=3).map(
        lambda times: tuple(np.cumsum([0, *times]))
    )
    rows = {shape: [draw(stage) for _ in range(shape.stages)] for shape in shapes}
    models = []
    for index in range(draw(st.integers(1, 4))):
        mine = rows if alike else {shape: [draw(stage) for _ in range(shape.stages)] for shape in shapes}
        forms = {
            shape: Form(
                shape, tuple(tuple(int(time) for time in row) for row in mine[shape]), (1,) * shape.stages
            )
            for shape in shapes
        }
        models.append(PlacedModel(index, f"m{index}", draw(st.integers(5, 80)), 1.0, forms))
    some = st.sets(st.sampled_from(range(len(models)))).map(lambda numbers: tuple(sorted(numbers)))
    groups = [Group((), draw(st.sampled_from(shapes)), draw(some)) for _ in range(draw(st.integers(1, 4)))]
    gaps = draw(st.lists(st.integers(0, 6), max_size=60))
    of = draw(st.lists(st.sampled_from(range(len(models))), min_size=len(gaps), max_size=len(gaps)))
    tables = Tables.of(models, runtime)
    requests = PlacementRequests(tuple(np.cumsum(gaps, dtype=np.int64).tolist()), tuple(of))
    return GroupLayout.of(tables, groups), SimulatedRequests.of(tables, requests)


@settings(max_examples=250)
@given(scenes())
def test_native_equals_python_request_by_request(scene: tuple[GroupLayout, SimulatedRequests]) -> None:
    assert extension("_placement") is not None
    layout, workload = scene
    reference, twin = (simulate_groups(layout, workload, engine=engine) for engine in ("python", "native"))
    assert twin.finish.tolist() == reference.finish.tolist()
    assert twin.group.tolist() == reference.group.tolist()
    assert twin.work.tolist() == reference.work.tolist()
    totals = [score(layout, workload, engine) for engine in ENGINES]
    assert totals[0].good.tolist() == totals[1].good.tolist() == in_time(reference, workload).tolist()


@given(scenes(), st.lists(st.integers(0, 40), min_size=12, max_size=12))
def test_native_takes_and_leaves_the_same_clocks(
    scene: tuple[GroupLayout, SimulatedRequests], begin: list[int]
) -> None:
    layout, workload = scene
    if layout.tables.runtime.waits:
        return
    before = layout.clocks()
    before[:] = np.sort(
        np.array(begin, before.dtype)[: before.size % 12 or 12]
        .repeat(before.size)[: before.size]
        .reshape(before.shape),
        axis=1,
    )
    clocks = [before.copy(), before.copy()]
    results = [
        simulate_groups(layout, workload, clock, engine)
        for clock, engine in zip(clocks, ENGINES, strict=True)
    ]
    assert results[0].finish.tolist() == results[1].finish.tolist()
    assert clocks[0].tolist() == clocks[1].tolist()


@given(scenes())
def test_answers_keep_their_objectives_and_nobody_is_served_where_the_model_is_not(
    scene: tuple[GroupLayout, SimulatedRequests],
) -> None:
    layout, workload = scene
    result = simulate_groups(layout, workload)
    answered = result.finish != REJECTED
    took = (result.finish - workload.arrivals)[answered]
    of = workload.models[answered]
    where = result.group[answered]
    assert (took <= layout.tables.slo[of] + 1e-9).all()
    assert layout.hosts[where, of].all()
    least = layout.tables.times[layout.kind[where], of, 0].sum(1) + layout.tables.runtime.fixed
    assert (took >= least - 1e-9).all()


def test_the_kernel_refuses_what_does_not_fit_together() -> None:
    native = extension("_placement")
    assert native is not None
    tables = Tables.of([model(0, 100, one=(30,))], PLAIN)
    layout = GroupLayout.of(tables, [Group((0,), ALONE, (0,))])
    times = np.array([0], np.int64)
    of = np.array([1], np.int32)
    with pytest.raises(ValueError):
        simulate_groups(layout, SimulatedRequests(times, of, np.array([1])))
