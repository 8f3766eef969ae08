"""The guides for serving are followed to the letter: files saved, servers started, answers compared.

A block that begins with `# NAME` is a file. `sh` blocks are run in order; `astrarium serve` starts a server
that lives until the next one. What a block of another kind shows, line by line, the commands before it must
have said.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
import yaml

from astrarium.server.contract import Kind
from astrarium.server.control.plan import plan
from astrarium.server.service import LiveService
from astrarium.serving.live.workers import LocalWorkers
from astrarium.serving.scenario import load
from astrarium.serving.scenario.server_options import ServerOptions
from tests.docs.pages import BLOCK
from tests.support.paths import ROOT
from tests.support.server.live_server import PATIENCE, Server, serving

pytestmark = pytest.mark.long

GUIDES = ROOT / "docs" / "serving"
EXAMPLE = ROOT / "examples" / "serve.yaml"
PAGES = sorted(path.name for path in GUIDES.glob("*.md"))
FILE_NAME = re.compile(r"# (\w+\.(?:py|yaml))\n")
SHOWN = ("http", "json", "text")
# The example's objectives are those of a GPU's machine; a busy one may miss them now and then.
MISSED = "the deadline can no longer be met"
ATTEMPTS = 20
EXAMPLE_OF_LOGS = '{"time":'  # a line of a log, which no command prints


class Reader:
    """Somebody who follows a page in a folder of their own, with the repository's examples at hand."""

    def __init__(self, folder: Path, servers: ExitStack) -> None:
        self.folder = folder
        self._servers = servers
        self.server: Server | None = None
        self.said = self._last = ""
        (folder / "examples").symlink_to(ROOT / "examples")
        (folder / "bin").mkdir()
        for name, module in (("astrarium", "-m astrarium "), ("python", "")):
            script = folder / "bin" / name
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module}"$@"\n')
            script.chmod(0o755)

    def save(self, name: str, body: str) -> None:
        (self.folder / name).write_text(self._with_ports(body))

    def run(self, block: str) -> None:
        block = block.replace("make serve", "astrarium serve examples/serve.yaml")
        if block.startswith("astrarium serve "):
            self._serve(shlex.split(block)[2:])
            return
        if block.startswith("astrarium replay "):
            self._stop()
        self._last = self._with_ports(block)
        self.said = self._shell(self._last)

    def check(self, shown: str) -> None:
        lines = [line for line in shown.splitlines() if line]
        for _ in range(ATTEMPTS):
            if all(_shape(line) in _shape(self.said) for line in lines) or MISSED not in self.said:
                break
            self.said = self._shell(self._last)
        for line in lines:
            assert _shape(line) in _shape(self.said), f"not said: {line}\nbut:\n{self.said}"

    def _serve(self, options: list[str]) -> None:
        self._stop()
        self.server = self._servers.enter_context(serving(self.folder / options[0], *options[1:]))
        self.said = self.server.said

    def _stop(self) -> None:
        if self.server is not None:
            assert self.server.stop() == 0
        self.server = None

    def _with_ports(self, text: str) -> str:
        if self.server is None:
            return text
        return text.replace("127.0.0.1:8000", self.server.http).replace("127.0.0.1:8001", self.server.grpc)

    def _shell(self, commands: str) -> str:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "COLUMNS": "200"}
        shell = ["bash", "-euo", "pipefail", "-c", commands]
        done = subprocess.run(
            shell, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        return done.stdout


def _shape(text: str) -> str:
    """Without what differs from run to run: numbers in prose, and spaces. Statuses and whole data stay."""
    text = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text)
    text = re.sub(r"\d+\.\d+(e-\d+)?|(?<=[a-z]=)\d+|\d+(?= steps)", "N", text)
    return re.sub(r"\s+", " ", text)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as servers:
        yield Reader(tmp_path, servers)


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES)
def test_the_page_can_be_followed(page: str, reader: Reader) -> None:
    for language, body in BLOCK.findall((GUIDES / page).read_text()):
        name = FILE_NAME.match(body)
        if name is not None:
            reader.save(name[1], body)
        elif language == "sh":
            reader.run(body)
        elif not body.startswith(EXAMPLE_OF_LOGS):
            assert language in SHOWN, f"a {language} block that is neither a file nor an answer:\n{body}"
            reader.check(body)


def test_the_table_of_statuses_is_the_servers_own() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", (GUIDES / "clients.md").read_text(), re.MULTILINE)
    known = {(kind.http, kind.grpc) for kind in Kind}
    assert {(int(http), grpc) for http, grpc in rows} == known | {(200, "OK")}


def test_every_status_is_shown_as_it_comes() -> None:
    shown = re.findall(r"^HTTP/1.1 (\d+)", (GUIDES / "clients.md").read_text(), re.MULTILINE)
    assert {int(status) for status in shown} == {kind.http for kind in Kind}


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """The names of all metrics of a service."""

    async def text() -> bytes:
        return LiveService(plan(load(EXAMPLE, serving=True)), LocalWorkers).metrics()

    return set(re.findall(r"^# TYPE (\w+) ", asyncio.run(text()).decode(), re.MULTILINE))


def test_every_metric_is_explained(exported: set[str]) -> None:
    listed = re.findall(r"^\| `(astrarium_\w+)` \|", (GUIDES / "operating.md").read_text(), re.MULTILINE)
    assert set(listed) == exported
    assert len(listed) == len(exported)


def test_alerts_watch_metrics_that_exist(exported: set[str]) -> None:
    blocks = BLOCK.findall((GUIDES / "operating.md").read_text())
    (text,) = [body for _, body in blocks if body.startswith("# alerts.yaml")]
    (group,) = yaml.safe_load(text)["groups"]
    for rule in group["rules"]:
        named = set(re.findall(r"astrarium_\w+", rule["expr"]))
        assert named, rule
        assert named <= exported, rule


def test_every_option_of_the_server_is_in_the_table() -> None:
    section = (GUIDES / "operating.md").read_text().split("## Options")[1].split("\n## ")[0]
    rows = "".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE))
    named = re.findall(r"`(\w+)`", rows)
    assert sorted(named) == sorted(field.name for field in msgspec.structs.fields(ServerOptions))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^):]+)\)", (GUIDES / page).read_text()):
        name, _, heading = target.partition("#")
        path = (GUIDES / name) if name else GUIDES / page
        assert path.exists(), target
        assert not heading or heading in _anchors(path), target


def _anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_first_guide_serves_the_example_that_make_serves() -> None:
    assert "$(BIN)/astrarium serve examples/serve.yaml" in (ROOT / "Makefile").read_text()
    assert load(EXAMPLE, serving=True).server == ServerOptions()


@pytest.mark.parametrize("name", ["texts.yaml", "ask.py"])
def test_the_guide_for_texts_shows_its_example(name: str) -> None:
    bodies = [body for _, body in BLOCK.findall((GUIDES / "texts.md").read_text())]
    [shown] = [body for body in bodies if body.startswith(f"# {name}\n")]
    assert shown == f"# {name}\n{(ROOT / 'examples' / 'texts' / name).read_text()}"


def test_the_readme_asks_what_the_first_guide_asks() -> None:
    commands_of_readme = [
        body for _, body in BLOCK.findall((ROOT / "README.md").read_text()) if body.startswith("curl ")
    ]
    assert len(commands_of_readme) == 1
    assert commands_of_readme[0] in (GUIDES / "first-model.md").read_text()
