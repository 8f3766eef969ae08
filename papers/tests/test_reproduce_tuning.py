"""What is claimed of our own tuning policy, in its quick form."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import msgspec
import pytest

from astrarium_papers import registry
from astrarium_papers.astrarium import tuning
from astrarium_papers.findings import Effort


@cache
def reproduced() -> registry.Reproduction:
    return registry.run("astrarium/tuning", Effort(quick=True))


@pytest.mark.thorough
def test_findings_are_complete_and_plain() -> None:
    reproduction = reproduced()
    assert len({row.what for row in reproduction.rows}) == len(reproduction.rows) == 2 * 3 + 2 * 3
    assert all(math.isfinite(row.ours) and row.note for row in reproduction.rows)
    assert all(claim.note for claim in reproduction.claims)
    assert msgspec.json.decode(msgspec.json.encode(reproduction.shown()))["data"]


@pytest.mark.thorough
def test_it_is_faster_than_both_on_the_mean() -> None:
    faster = [claim for claim in reproduced().claims if "shorter makespan" in claim.what]
    assert len(faster) == 2
    assert all(claim.holds for claim in faster)


@pytest.mark.thorough
def test_brackets_at_a_time_shorten_hyperband() -> None:
    (bracket_claim,) = [claim for claim in reproduced().claims if "brackets" in claim.what]
    assert bracket_claim.holds, bracket_claim.note


def test_a_speedup_is_the_geometric_mean_over_cases() -> None:
    cases = [
        {"found": {"astrarium": {"end": [1.0, 3.0]}, "fifo": {"end": [8.0, 8.0]}}},
        {"found": {"astrarium": {"end": [1.0]}, "fifo": {"end": [1.0]}}},
    ]
    assert tuning.speedup(cases, "end", "fifo") == pytest.approx(2.0)


@pytest.mark.thorough
def test_draw_writes_a_picture_from_decoded_data(tmp_path: Path) -> None:
    data = msgspec.json.decode(msgspec.json.encode(reproduced().findings.data))
    tuning.draw(data, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
