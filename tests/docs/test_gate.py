"""The guide to a shared GPU: what can be run here is run; the command line takes the rest."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from astrarium.cli.gate.policy import KERNEL_POLICIES
from astrarium.cli.gate.top import COLUMNS, WORDS
from astrarium.cli.main import gate as app
from astrarium.gate.board_settings import settings_table
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "device" / "gate.md"
TEXT = PAGE.read_text()
BLOCK = re.compile(r"^```([\w ]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(TEXT)


def lines(kind: str) -> list[str]:
    return [line for language, body in BLOCKS if language == kind for line in body.splitlines()]


def table_under(header: str) -> list[str]:
    """The first cells of the table that begins with this header."""
    rows = TEXT.split(f"| {header} |")[1].split("\n\n")[0]
    return re.findall(r"^\| (`.*?`) \|", rows, re.MULTILINE)


def names(cells: list[str]) -> list[str]:
    return [name for cell in cells for name in re.findall(r"`(.*?)`", cell)]


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert {kind for kind, _ in BLOCKS} == {"python", "sh", "sh gpu", "text"}


@pytest.mark.parametrize("command", lines("sh gpu"))
def test_the_command_line_takes_what_needs_a_gpu(command: str) -> None:
    program, level, verb, *arguments = shlex.split(command)
    assert (program, level) == ("astrarium", "gate")
    group = typer.main.get_command(app)
    known = group.commands[verb]  # type: ignore[attr-defined]
    with known.make_context(verb, arguments) as context:
        assert context.command is known


@pytest.mark.parametrize("command", lines("sh"))
def test_what_needs_no_gpu_runs(command: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "astrarium"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m astrarium "$@"\n')
    script.chmod(0o755)
    (tmp_path / "libcuda.so.1").touch()
    nothing = {"ASTRARIUM_CUDA_DRIVER": str(tmp_path / "libcuda.so.1")}  # also where there is a GPU
    environment = {**os.environ, **nothing, "PATH": f"{script.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = [body for (before, _), (_, body) in pairwise(BLOCKS) if before == "sh"]
    assert done.stdout in shown


def test_programs_of_the_page_are_programs() -> None:
    for kind, body in BLOCKS:
        if kind == "python":
            compile(body, "block", "exec")
    files = set(re.findall(r"^# (\w+\.py)$", TEXT, re.MULTILINE))
    used = set(re.findall(r"python (\w+\.py)", TEXT)) - {"both.py"}  # the reader's own
    assert files == used == {"serve.py", "train.py"}


def test_every_column_policy_and_setting_is_explained() -> None:
    assert names(table_under("column")) == list(COLUMNS)
    assert sorted(names(table_under("policy"))) == sorted(KERNEL_POLICIES)
    assert sorted(names(table_under("setting"))) == sorted(settings_table())
    assert all(f"`{word}`" in TEXT for word in WORDS.values())


def test_settings_belong_to_whom_the_page_says() -> None:
    rows = re.findall(r"^\| (`.*?`) \| ([\w-]+) \|", TEXT.split("| setting |")[1], re.MULTILINE)
    for cell, owner in rows:
        for name in names([cell]):
            prefix = settings_table()[name].about.split()[0].removesuffix(":")
            assert owner == (prefix if prefix in KERNEL_POLICIES else "all"), name


def test_messages_of_the_page_are_ours() -> None:
    """What people search the page for must be what they read."""
    root = PAGE.parent.parent.parent
    places = [root / "src" / "astrarium" / "gate", root / "native" / "gate"]
    sources = [path for place in places for path in place.rglob("*") if path.suffix in (".py", ".c")]
    sources_text = "".join(path.read_text() for path in sources)
    for message in (
        "no board of this version", "the GPU cannot write to shared memory", "this installation has no gate",
        "no CUDA driver",
    ):  # fmt: skip
        assert f"| `{message}` |" in TEXT
        assert message in sources_text


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (PAGE.parent / target).exists(), target
    titles = re.findall(r"^## (.*)", TEXT, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= anchors
