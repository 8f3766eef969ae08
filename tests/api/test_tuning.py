"""Searches and policies are chosen by name, by keyword or as objects; tests/tuning/test_api.py trains."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import astrarium
from astrarium import tuning
from astrarium.core.choice import Choice, Registered
from astrarium.tuning.live.run.spec import SearchSpec
from astrarium.tuning.live.tune import specified
from astrarium.tuning.policies import searches, tuning_policies
from astrarium.tuning.policies.fifo import Fifo
from astrarium.tuning.search.hyperband import Hyperband

SPACE = {"rate": {"low": 0.1, "high": 1.0}}


def spec(search: Any = "random", policy: Any = "fifo") -> SearchSpec:
    return specified(search, policy, None, None, False, space={})


def test_every_search_and_policy_of_ours_can_be_configured_by_keywords() -> None:
    registered = {
        name: thing for name in tuning.__all__ if isinstance(thing := getattr(tuning, name), Registered)
    }
    for registry in (searches, tuning_policies):
        known = {kind.__name__: name for name, kind in registry}
        assert {name: thing.name for name, thing in registered.items() if thing.registry is registry} == known
    for thing in registered.values():
        assert thing() == Choice(thing.name)
        assert list(inspect.signature(thing).parameters) == list(thing.parameters.__struct_fields__)


def test_keywords_are_checked_as_a_file_is() -> None:
    assert tuning.Hyperband(iterations=81) == Choice("hyperband", {"iterations": 81})
    with pytest.raises(astrarium.InputError, match=r"hyperband\.etaa: expected one of .*did you mean 'eta'"):
        tuning.Hyperband(etaa=3)
    with pytest.raises(astrarium.InputError, match=r"dynamic-fluid\.packed: expected a whole number"):
        tuning.DynamicFluid(packed="many")


@pytest.mark.parametrize(
    "search",
    [
        "hyperband:iterations=81,eta=3",
        {"name": "hyperband", "iterations": 81, "eta": 3},
        Choice("hyperband", {"iterations": 81, "eta": 3}),
        tuning.Hyperband(iterations=81, eta=3),
    ],
)
def test_a_search_may_be_written_in_many_ways(search: Any) -> None:
    assert spec(search).search == Choice("hyperband", {"iterations": 81, "eta": 3})


def test_classes_and_objects_are_taken_as_they_are() -> None:
    assert spec(tuning.Hyperband, Fifo).search == Choice("hyperband")
    assert spec(Hyperband, tuning.Fifo()).policy == Choice("fifo")
    own = Hyperband(Hyperband.Parameters(iterations=9))
    policy = Fifo(Fifo.Parameters())
    assert spec(own, policy).search is own
    assert spec(own, policy).label == "Fifo"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"search": "hyperbnd"}, r"search\.name: .*did you mean 'hyperband'"),
        ({"search": "hyperband:iterations=2"}, r"search\.iterations: expected at least eta"),
        ({"search": 3}, "search: expected a name"),
        ({"policy": "fifo:packed=2"}, r"policy\.packed"),
        ({"policy": object()}, "policy: expected a name"),
        ({"live": {"patience": "soon"}}, r"live\.patience"),
        ({"live": {"pacience": "3s"}}, r"live\.pacience: expected one of .*did you mean 'patience'"),
        ({"live": tuning.Live(address="auto")}, r"live\.address"),
        ({"live": tuning.Live(packing="lanes")}, r"live\.packing"),
        ({"engine": "mars"}, "engine: expected local or ray"),
        ({"sampler": {"optuna": "NoSampler"}}, "sampler"),
        ({"longest": "0s"}, "longest"),
    ],
)
def test_what_cannot_be_used_is_named_before_anything_is_started(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(astrarium.InputError, match=message):
        astrarium.tune("nowhere.py:build", SPACE, **{"gpus": 1, "emulated": True, **wrong})
