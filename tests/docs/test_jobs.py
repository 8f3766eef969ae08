"""The page about many jobs on one GPU is followed to the letter: files, commands, tables."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from astrarium.cli.main import BAD_INPUT
from astrarium.device.policies import iteration_policies
from astrarium.device.scenario.schema import Gpu, JobEntry, Mix
from tests.docs.pages import BLOCK, FILE_NAME, plain, shown
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "device" / "jobs.md"
TEXT = PAGE.read_text()


def said(command: str, folder: Path) -> str:
    shell = ["bash", "-euo", "pipefail", "-c", command]
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    explained = done.returncode == BAD_INPUT and done.stderr.startswith("error: ")
    assert done.returncode == 0 or explained, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "astrarium"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m astrarium "$@"\n')
    script.chmod(0o755)
    return tmp_path


@pytest.mark.thorough
def test_the_page_can_be_followed(folder: Path) -> None:
    answer = ""
    for language, body in BLOCK.findall(TEXT):
        name = FILE_NAME.match(body)
        if name is not None:
            (folder / name[1]).write_text(body)
        elif language == "sh":
            answer = said(body, folder)
        else:
            assert language == "text"
            missing = [line for line in plain(body) if not shown(line, plain(answer))]
            assert not missing, answer
    assert (folder / "side-by-side" / "plots" / "turns.png").is_file()
    listed = re.findall(r"^\| `([\w./]+)` \|", TEXT.split("## A hundred jobs")[0], re.MULTILINE)
    assert all((folder / "first" / name).is_file() for name in listed)
    assert len(listed) == 5


def test_the_first_file_is_the_example() -> None:
    shown = next(body for _, body in BLOCK.findall(TEXT) if body.startswith("# jobs.yaml"))
    example = (ROOT / "examples" / "jobs.yaml").read_text()
    assert shown.splitlines()[1:] == example.splitlines()[1:]


def test_every_field_is_in_the_table() -> None:
    listed = set(re.findall(r"^\| `([\w.\[\]]+)` \|", TEXT.split("## All fields")[1], re.MULTILINE))
    known = {f"gpu.{field.name}" for field in msgspec.structs.fields(Gpu)}
    known |= {f"jobs[].{field.name}" for field in msgspec.structs.fields(JobEntry)}
    known |= {f"jobs.{field.name}" for field in msgspec.structs.fields(Mix)}
    assert listed == known | {"policy.name", "seed"}


def test_every_policy_is_in_the_table() -> None:
    section = TEXT.split("## The policies")[1].split("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == iteration_policies.names()


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (PAGE.parent / target).exists(), target
