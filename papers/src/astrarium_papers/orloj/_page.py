"""The tables of docs/sizes.md, from the run folder that `orloj/size` left.

    astrarium reproduce orloj/size --out runs/size
    python -m astrarium_papers.orloj._page runs/size docs/sizes.md

Each table stands between `<!-- table: NAME -->` and `<!-- end -->`, and is written anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from astrarium_papers.markdown import fill, table
from astrarium_papers.orloj.size import (
    APART,
    APPLICATION,
    NOTHING,
    OURS,
    SHARES,
    SIZE,
    SIZED,
    explained,
    named,
)

SHOWN = 3  # SLOs: at the others nearly all finish

Data = Mapping[str, Any]


def _knowledge(data: Data) -> str:
    known = [NOTHING, APPLICATION, explained(0.5), explained(1.0)]
    columns = {f"{policy}: {what}": named(policy, what) for policy in ("Orloj", OURS) for what in known}
    return _table(data, columns)


def _size(data: Data) -> str:
    best = {
        f"{OURS}: {APPLICATION}": named(OURS, APPLICATION),
        **{f"{policy}: {explained(1.0)}": named(policy, explained(1.0)) for policy in (OURS, APART)},
    }
    return _table(data, {**best, **{f"{policy}: {SIZE}": named(policy, SIZE) for policy in SIZED}})


def _shares(data: Data) -> str:
    known = {APPLICATION: 0.0, **{explained(share): share for share in SHARES}}
    header = (f"{OURS}, at {data['multiples'][0]:g} x P99", *known)
    body = [
        (case["title"], *(f"{case['rates'][named(OURS, what)][0]:.3f}" for what in known))
        for case in data["cases"].values()
    ]
    return table(header, body)


def _table(data: Data, columns: Mapping[str, str]) -> str:
    multiples = " ".join(f"{multiple:g}" for multiple in data["multiples"][:SHOWN])
    header = (f"finish rate at {multiples} x P99", "spread (within)", *columns)
    body = [
        (
            case["title"],
            f"{case['spread']:.2f} ({case['within']:.2f})",
            *(" ".join(f"{rate:.2f}" for rate in case["rates"][name][:SHOWN]) for name in columns.values()),
        )
        for case in data["cases"].values()
    ]
    return table(header, body)


TABLES: dict[str, Callable[[Data], str]] = {"knowledge": _knowledge, "shares": _shares, "size": _size}


def write(folder: Path, page: Path) -> None:
    summary = msgspec.json.decode((folder / "summary.json").read_bytes())
    (data,) = [one["data"] for one in summary["reproductions"] if one["name"] == "orloj/size"]
    tables = {name: make(data) for name, make in TABLES.items()}
    page.write_text(fill(page.read_text(encoding="utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
