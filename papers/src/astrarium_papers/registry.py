"""Reproductions by name: `symphony/table2` is the module `astrarium_papers.symphony.table2`.

Such a module has TITLE, `run(effort) -> Findings` and `draw(data, path)`; and SETTINGS, by name with what
each is, where something can be switched.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium_papers.findings import Claim, Effort, Findings, Row

# Papers, and our own policy, which has none.
SOURCES = (
    "alpaserve",
    "astrarium",
    "elvinger",
    "fluid",
    "orion",
    "orloj",
    "salus",
    "shockwave",
    "symphony",
    "themis",
)


class Reproduction(msgspec.Struct):
    name: str
    title: str
    command: str
    findings: Findings
    module: Any

    @property
    def rows(self) -> list[Row]:
        return self.findings.rows

    @property
    def claims(self) -> list[Claim]:
        return self.findings.claims

    @property
    def skipped(self) -> str:
        return self.findings.skipped

    def figure(self, path: Path) -> None:
        """Draw the figure; nothing is drawn of what was skipped."""
        if not self.skipped:
            self.module.draw(self.findings.data, path)

    def shown(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "title": self.title,
            "command": self.command,
            "rows": [row.shown() for row in self.rows],
            "claims": [msgspec.structs.asdict(claim) for claim in self.claims],
            "data": self.findings.data,
            "skipped": self.skipped,
        }


def names() -> list[str]:
    listed = []
    for source in SOURCES:
        package = importlib.import_module(f"astrarium_papers.{source}")
        modules = [module.name for module in pkgutil.iter_modules(package.__path__)]
        listed += [f"{source}/{name}" for name in modules if not name.startswith("_")]
    return sorted(listed, key=by_number)


def spelled(name: str) -> str:
    """Return a name as modules are named: salus/table2.1, as the paper has it, is salus/table2_1."""
    return name.replace(".", "_")


def title(name: str) -> str:
    return str(_module(name).TITLE)


def check_settings(names: list[str], settings: dict[str, str]) -> None:
    """Check that every reproduction has every setting."""
    for name in names:
        known: dict[str, str] = getattr(_module(name), "SETTINGS", {})
        for setting, value in settings.items():
            if setting not in known:
                has = ", ".join(f"{known_name} ({what})" for known_name, what in known.items()) or "none"
                raise InputError(f"--set {setting}", value, f"a setting of {name}, which has: {has}")


def run(name: str, effort: Effort) -> Reproduction:
    name = spelled(name)
    module = _module(name)
    switched = "".join(f" --set {setting}={value}" for setting, value in effort.settings.items())
    command = f"astrarium reproduce {name}" + (" --quick" if effort.quick else "") + switched
    return Reproduction(name, module.TITLE, command, module.run(effort), module)


def _module(name: str) -> Any:
    if name not in names():
        raise InputError("reproduction", name, one_of(names(), name))
    return importlib.import_module("astrarium_papers." + name.replace("/", "."))


def by_number(name: str) -> tuple[str, int, str]:
    """Return a key that sorts figure2 before figure10."""
    paper, _, item = name.partition("/")
    digits = "".join(letter for letter in item if letter.isdigit())
    return paper, -1 if item.startswith("table") else int(digits or 0), item
