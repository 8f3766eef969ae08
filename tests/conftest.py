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


# Tests that take long and have shorter ones beside them: `make test-thorough` runs them.
THOROUGH = {
    "test_tuning_allocation": ("in_ray_tunes_own_loop",),  # so does the guide
    "test_native_orloj": ("in_any_world",),
    "test_reproduce_tuning": ("findings", "faster", "brackets", "draw"),
    "test_reproduce_fluid": (
        "figure3_7",
        "figure3_10",
        "figure3_11",
        "figure3_13",
        "synchronous_searches",
        "as_printed_pbt",
        "overheads",
    ),
    "test_reproduce_themis": ("figure14", "figure15", "figure18", "figure19"),
    "test_reproduce_elvinger": ("figure6_1]", "figure6_10", "figure6_15", "printed_placements"),
    "test_reproduce_orion": ("figure10", "figure13", "training_beside_training"),
    "test_cluster_ray": ("every_job_ends",),
    "test_cluster_local": ("again_and_again", "ctrl_c"),
    "test_express": ("after_an_accident",),
    "test_gpu_pairs": ("a_second_one_has_nothing",),
    "test_lanes_benchmark": ("runs_to_the_end",),
    "test_goodput": ("processes_find_the_same",),
    "test_dynamic_line": ("unknown_and_drifting",),
    "test_startup": ("goodput",),  # two processes that compute
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(word in item.name for word in THOROUGH.get(item.path.stem, ())):
            item.add_marker(pytest.mark.thorough)
    place = {name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(FIRST)))


settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
