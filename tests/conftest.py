"""The same examples on every run: a test that fails now and then teaches nobody."""

from __future__ import annotations

import pytest
from hypothesis import settings

# Files with few tests that take long, much of it waiting for processes. They go first: of two workers, none
# shall have nothing to do at the end.
FIRST = (
    "test_cluster_ray",
    "test_tune_command",
    "test_docs_tuning_ray",
    "test_reproduce_fluid",
    "test_tuning_ray",
    "test_docs_planning",
    "test_tuning_allocation",
    "test_tuning_crew",
    "test_tuning_objective",
    "test_docs_serving",
    "test_tuning_trainables",
    "test_cluster_local",
    "test_docs_tuning_index",
    "test_tuning_slots",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(FIRST)))


settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
