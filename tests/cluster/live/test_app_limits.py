"""An app is bounded in every field before it is kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.live.arbiter import ANY
from astrarium.cluster.scenario.live_apps import live_apps
from astrarium.core.errors import InputError

APP = {"name": "a", "length": "1s", "command": "true"}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"name": "x" * (1 << 20)}, r"^app: expected an app of at most 131072 bytes"),
        ({"name": "x" * 201}, r"^app\.name: expected text of at most 200 bytes"),
        ({"name": "é" * 101}, r"^app\.name: expected text of at most 200 bytes"),
        ({"name": "a\nb"}, r"^app\.name: expected text that could name a file"),
        ({"name": "a\x1b[2J"}, r"^app\.name: expected text that could name a file"),
        ({"team": "x" * 201}, r"^app\.team: expected text of at most 200 bytes"),
        ({"team": "a\nb"}, r"^app\.team: expected text of at most 200 bytes, without line breaks"),
        ({"model": "x" * 201}, r"^app\.model: expected text of at most 200 bytes"),
        (
            {"length": None, "phases": [[{"length": "1s", "model": "\x1b[2J"}]]},
            r"^app\.phases\[0\]\[0\]\.model: expected text of at most 200 bytes",
        ),
        ({"command": "x" * 32_769}, r"^app\.command: expected at most 32768 bytes"),
        ({"command": ["x"] * 32_769}, r"^app: expected an app of at most|^app\.command"),
        ({"env": {"A": "x" * 65_536}}, r"^app\.env: expected at most 65536 bytes"),
        ({"directory": "x" * 4097}, r"^app\.directory: expected at most 4096 bytes"),
        ({"directory": "a\0b"}, r"^app\.directory: expected a path without a zero byte"),
        ({"command": "echo \ud800"}, r"^app: expected an app of at most .*surrogates"),
        ({"count": 101, "jobs": 100}, r"^app\.jobs: expected at most 10000 jobs.*got 10100"),
        ({"gpus": 100_000, "length": "100d"}, r"^app\.length: expected a length that takes less"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_app_is_bounded_where_it_is_read(more: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        live_apps({**APP, **more}, ANY, Path())


def test_an_app_within_the_limits_is_read() -> None:
    longest = {"name": "x" * 200, "command": f"echo {'y' * 30_000}", "count": 100, "jobs": 100}
    assert len(live_apps({**APP, **longest}, ANY, Path())) == 100
    assert os.path.isabs(live_apps(APP, ANY, Path())[0][1].directory)


def test_no_link_is_followed_for_a_user(tmp_path: Path) -> None:
    """Root once told where a link led that its user could not read."""
    (tmp_path / "private").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "private")
    task = live_apps({**APP, "directory": "link/../x"}, ANY, tmp_path)[0][1]
    assert task.directory == str(tmp_path / "link/../x")
