"""Plans of models whose requests have lengths count with the mean over the workload."""

from __future__ import annotations

from typing import Any

import pytest

from astrarium.core.choice import Choice
from astrarium.core.quantities import MILLISECOND
from astrarium.serving.planning.answer import Question, answered
from astrarium.serving.planning.mean_times import LengthMix, length_mixes, mean_times
from astrarium.serving.planning.plain import plain_answer
from astrarium.serving.planning.search import PlanningGoals
from astrarium.serving.planning.tables import shown
from astrarium.serving.scenario import Scenario, build, parse

TABLES = {16: {1: "1ms", 4: "1ms"}, 64: {1: "2ms", 2: "6ms"}}


def world(weights: dict[Any, float], slo: str = "100ms", **profile: Any) -> Scenario:
    model = {"slo": slo, "memory": "1GiB", "profile": {"lengths": TABLES, "rounded": True, **profile}}
    raw: dict[str, Any] = {
        "cluster": {"gpus": 1, "memory": "8GiB"},
        "models": {"texts": model},
        "workload": {
            "arrivals": "poisson",
            "rate": "2000/s",
            "duration": "5s",
            "lengths": {"weights": weights},
        },
    }
    return parse(raw)


def times(weights: dict[int, float], slo: str = "100ms") -> tuple[int, ...]:
    scenario = world(weights, slo)
    return mean_times(scenario, build.setup(scenario).models[0])


def ms(*values: float) -> Any:
    return pytest.approx([value * MILLISECOND for value in values], rel=0.06)


def test_one_length_is_its_own_table() -> None:
    assert times({16: 1}) == ms(0, 1, 1, 1, 1)


def test_lengths_count_as_often_as_they_come() -> None:
    assert times({16: 3, 64: 1}) == ms(0, 1.25, 2.25, 3, 3.75)


def test_a_plan_says_which_lengths_it_counts_with_and_what_is_padding() -> None:
    """Of sixteen computed twelve are asked for; without rounding all are."""
    assert length_mixes(world({12: 1})) == {"texts": LengthMix(12, 0.25)}
    assert length_mixes(world({12: 1}, rounded=False)) == {"texts": LengthMix(12, 0)}
    mixed = length_mixes(world({12: 3, 40: 1}))["texts"]
    assert mixed.mean == pytest.approx(19, rel=0.05)
    assert mixed.padding == pytest.approx(1 - 76 / 112, rel=0.05)


def test_images_count_by_their_area() -> None:
    images = {"8x8": {1: "1ms"}, "8x16": {1: "2ms"}, "16x8": {1: "2ms"}, "16x16": {1: "4ms"}}
    raw = {"cluster": {"gpus": 1}, "models": {"images": {"slo": "100ms", "profile": {"lengths": images}}}}
    workload = {"arrivals": "poisson", "rate": "100/s", "duration": "1s", "lengths": {"constant": "8x12"}}
    assert length_mixes(parse({**raw, "workload": workload})) == {"images": LengthMix(96, 0.25)}


def test_models_without_lengths_have_none_to_tell() -> None:
    raw = {"cluster": {"gpus": 1}, "models": {"m": {"slo": "10ms", "profile": {"table": ["1ms"]}}}}
    workload = {"arrivals": "poisson", "rate": "9/s", "duration": "1s"}
    assert length_mixes(parse({**raw, "workload": workload})) == {}


@pytest.mark.parametrize(
    ("profile", "said"),
    [({}, "; 25.0% of that work is padding"), ({"rounded": False}, "; without padding")],
)
def test_the_answer_of_a_plan_tells_them(profile: dict[str, Any], said: str) -> None:
    question = Question(gpus=1, grow=False)
    goals = PlanningGoals(seeds=1)
    answer = answered(world({12: 1}, **profile), Choice("planner"), goals, question)
    (sentence,) = [str(part) for part in shown(answer) if str(part).startswith("texts: ")]
    assert sentence.startswith(
        "texts: a batch takes the mean over the lengths of the workload (12.0 on average)"
    )
    assert sentence.endswith(said)
    assert plain_answer(answer)["lengths"]["texts"]["mean"] == 12


def test_what_takes_longer_than_the_objective_is_no_batch() -> None:
    assert times({16: 1, 64: 1}, slo="6ms") == ms(0, 1.5, 3.5, 5)
