"""No policy decides otherwise than it was recorded to on the scenarios of the papers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from papers.tests.decisions import cases
from tests.support.decisions.comparison import changed, without_a_scenario
from tests.support.decisions.digests import Case

RECORDED: dict[str, str] = json.loads((Path(__file__).parent / "recorded.json").read_text())
ON_PURPOSE = "Then: python -m papers.tests.decisions > papers/tests/decisions/recorded.json"


def test_every_digest_belongs_to_a_scenario_that_is_run() -> None:
    assert without_a_scenario(RECORDED, cases()) == []


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_decisions_are_as_recorded(case: Case) -> None:
    otherwise = changed(RECORDED, case)
    assert not otherwise, f"{'; '.join(otherwise)}. Is it on purpose? {ON_PURPOSE}"
