"""Blocks of code in a page, and what they print compared with what the page says that they print."""

from __future__ import annotations

import re

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (\w+\.yaml)\n")  # the first line of a block that is a file


def plain(text: str) -> list[str]:
    """Lines with something in them, spaces as one."""
    return [re.sub(r"\s+", " ", line).strip() for line in text.splitlines() if re.search(r"\w", line)]


def words(text: str, number: re.Pattern[str]) -> list[str]:
    """The same, with each *number* as such."""
    return [number.sub("#", line) for line in plain(text)]


def shown(line: str, printed: list[str]) -> bool:
    """Whether *line* was printed; one that ends with dots goes on."""
    if line.endswith("..."):
        return any(whole.startswith(line.removesuffix("...")) for whole in printed)
    return line in printed
