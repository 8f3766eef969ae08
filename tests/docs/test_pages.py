"""The pages for people are run: their code, their commands, and the names they list."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from astrarium.serving import contract
from astrarium.serving.ledger import Fate, Outcome
from astrarium.serving.policies import serving_policies
from astrarium.testing.serving import ServingPolicyConformance
from tests.docs.pages import BLOCK
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = ["architecture.md", "adding-a-policy.md", "astrarium.md", "sizes.md", "contract.md"]
SCREEN = 900  # words that fit on one, a picture among them
COMMAND_LINE = "from astrarium.cli.main import main; main()"


def blocks(page: str, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall((DOCS / page).read_text()) if kind == language]


def call(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader has who saved every named block of the page, and installed the package."""
    home = tmp_path_factory.mktemp("reader")
    for language in ("python", "yaml"):
        for body in blocks("adding-a-policy.md", language):
            name = re.match(r"# (\S+)\n", body)
            assert name is not None, f"a block without a file name:\n{body}"
            (home / name.group(1)).write_text(body)
    install_entry_points(home)
    return home


def install_entry_points(home: Path) -> None:
    """What installing leaves behind: a metadata folder that names the entry points."""
    metadata = home / "reader-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: reader\nVersion: 1.0\n")
    lines = []
    for block in blocks("adding-a-policy.md", "toml"):
        for group, points in tomllib.loads(block)["project"]["entry-points"].items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


def test_the_policy_of_the_page_runs(folder: Path) -> None:
    assert "oldest-first: " in call(folder, sys.executable, "run.py").stdout


@pytest.mark.thorough
def test_the_policy_of_the_page_passes_the_suite(folder: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    done = call(folder, sys.executable, "-m", "pytest", *options, "test_oldest_first.py")
    assert re.search(r"\d{2} passed", done.stdout), done.stdout
    assert "skipped" not in done.stdout  # it promises all there is to promise


def commands() -> list[str]:
    lines = [line for block in blocks("adding-a-policy.md", "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("astrarium ")]


@pytest.mark.parametrize("command", commands())
def test_the_commands_of_the_page_work_through_the_entry_point(folder: Path, command: str) -> None:
    done = call(folder, sys.executable, "-c", COMMAND_LINE, *command.split()[1:])
    assert "oldest-first" in done.stdout
    if "--json" in command:
        json.loads(done.stdout)


def test_the_page_names_the_group_of_the_registry() -> None:
    groups = [
        tomllib.loads(block)["project"]["entry-points"] for block in blocks("adding-a-policy.md", "toml")
    ]
    assert [list(group) for group in groups] == [[serving_policies.group]]


def test_the_page_lists_every_promise_with_its_default() -> None:
    listed = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", (DOCS / "adding-a-policy.md").read_text(), re.MULTILINE)
    promises = {
        name: str(value)
        for name, value in inspect.getmembers(ServingPolicyConformance)
        if isinstance(value, bool | int) and not name.startswith("_")
    }
    assert dict(listed) == promises


def table_after(heading: str, page: str) -> dict[str, str]:
    """First and second cell of the rows under a heading of a page."""
    section = (DOCS / page).read_text().split(f"## {heading}")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))


@pytest.mark.parametrize(
    ("heading", "union"),
    [("Events, in the past tense", contract.Event), ("Actions, in the imperative", contract.Action)],
)
def test_the_contract_lists_every_message_with_its_fields(heading: str, union: object) -> None:
    listed = table_after(heading, "contract.md")
    known = {kind.__name__: kind.__struct_fields__ for kind in union.__args__}  # type: ignore[attr-defined]
    assert listed.keys() == known.keys()
    for name, fields in known.items():
        assert re.findall(r"`(\w+)`", listed[name])[: len(fields)] == list(fields)


def test_the_contract_says_what_a_policy_hears_of_lengths() -> None:
    page = (DOCS / "contract.md").read_text()
    arrived = table_after("Events, in the past tense", "contract.md")["RequestArrived"]
    assert re.findall(r"`(\w+)`", arrived) == ["request", *contract.Request.__struct_fields__]
    fields = table_after("Requests of unequal length", "contract.md").keys()
    assert fields == set(contract.Lengths.__struct_fields__)
    for method in ("takes", "can_run"):
        assert f"| `{method}(requests)` |" in page
        assert callable(getattr(contract.ModelSpec, method))


def test_the_contract_lists_every_outcome_fate_and_reason() -> None:
    page = (DOCS / "contract.md").read_text()
    assert table_after("How a request lives and ends", "contract.md").keys() == {o.name for o in Outcome} - {
        "OPEN"
    }
    assert all(f"`{fate.name}`" in page for fate in Fate if fate is not Fate.RUNNING)
    reasons = [contract.EXPIRED, contract.SACRIFICED, contract.UNSERVED]
    assert all(f"`{reason}`" in page for reason in reasons)


def test_the_map_shows_every_package() -> None:
    house = ROOT / "src" / "astrarium"
    packages = {path.name for path in house.iterdir() if (path / "__init__.py").exists()}
    assert table_after("The packages", "architecture.md").keys() == packages


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", (DOCS / page).read_text())
    assert [target for target in targets if not (DOCS / target).exists()] == []


def test_the_map_fits_on_one_screen() -> None:
    """Words are counted: a line may have any number of them."""
    assert len((DOCS / "architecture.md").read_text().split()) <= SCREEN


def test_the_changelog_tags_every_entry() -> None:
    entries = re.findall(r"^- .*", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert entries
    assert all(re.match(r"- \[(NEW|FIX|BREAKING)\] ", entry) for entry in entries)
