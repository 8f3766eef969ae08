"""The page about planning is followed to the letter: files, commands, answers, tables."""

from __future__ import annotations

import json
import re
import shlex
import signal
from pathlib import Path

import msgspec
import pytest

from astrarium.cli.main import main
from astrarium.placement.plan_file import PlanEntry, ReplicaEntry
from astrarium.placement.policies import placement_policies
from tests.docs.pages import BLOCK, FILE_NAME, plain, shown
from tests.support.paths import ROOT

pytestmark = [pytest.mark.long, pytest.mark.thorough]

PAGE = ROOT / "docs" / "planning.md"
TEXT = PAGE.read_text()


def said(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """In this process: to start Python for every command would take longer than most of them."""
    for line in command.replace("\\\n", " ").splitlines():
        verb, _, file = line.partition(" > ")
        with pytest.raises(SystemExit) as ending:
            main(shlex.split(verb)[1:])
        output = capsys.readouterr()
        assert not ending.value.code, f"{command}\n{output.out}{output.err}"
        if file:
            Path(file).write_text(output.out)
    return output.out + output.err


def test_the_page_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # leave pytest's own handlers alone
    answer = ""
    for language, body in BLOCK.findall(TEXT):
        name = FILE_NAME.match(body)
        if name is not None:
            Path(name[1]).write_text(body)
        elif language == "sh":
            answer = said(body, capsys)
        else:
            assert language == "text"
            missing = [line for line in plain(body) if not shown(line, plain(answer))]
            assert not missing, f"{missing}\n{answer}"
    pictures = re.findall(r"\]\(images/(\w+\.png)\)", TEXT)
    assert len(pictures) == 3
    assert all(Path(name).is_file() for name in pictures)  # drawn by the commands of the page
    listed = set(re.findall(r"`(\w+)`", TEXT.split("`--json` prints one object:")[1].split("\n\n")[0]))
    content = json.loads(Path("answer.json").read_text())
    assert listed <= content.keys() | content["attainment"]["overall"].keys()


def test_the_first_file_is_the_example() -> None:
    shown = next(body for _, body in BLOCK.findall(TEXT) if body.startswith("# plan.yaml"))
    example = (ROOT / "examples" / "planning" / "plan.yaml").read_text().splitlines()
    assert shown.splitlines()[1:] == [line for line in example if not line.startswith("#")]


def test_every_policy_is_in_the_table() -> None:
    rows = re.findall(r"^\| (`[^|]*`) \|", TEXT.split("| policy |")[1].split("\n\n")[0], re.MULTILINE)
    assert sorted(re.findall(r"`([^`]+)`", " ".join(rows))) == placement_policies.names()


def test_every_field_of_a_plan_is_in_the_table() -> None:
    listed = set(re.findall(r"^\| `([\w.\[\]]+)` \|", TEXT.split("## Plan files")[1], re.MULTILINE))
    known = {field.name for field in msgspec.structs.fields(PlanEntry)} - {"replicas"}
    assert listed == known | {f"replicas[].{field.name}" for field in msgspec.structs.fields(ReplicaEntry)}


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (PAGE.parent / target).exists(), target
