"""No policy decides otherwise than it was recorded to, on any level, in Python or natively.

`tests/support/decisions` says what is run, and how the recording is written again where decisions change on
purpose.
"""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path

import pytest

from astrarium.core.engine import Engine
from astrarium.core.trace import Step, read_trace, write_trace
from astrarium.run.replay import replay
from astrarium.serving.contract import Action, Event
from astrarium.serving.policies import serving_policies
from astrarium.serving.scenario import build
from astrarium.serving.state import ServingState
from tests.support.decisions import cases
from tests.support.decisions.comparison import changed, differences, without_a_scenario
from tests.support.decisions.digests import Case, decided, digest
from tests.support.decisions.serving import random_serving, serving_steps
from tests.support.live_fakes import NATIVE
from tests.support.paths import ROOT

RECORDED: dict[str, str] = json.loads((ROOT / "tests/support/decisions/recorded.json").read_text())
ON_PURPOSE = "Then: python -m tests.support.decisions > tests/support/decisions/recorded.json"
FURTHER = re.compile(r"/random-(?!1$)")  # random scenarios beyond the first of each level
CASES = [
    pytest.param(
        case, id=case.name, marks=[pytest.mark.thorough] * bool(case.thorough or FURTHER.search(case.name))
    )
    for case in cases()
]


def test_every_digest_belongs_to_a_scenario_that_is_run() -> None:
    assert without_a_scenario(RECORDED, cases()) == []


@pytest.mark.parametrize("case", CASES)
def test_decisions_are_as_recorded(case: Case) -> None:
    otherwise = changed(RECORDED, case)
    assert not otherwise, f"{'; '.join(otherwise)}. Is it on purpose? {ON_PURPOSE}"


def test_live_twins_decide_as_their_references_also_by_length_and_by_size() -> None:
    twins = [key for key in RECORDED if "/live-twin/" in key]
    assert [key for key in twins if RECORDED[key] != RECORDED[key.replace("/live-twin/", "/python/")]] == []
    for policy, scenario in product(NATIVE, ("lengths", "by-length-1")):
        assert f"serving/{policy}/live-twin/{scenario}" in twins


def test_a_changed_decision_is_named() -> None:
    steps = serving_steps(random_serving(1).with_policy("eager"))
    later = [Step(step.now + 1, step.events, step.actions) for step in steps]
    [shown] = differences(
        {"serving/eager": digest(decided(steps))}, {"serving/eager": digest(decided(later))}
    )
    assert shown.startswith("serving/eager: ")
    assert digest(decided(steps)[:-1]) != digest(decided(steps))


@pytest.mark.parametrize("policy", serving_policies.names())
def test_a_replayed_trace_has_the_same_digest(policy: str, tmp_path: Path) -> None:
    """Written to a file, read again, and decided by a fresh policy."""
    scenario = random_serving(2).with_policy(policy)
    write_trace(tmp_path / "trace", serving_steps(scenario))
    setup = build.setup(scenario)
    again = list[Step]()
    engine = Engine(ServingState(setup), build.policy(scenario, setup), record=again.append)
    assert replay(engine, read_trace(tmp_path / "trace", Event, Action)) is None
    assert digest(decided(again)) == RECORDED[f"serving/{policy}/python/random-2"]
