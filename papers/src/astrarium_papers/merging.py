"""A few reproductions run again, in the page of all of them:

    astrarium reproduce themis/figure9 --no-folder --markdown again.md
    python -m astrarium_papers.merging docs/reproductions.md again.md

Sections and lines of the overview take the place of those with the same name, or come in order. What is said
before them is that of the newest page, but for the command, which stays that of all.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from astrarium_papers.registry import by_number

_LINE = re.compile(r"^\| `(?P<name>[^`]+)` \|.*$", re.MULTILINE)
_COMMAND = re.compile(r"^    astrarium reproduce .*$", re.MULTILINE)


def merged(page: str, again: str) -> str:
    old = _sections(page)
    new = _sections(again)
    head = _COMMAND.sub(lambda _: _command(old.pop("")), new.pop(""), count=1)
    rows = _overview(page) | _overview(again)
    before = head[: _LINE.search(head).start()]  # type: ignore[union-attr]
    after = head[_ends(head) :]
    table = "\n".join(rows[name] for name in sorted(rows, key=by_number))
    both = old | new
    return before + table + after + "".join(both[name] for name in sorted(both, key=by_number))


def _sections(page: str) -> dict[str, str]:
    """Return sections by name, each from its heading on; what comes before all has no name."""
    head, *parts = re.split(r"(?m)^(?=## )", page)
    named = {part.removeprefix("## ").split(":")[0]: part.rstrip() + "\n" for part in parts}
    return {"": head.rstrip() + "\n", **{name: "\n" + part for name, part in named.items()}}


def _overview(page: str) -> dict[str, str]:
    head = re.split(r"(?m)^## ", page)[0]
    return {match["name"]: match[0] for match in _LINE.finditer(head)}


def _ends(head: str) -> int:
    return max(match.end() for match in _LINE.finditer(head))


def _command(head: str) -> str:
    match = _COMMAND.search(head)
    return match[0] if match else ""


def main(page: str, *again: str) -> None:
    text = Path(page).read_text(encoding="utf-8")
    for file in again:
        text = merged(text, Path(file).read_text(encoding="utf-8"))
    Path(page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
