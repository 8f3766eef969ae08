"""The page of commands has all of them, and the command line takes each of its examples."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from astrarium.cli.main import app
from astrarium.levels import SECTIONS, level
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "commands.md").read_text()
LISTED = re.findall(r"^\| `([\w ]+)` \| .* \| `(astrarium [^`]+)` \|$", PAGE, re.MULTILINE)


def leaves(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command that can be called, by its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{before}{name} ")
        else:
            yield before + name, command


COMMANDS = dict(leaves(typer.main.get_command(app)))


def test_every_command_is_listed_once() -> None:
    assert sorted(name for name, _ in LISTED) == sorted(COMMANDS)


@pytest.mark.parametrize(("name", "example"), LISTED, ids=[name for name, _ in LISTED])
def test_the_command_line_takes_the_example(name: str, example: str) -> None:
    words = shlex.split(example)
    verb = name.split()
    assert words[: 1 + len(verb)] == ["astrarium", *verb]
    arguments = words[1 + len(verb) :]
    with COMMANDS[name].make_context(name, arguments) as context:
        assert context.command is COMMANDS[name]
    assert all((ROOT / word).exists() for word in arguments if word.startswith("examples/"))


def test_every_level_is_told_by_its_sections() -> None:
    for name, sections in SECTIONS.items():
        cell = " or ".join(f"`{section}`" for section in sections)
        assert f"| {cell} | {level(name).subject} ({name}) |" in PAGE
