"""The guide to tuning is followed to the letter: files, commands, tables."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astrarium.tuning.live.training.workers import Emulated
from astrarium.tuning.policies import tuning_policies
from astrarium.tuning.scenario import schema
from astrarium.tuning.scenario.read import SECTIONS
from astrarium.tuning.scenario.tasks import TASKS
from tests.docs.pages import BLOCK, words
from tests.support.paths import ROOT

pytestmark = [pytest.mark.long, pytest.mark.thorough]
pytest_plugins = ("tests.support.cli_fixtures",)

PAGE = ROOT / "docs" / "tuning" / "index.md"
TEXT = PAGE.read_text()
FILE_NAME = re.compile(r"# (\w+\.\w+)\n")
NUMBER = re.compile(r"-?\d[\d,.]*(%)?(?![\w/-])")


def test_the_page_can_be_followed(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = ""
    for language, body in BLOCK.findall(TEXT):
        name = FILE_NAME.match(body)
        if name is not None:
            (tmp_path / name[1]).write_text(body)
        elif body.startswith("python "):
            command = [sys.executable, *shlex.split(body)[1:]]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        elif language == "sh":
            answer = call(*shlex.split(body)[1:])
            assert answer.code == 0, answer.err
            printed = answer.out
        else:
            assert language == "text"
            assert not [line for line in words(body, NUMBER) if line not in words(printed, NUMBER)], printed
    listed = dict.fromkeys(re.findall(r"^\| `([\w./]+)` \|", TEXT.split("## Live")[0], re.MULTILINE))
    assert len(listed) == 13
    for folder, prefix in ((tmp_path / "first", "fifo"), (tmp_path / "live", "")):
        assert all((folder / name).exists() or (folder / prefix / name).exists() for name in listed)


def fields(kind: type[msgspec.Struct], place: str) -> set[str]:
    return {f"{place}.{field.name}" for field in msgspec.structs.fields(kind)}


def test_every_field_is_in_the_table() -> None:
    section = TEXT.split("## All fields")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    listed = {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}
    known = set(SECTIONS) - {"search", "policy", "costs", "emulated", "live"} | {"search.name", "policy.name"}
    known |= fields(schema.CostsSection, "costs") | fields(Emulated, "emulated")
    known |= fields(schema.LiveSection, "live") | fields(schema.TaskEntry, "task") - {"task.knobs"}
    known |= fields(schema.KnobEntry, "task.knobs.NAME")
    assert listed == known


def test_every_policy_and_every_task_is_named() -> None:
    assert all(f"`{name}`" in TEXT for name in [*tuning_policies.names(), *TASKS])


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (PAGE.parent / target).exists(), target
