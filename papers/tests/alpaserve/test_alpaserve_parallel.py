"""Layers divided over GPUs: where they are cut into stages, and what an exchange costs."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.errors import InputError
from astrarium.placement.problem import (
    ALONE,
    Form,
    Shape,
)
from astrarium_papers.alpaserve._common import cases, workloads
from astrarium_papers.alpaserve._common.parallel import Layer, Link, cut, forms, layer_time, parallelize


def brute_force(times: list[int], stages: int) -> int:
    ways = combinations(range(1, len(times)), stages - 1)
    return min(
        max(sum(times[a:b]) for a, b in zip((0, *inner), (*inner, len(times)), strict=True)) for inner in ways
    )


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9), st.data())
def test_the_slowest_stage_is_as_fast_as_it_can_be(times: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(times)))
    edges = cut(times, stages)
    assert (edges[0], edges[-1], len(edges)) == (0, len(times), stages + 1)
    assert all(a < b for a, b in pairwise(edges))
    assert max(sum(times[a:b]) for a, b in pairwise(edges)) == brute_force(times, stages)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(InputError, match="stages"):
        cut([1, 2], 3)


LINK = Link(bandwidth=1e9, delay=10)  # a byte a nanosecond


def test_splitting_a_layer_costs_an_exchange() -> None:
    layer = Layer((0, 1000, 2000), weights=100, exchanged=200)
    assert layer_time(layer, 1, 1, LINK) == 1000
    assert layer_time(layer, 1, 2, LINK) == 500 + 2 * 10 + 200
    assert layer_time(layer, 2, 4, LINK) == 500 + 6 * 10 + 600
    chatty = Layer((0, 1000), weights=100, exchanged=10_000)
    assert layer_time(chatty, 1, 2, LINK) == 1000  # it stays whole


def test_a_form_has_the_time_and_the_weights_of_its_stages() -> None:
    layers = [
        Layer((0, 400), 100, 0, output=50),
        Layer((0, 400), 100, 0, output=50),
        Layer((0, 900), 30, 10**6),
    ]
    form = parallelize(layers, Shape(2, 2), LINK)
    assert form.stage_times == ((0, 2 * (200 + 20) + 10 + 50), (0, 900))
    assert form.weights == (100, 30)  # the last layer is not split: its exchange would take too long
    measured = {Shape(2, 2): Form(Shape(2, 2), ((0, 1), (0, 1)), (1, 1))}
    by_shape = forms(layers, [ALONE, Shape(2, 2), Shape(8)], LINK, measured)
    assert by_shape[Shape(2, 2)] is measured[Shape(2, 2)]
    assert by_shape[ALONE].stage_times == ((0, 1700),)
    assert Shape(8) not in by_shape


def test_cutting_a_bert_comes_near_what_was_measured() -> None:
    """24 equal layers of BERT-1.3B: four stages of a quarter each; the authors measured up to 11 % more."""
    alone = workloads.alone("bert-1.3b")
    assert alone is not None
    layers = [Layer((0, alone.latency(1) // 24), alone.weights[0] // 24)] * 24
    ours = parallelize(layers, Shape(4), Link(1e11))
    measured = cases.forms("bert-1.3b")[Shape(4)]
    assert 1.0 <= measured.interval(1) / ours.interval(1) < 1.15
