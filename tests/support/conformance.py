"""A suite for each registered policy, and planted faults, which suites must catch as they claim to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import Phase, settings

from astrarium.core.errors import AstrariumError
from astrarium.testing.checks import ensure
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


Choice = tuple[str, Mapping[str, Any], Mapping[str, Any]]  # name, parameters, what it promises


def suites(base: type[Conformance], choices: Iterable[Choice]) -> dict[str, type[Conformance]]:
    """Return a test class for each choice of a registered policy, by names that a test runner collects."""
    found: dict[str, type[Conformance]] = {}
    for name, parameters, promises in choices:
        label = "".join(part.title() for part in [name.replace("+", "Plus"), *map(str, parameters.values())])
        title = "Test" + "".join(letter for letter in label if letter.isalnum())
        ensure(title not in found, f"there are two of {title}")
        found[title] = type(title, (base,), {**promises, "policy": name, "parameters": parameters})
    return found
