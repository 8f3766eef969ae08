"""The same examples on every run: a test that fails now and then teaches nobody."""

from __future__ import annotations

import pytest
from hypothesis import settings


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort long files first: of two workers, none shall have nothing to do at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
