"""The guides to a live cluster are followed to the letter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astrarium.cluster.scenario.live import LiveSection
from astrarium.cluster.scenario.tasks import TaskEntry
from tests.docs.pages import BLOCK
from tests.support.cluster.jobs import end_keepers
from tests.support.paths import ROOT

pytest_plugins = ("tests.support.cli_fixtures",)

NAMES = {"operators": "live", "owners": "apps", "seeing": "seeing", "hosts": "hosts", "access": "access"}
LIVE, APPS, *OTHERS = (ROOT / "docs" / "cluster" / f"{name}.md" for name in NAMES.values())
PAGES = pytest.mark.parametrize("page", [LIVE, APPS, *OTHERS], ids=list(NAMES))
FILE_NAME = re.compile(r"# (\w+\.\w+)\n")
NUMBER = re.compile(r"\d[\d.]*%?")


def followed(page: Path, place: Path) -> str:
    """All commands of a page in one shell; what they print."""
    commands = ["set -e"]
    for language, body in BLOCK.findall(page.read_text()):
        name = FILE_NAME.match(body)
        if name is not None:
            (place / name[1]).write_text(body)
        elif language == "sh":
            commands.append(body)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "\n".join(commands)], cwd=place, env={**os.environ, "PATH": path}, timeout=240,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.thorough
@PAGES
def test_the_page_can_be_followed(page: Path, tmp_path: Path) -> None:
    try:
        output = words(followed(page, tmp_path))
    finally:
        end_keepers(tmp_path)
    for language, body in BLOCK.findall(page.read_text()):
        if language == "text" and not body.startswith("astrarium"):
            assert not [line for line in words(body) if line not in output]
    if page == APPS:
        accepted = [line.removesuffix(": accepted") for line in output if line.endswith(": accepted")]
        assert accepted[:5] == ["mine", "other", "sweep", "mine", "other"]
        assert accepted[5:].count("#:#") == 2  # a GPU, drained and used again


def words(text: str) -> list[str]:
    """Lines with something in them, spaces as one, numbers as such."""
    lines = (" ".join(line.split()) for line in text.splitlines() if line.strip())
    return [NUMBER.sub("#", line) for line in lines]


def test_every_field_is_in_the_table() -> None:
    section = LIVE.read_text().split("## All fields")[1].split("\n## ")[0]
    listed = set(re.findall(r"^\| `([\w.\[\]]+)` \|", section, re.MULTILINE))
    known = {f"live.{field.name}" for field in msgspec.structs.fields(LiveSection)}
    assert listed == known | {f"apps[].{field.name}" for field in msgspec.structs.fields(TaskEntry)}


@PAGES
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https:)([^)#:]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_example_can_be_simulated_too(call: Any) -> None:
    file = ROOT / "examples" / "cluster" / "live.yaml"
    assert call("simulate", str(file), "--no-folder", "--json").json["outcomes"] == {"finished": 4}
