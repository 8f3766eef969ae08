"""Profiles stand in files of their own, and are put into a scenario's text without changing the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astrarium.cli.serving.profile.scenario_text import with_field
from astrarium.core.errors import InputError
from astrarium.core.quantities import MILLISECOND as MS
from astrarium.serving.scenario import build
from tests.serving.scenario.served import load, written


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return written(tmp_path)


def test_a_profile_may_stand_in_a_file(home: Path) -> None:
    (home / "real.profile.yaml").write_text("# measured\ntable: {1: 3ms, 4: 6ms}\n")
    scenario = load(home, "models.real.profile=real.profile.yaml")
    assert build.setup(scenario).models[1].latency[:5] == (0, 3 * MS, 4 * MS, 5 * MS, 6 * MS)
    (home / "real.profile.yaml").write_text("other.yaml")
    with pytest.raises(InputError, match="not with another file's name"):
        load(home, "models.real.profile=real.profile.yaml")


EDITS: list[tuple[str, str]] = [
    ("a: {profile: zoo:A100/VGG16, slo: 5ms}  # mine", "a: {profile: NEW, slo: 5ms}  # mine"),
    ("a: {slo: 5ms}", "a: {profile: NEW, slo: 5ms}"),
    ("a:\n    slo: 5ms # soon\n    memory: 1B", "a:\n    profile: NEW\n    slo: 5ms # soon\n    memory: 1B"),
    (
        "a:\n    profile:\n      table: [1ms,\n        2ms]\n    # why\n    slo: 5ms",
        "a:\n    profile:\n      NEW\n    # why\n    slo: 5ms",
    ),
    (
        "a:\n    profile:\n      alpha: 1ms\n      beta: 2ms # slow\n\n    slo: 5ms",
        "a:\n    profile:\n      NEW # slow\n\n    slo: 5ms",
    ),
    ("a:\n    slo: 5ms\n    profile: zoo:A100/VGG16", "a:\n    slo: 5ms\n    profile: NEW"),
]


@pytest.mark.parametrize(("before", "after"), EDITS)
def test_a_profile_is_put_into_a_file_and_nothing_else_changes(before: str, after: str) -> None:
    new = "{table: {1: 3ms, 2: 4ms}}"
    frame = "# a scenario\nmodels:\n  {}\n  b: {{profile: zoo:A100/VGG16}} # theirs\nseed: 1\n"
    edited = with_field(frame.format(before), "a", "profile", new, "file")
    assert edited == frame.format(after).replace("NEW", new)


@pytest.mark.parametrize(
    "text",
    [
        "models: zoo:A100",
        "models: {b: {slo: 1ms}}",
        "models: {a: zoo:A100/VGG16}",
        "models: {b: {profile: &p {table: [1ms]}}, a: {profile: *p}}",
        "models: {b: &b {profile: {table: [1ms]}}, a: *b}",
    ],
)
def test_what_cannot_be_edited_safely_is_left_to_the_person(text: str) -> None:
    with pytest.raises(InputError, match="by hand"):
        with_field(text, "a", "profile", "{table: [3ms]}", "file")


def test_the_hooks_of_a_model_may_be_copied(home: Path) -> None:
    scenario = load(home, "models.real.copies=2")
    copies: list[Any] = [scenario.models[f"real-{place}"] for place in range(2)]
    assert copies[0] == copies[1]
