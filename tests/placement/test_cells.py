"""Which GPUs of a plan belong together, and how requests are dealt out among them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.placement.cells import Cell, Cells, Station, cells, companies, station_numbers, stations
from astrarium.placement.plan import Plan, Replica
from astrarium.placement.problem import ALONE, Form, PlacedModel, PlacementGpu, Problem, Shape
from astrarium.placement.routing import NOWHERE, WHOLE, assigned, balanced, dealt

HALVES = Shape(stages=2)


def model(index: int, rate: float = 100.0) -> PlacedModel:
    """Batches of b take b + 1 ms; in two halves, half of that each."""
    times = tuple((size + 1) * MILLISECOND if size else 0 for size in range(9))
    half = tuple(time // 2 for time in times)
    forms = {ALONE: Form(ALONE, (times,), (1,)), HALVES: Form(HALVES, (half, half), (1, 1))}
    return PlacedModel(index, f"m{index}", SECOND, rate, forms)


def problem(gpus: int, models: int = 3) -> Problem:
    return Problem(tuple(map(model, range(models))), tuple(PlacementGpu(g, 100) for g in range(gpus)))


def whole(index: int, *gpus: int, batch: int = 8) -> tuple[Replica, ...]:
    return tuple(Replica(index, (gpu,), batch=batch) for gpu in gpus)


def test_gpus_with_the_same_models_form_a_cell() -> None:
    plan = Plan("", (*whole(1, 0, 2), *whole(0, 2, 1, 0), *whole(2, 3)))
    parts = cells(plan, problem(5))
    assert parts == Cells((Cell((0, 2), ((0, 8), (1, 8))), Cell((1,), ((0, 8),)), Cell((3,), ((2, 8),))))


def test_other_limits_make_another_cell() -> None:
    plan = Plan("", (*whole(0, 0, 1, batch=4), *whole(0, 2, batch=8)))
    assert cells(plan, problem(3)).cells == (Cell((0, 1), ((0, 4),)), Cell((2,), ((0, 8),)))


def test_a_part_of_a_gpu_or_several_gpus_are_for_worker_queues() -> None:
    beside = (Replica(0, (0,), share=0.5), Replica(1, (0,), share=0.5))
    over_two = (Replica(2, (1, 2), HALVES), *whole(0, 2))  # whoever shares a GPU with those goes along
    parts = cells(Plan("", (*beside, *whole(1, 3), *over_two)), problem(4))
    assert parts == Cells((Cell((3,), ((1, 8),)),), (*beside, *over_two))


def test_what_a_request_costs() -> None:
    queued = (
        Replica(0, (2, 3), HALVES, batch=2),
        Replica(1, (2, 3), HALVES, batch=4),
        Replica(1, (4,), share=0.5),
    )
    plan = Plan("", (*whole(0, 0, 1, batch=4), *whole(1, 0, 1, batch=1), *queued))
    of_cells, of_queues = stations(cells(plan, problem(5)), problem(5))
    # (b + 1) / b ms; the slower half of that; twice as much on half a GPU
    assert of_cells == [Station(2, {0: 1.25 * MILLISECOND, 1: 2.0 * MILLISECOND})]
    assert of_queues == [
        Station(1, {0: 0.75 * MILLISECOND, 1: 0.625 * MILLISECOND}),
        Station(1, {1: 4.0 * MILLISECOND}),
    ]


def test_queues_that_have_to_do_with_each_other() -> None:
    def part(model: int, *gpus: int) -> Replica:
        return Replica(model, gpus, Shape(stages=len(gpus)), share=0.5)

    queued = [part(0, 0), part(1, 1), part(2, 2, 3), part(3, 1), part(0, 4), part(5, 4, 0), part(6, 3)]
    assert companies(queued) == [(0, 4, 5), (1, 3), (2, 6)]
    assert companies([*queued, part(1, 3), part(6, 0)]) == [tuple(range(9))]
    assert companies([]) == []


def test_stations_of_queues() -> None:
    pair = [Replica(model, (0, 1), HALVES) for model in range(2)]
    parts = [Replica(model, (2,), share=0.5) for model in range(2)]
    assert station_numbers([pair[0], parts[0], pair[1], parts[1]]) == [0, 1, 0, 2]


def test_parts_go_by_what_is_free() -> None:
    """The second model fills nine tenths of one of two GPUs: the first has the other one to itself."""
    parts = balanced([1000.0, 900.0], [Station(1, {0: 1e6}), Station(1, {0: 1e6, 1: 1e6})])
    assert parts[:, 1].tolist() == [0, WHOLE]
    assert parts[:, 0].tolist() == pytest.approx([950, 50], abs=2)


def test_parts_go_by_the_number_of_gpus() -> None:
    parts = balanced([10.0, 0.0, 5.0], [Station(3, {0: 1e6, 1: 1e6}), Station(1, {0: 1e6, 1: 3e6})])
    assert parts[:, 0].tolist() == [750, 250]
    assert parts[:, 1].sum() == WHOLE  # nobody asks for it, and yet somebody would answer
    assert parts[:, 2].tolist() == [0, 0]  # it lives nowhere


def test_little_is_not_worth_a_cell() -> None:
    parts = balanced([1.0], [Station(999, {0: 1e6}), Station(1, {0: 1e6})])
    assert parts[:, 0].tolist() == [WHOLE, 0]


def test_no_stations() -> None:
    assert balanced([1.0, 2.0], []).shape == (0, 2)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6).filter(any), st.integers(0, 3000))
def test_dealt_in_proportion_at_every_moment(parts: list[int], count: int) -> None:
    who = dealt(count, parts)
    assert len(who) == count
    for place, part in enumerate(parts):
        got = np.cumsum(who == place)
        due = np.arange(1, count + 1) * part / sum(parts)
        assert np.abs(got - due).max(initial=0.0) <= len(parts) / 2 + 1
        assert part > 0 or not got.any()


def test_dealt_by_turns() -> None:
    assert dealt(6, [2, 1]).tolist() == [0, 1, 0, 0, 1, 0]
    assert dealt(4, [5, 5]).tolist() == [0, 1, 0, 1]
    assert dealt(3, [0, 7]).tolist() == [1, 1, 1]


def test_each_model_is_dealt_by_itself() -> None:
    models = np.array([0, 1, 0, 2, 0, 1, 0])
    parts = np.array([[500, 0, 0], [500, 1000, 0]])
    assert assigned(models, parts).tolist() == [0, 1, 1, NOWHERE, 0, 1, 1]
