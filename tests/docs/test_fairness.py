"""What docs/cluster/fairness.md says can be run, and the tests that it names are there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "cluster" / "fairness.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.thorough
@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("astrarium ")])
def test_every_reproduction_runs_in_its_quick_form(command: str) -> None:
    _, *arguments = shlex.split(command)
    small = [sys.executable, "-m", "astrarium", *arguments, "--quick", "--no-folder", "--json"]
    done = subprocess.run(small, cwd=ROOT, capture_output=True, text=True, check=True)
    names = [argument for argument in arguments if argument.startswith("themis/")]
    assert [reproduction["name"] for reproduction in json.loads(done.stdout)["reproductions"]] == names


@pytest.mark.thorough
@pytest.mark.parametrize("command", [command for command in COMMANDS if not command.startswith("astrarium ")])
def test_every_command_runs_on_a_few_apps(command: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "python"
    small = [sys.executable, *arguments, "--apps", "5", "--seeds", "1", "-p", "themis", "-p", "tiresias"]
    done = subprocess.run(small, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("  seed")]
    assert lines[0].split()[:3] == ["policy", "worst", "share"]
    assert [line.split()[0] for line in lines[-2:]] == ["themis", "tiresias"]


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 4


def test_the_tests_that_it_names_are_there() -> None:
    named = re.findall(r"`(test_\w+)`\s+\(`tests/([\w/]+\.py)`\)", PAGE)
    assert len(named) >= 3
    for name, file in named:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text()
