"""How the time for leaving is shared."""

from __future__ import annotations

import pytest

from astrarium.cluster.live.machine.keeping.grace import GRACE, PATIENCE, Grace


def test_what_each_gets_of_thirty_seconds() -> None:
    grace = Grace(30.0)
    assert grace.job == 30.0
    assert grace.start == 15.0
    assert grace.leaving == 7.5
    assert grace.keeper == 32.0
    assert grace.arbiter(10.0) == 40.0
    assert grace.site == 30
    assert grace.pod == 40
    assert grace.handover == 60.0
    assert (grace.resize(up=True), grace.resize(up=False)) == (30.0, 60.0)


def test_what_is_taken_where_nobody_says_it() -> None:
    assert (GRACE, PATIENCE) == (30.0, 10.0)
    assert Grace() == Grace(GRACE)


@pytest.mark.parametrize("seconds", [0.001, 0.5, 30.0, 45.3, 3600.0])
def test_who_waits_for_another_waits_longer(seconds: float) -> None:
    grace = Grace(seconds)
    assert grace.start + grace.leaving < grace.job < grace.keeper < grace.arbiter(PATIENCE)
    assert grace.keeper < grace.pod
    assert grace.job <= grace.site < grace.pod
    assert grace.job < grace.handover
