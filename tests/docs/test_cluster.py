"""The guide to a shared cluster is followed to the letter: files, commands, tables.

What commands answer is compared word by word, and number by number only in how many there are: policies get
better, and a guide need not be printed again for that.
"""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astrarium.cli.main import main
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.scenario import schema
from astrarium.cluster.workloads.themis.clusters import MACHINES
from tests.docs.pages import BLOCK, FILE_NAME, words
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "cluster" / "index.md"
TEXT = PAGE.read_text()
NUMBER = re.compile(r"-?\d[\d,.]*(h|min|s|%)?(?![\w/-])")


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # leave pytest's own handlers alone

    def said(command: str) -> str:
        program, *arguments = shlex.split(command)
        assert program == "astrarium"
        with pytest.raises(SystemExit) as ending:
            main(arguments)
        output = capsys.readouterr()
        assert not ending.value.code, output.err
        return output.out

    return said


def test_the_page_can_be_followed(answer: Any, tmp_path: Path) -> None:
    printed = ""
    for language, body in BLOCK.findall(TEXT):
        name = FILE_NAME.match(body)
        if name is not None:
            (tmp_path / name[1]).write_text(body)
        elif language == "sh":
            printed = answer(body)
        else:
            assert language == "text"
            missing = [
                line for line in words(body, NUMBER) if line not in words(printed, NUMBER) and line != "..."
            ]
            assert not missing, printed
    listed = re.findall(r"^\| `([\w./]+)` \|", TEXT.split("## Several policies")[0], re.MULTILINE)
    assert len(listed) == 8
    assert all((tmp_path / "first" / name).is_file() for name in listed)
    assert (tmp_path / "side-by-side" / "fifo" / "summary.json").is_file()


def test_the_first_file_is_the_example() -> None:
    shown = next(body for _, body in BLOCK.findall(TEXT) if body.startswith("# cluster.yaml"))
    example = (ROOT / "examples" / "cluster" / "cluster.yaml").read_text().splitlines()
    assert shown.splitlines()[1:] == [line for line in example if not line.startswith("#")]


def fields(kind: type[msgspec.Struct], place: str, *without: str) -> set[str]:
    names = {field.name for field in msgspec.structs.fields(kind)} - set(without)
    return {f"{place}.{name}" for name in names}


def test_every_field_is_in_the_table() -> None:
    section = TEXT.split("## All fields")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    listed = {name for cell in cells for name in re.findall(r"`([\w.\[\]]+)`", cell)}
    known = {"machines", "policy.name", "seed", "teams", "reservations", "sharing"}
    known |= fields(schema.MachineKind, "machines[]") | fields(schema.AppEntry, "apps[]")
    known |= fields(schema.PhaseJob, "apps[].phases[][]")
    known |= fields(schema.ThemisApps, "apps") | fields(schema.TraceApps, "apps")
    known |= fields(schema.SlowdownSection, "slowdowns", "models", "others")
    known |= fields(schema.ModelSlowdown, "slowdowns.models[]") | fields(schema.Unknown, "slowdowns.others")
    known |= fields(schema.Costs, "costs") | fields(schema.Change, "changes[]")
    assert listed == known


def test_every_policy_and_every_cluster_is_named() -> None:
    section = TEXT.split("## The policies")[1]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert sorted(re.findall(r"`([\w-]+)`", " ".join(cells))) == cluster_policies.names()
    assert all(f"`{name}`" in TEXT for name in MACHINES)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (PAGE.parent / target).exists(), target
