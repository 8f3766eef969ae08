"""What all reproductions have in common: each is measured once, complete, plain data, and can be drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import cache
from pathlib import Path

import msgspec
import pytest

from astrarium_papers import registry
from astrarium_papers.findings import Effort

QUICK = Effort(quick=True)


def parameters(names: Sequence[str], *thorough: str) -> list[pytest.ParameterSet]:
    """Return one parameter for each name; those of *thorough* run only in the thorough tests."""
    marks = {name: [pytest.mark.thorough] for name in thorough}
    return [pytest.param(name, marks=marks.get(name, [])) for name in names]


def measured_once(system: str) -> Callable[[str], registry.Reproduction]:
    """Its reproductions by name, in their quick form."""
    return cache(lambda name: registry.run(f"{system}/{name}", QUICK))


def listed(system: str) -> list[str]:
    whole = f"{system}/"
    return [name.removeprefix(whole) for name in registry.names() if name.startswith(whole)]


def check_complete(reproduction: registry.Reproduction, claims: bool = True) -> None:
    """*claims*: the paper says something in words, too."""
    assert reproduction.rows
    assert bool(reproduction.claims) == claims
    assert all(math.isfinite(row.ours) and row.what for row in reproduction.rows)
    assert len({row.what for row in reproduction.rows}) == len(reproduction.rows)
    assert all(claim.note for claim in reproduction.claims)
    assert msgspec.json.decode(msgspec.json.encode(reproduction.shown()))["data"]


def check_drawn(reproduction: registry.Reproduction, folder: Path) -> None:
    """From data as a run's folder has it."""
    picture = folder / "figure.png"
    reproduction.module.draw(msgspec.json.decode(msgspec.json.encode(reproduction.findings.data)), picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def check_explained(reproduction: registry.Reproduction) -> None:
    """A number that differs says why."""
    for row in reproduction.rows:
        assert row.verdict in ("agrees", "given", "no number") or row.note, row.what


def checked(
    reproduced: Callable[[str], registry.Reproduction],
    names: Sequence[str | pytest.ParameterSet],
    silent: Collection[str] = (),
) -> type:
    """Return the tests that all reproductions pass; the papers of *silent* ones say nothing in words."""

    @pytest.mark.parametrize("name", names)
    class Reproductions:
        def test_findings_are_complete_and_plain(self, name: str) -> None:
            check_complete(reproduced(name), claims=name not in silent)

        def test_draw_writes_a_picture_from_decoded_data(self, name: str, tmp_path: Path) -> None:
            check_drawn(reproduced(name), tmp_path)

    return Reproductions


def explained(
    reproduced: Callable[[str], registry.Reproduction], names: Sequence[str | pytest.ParameterSet]
) -> type:
    """Return the same tests, and one that a row that differs says why."""

    class Explained(checked(reproduced, names)):  # type: ignore[misc]
        def test_a_row_that_differs_says_why(self, name: str) -> None:
            check_explained(reproduced(name))

    return Explained
