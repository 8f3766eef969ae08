"""Links of all pages lead somewhere, in the repository and in the site; the site has all pages and builds."""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT

DOCS = ROOT / "docs"
THEME = ROOT / "docs" / "theme"
OUTSIDE = [
    ROOT / name
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/README.md")
]
READ = sorted(path for path in DOCS.rglob("*.md") if THEME not in path.parents)
READ += [path for path in OUTSIDE if path.exists()]
PAGES = READ + sorted((ROOT / "examples").rglob("*.md"))

FENCED = re.compile(r"^(`{3,}).*?^\1 *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6} +(.*?) *$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"`((?:src|tests|native|docs|examples|benchmarks|papers)/[\w./-]+)")
ELSEWHERE = re.compile(r"[a-z]+:")


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page has both on GitHub and in the site."""
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(prose(page))]
    return {slug_of_github(title) for title in titles} & {slug_of_mkdocs(title) for title in titles}


def slug_of_github(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def slug_of_mkdocs(title: str) -> str:
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def wrong_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(CODE.sub("", prose(page))):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if ELSEWHERE.match(link):
            continue
        if not target.is_file():
            yield f"{link}: there is no such file"
        elif anchor and anchor not in anchors(target):
            yield f"{link}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert list(wrong_links(page)) == []


def test_a_wrong_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One / two\n[a](other.md) [b](#three) [c](#one-two) [d](#one--two) `[e](f)` [g](page.md)\n"
    )
    assert [wrong.split(":")[0] for wrong in wrong_links(page)] == [
        "other.md",
        "#three",
        "#one-two",
        "#one--two",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    named = (
        NAMED.findall(prose(page)) if page.name != "CHANGELOG.md" else []
    )  # it tells of files as they were
    assert [name for name in named if not (ROOT / name).exists()] == []


def names(part: Any) -> list[str]:
    """List the pages that a part of the navigation names."""
    if isinstance(part, str):
        return [part]
    return [name for inner in (part.values() if isinstance(part, dict) else part) for name in names(inner)]


def test_every_page_is_in_the_navigation_once() -> None:
    listed = names(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(listed) == sorted(str(path.relative_to(ROOT)).removeprefix("docs/") for path in READ)


@pytest.mark.thorough
def test_the_site_builds_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    assert len(pages) == len(READ) + 1  # the page for addresses that lead nowhere
    for name, text in pages.items():
        assert not re.findall(r"<(?:script|img|iframe)[^>]* src=\"?\w*:?//", text), name
        assert not re.findall(r"<link rel=\"?(?:stylesheet|preconnect)[^>]* href=\"?\w*:?//", text), name
        assert "```" not in text, f"{name}: a block that was not understood"
        assert ('mermaid.tiny.js"' in text) == ('<pre class="mermaid">' in text), name
