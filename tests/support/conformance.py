"""Planted faults: the conformance suites must catch what they claim to catch."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings

from astrarium.core.errors import AstrariumError
from astrarium.testing.conformance import BOUNDED, Conformance


def assert_caught(suite: type[Conformance], test: str) -> None:
    """Fail unless the test does; making the example small would take most of the time."""
    found = getattr(suite, test)
    quick = settings(BOUNDED, phases=(Phase.generate,))
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(found, "hypothesis"):
            patch.setattr(found, "_hypothesis_internal_use_settings", quick)
        with pytest.raises((AssertionError, AstrariumError)):
            getattr(suite(), test)()
