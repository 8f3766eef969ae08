"""This MkDocs hook makes links that work in the repository work in the site, too.

The site holds each file outside docs/ that its navigation or one of its pages names, such as README.md, the
changelog and examples. Such a file keeps its path, and docs/ itself is the top of the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)\s]*)?\)")
# A second word after the language (`sh gpu`) tells our tests what a block needs; MkDocs knows none.
FENCE = re.compile(r"^```(\w+) .*$", re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that are named, first those of the navigation: they may name others."""
    for name in _names(config.nav):
        _add(name, files, config)
    for page in list(files.documentation_pages()):
        for link in LINK.finditer(page.content_string):
            _add(_in_site(_target(page, link[1])), files, config)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page with its links as the site needs them."""
    folder = posixpath.dirname(page.file.src_uri)

    def led(link: re.Match[str]) -> str:
        target = _target(page.file, link[1])
        if not (ROOT / target).is_file():
            return link[0]  # MkDocs warns of it, and a warning is an error
        return f"]({posixpath.relpath(_in_site(target), folder)}{link[2] or ''})"

    return LINK.sub(led, FENCE.sub(r"```\1", markdown))


def _names(part: Any) -> Iterator[str]:
    """Yield the pages that a part of the navigation names."""
    if isinstance(part, str):
        yield part
    else:
        for each in part.values() if isinstance(part, dict) else part:
            yield from _names(each)


def _add(name: str, files: Files, config: MkDocsConfig) -> None:
    if (ROOT / name).is_file() and files.get_file_from_path(name) is None:
        files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))


def _target(page: File, link: str) -> str:
    """Return where a link of a page leads, as a path in the repository."""
    folder = Path(str(page.abs_src_path)).relative_to(ROOT).parent.as_posix()
    return posixpath.normpath(posixpath.join(folder, link))


def _in_site(target: str) -> str:
    return target.removeprefix("docs/")
