"""Lanes on one GPU: what they cost, how jobs share, and what policies win. About five minutes.

    PYTHONPATH=src python3 benchmarks/gpu/lanes.py --out FOLDER [--only NAME ...]

`--pretend` runs all of it on the CPU with tiny networks in a few seconds, to try the script out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from lanes_parts.inference import many_models
from lanes_parts.overhead import measure as overhead
from lanes_parts.sharing import equal_shares, switching
from lanes_parts.stage import Stage, say
from lanes_parts.trace import shortest_first
from lanes_parts.trials import packed

from _measure import HEADER, Row, cells

INTERVAL = 15.0  # seconds


def main() -> int:
    options = _options()
    stage = Stage(options.pretend)
    if options.pretend:
        torch.set_num_threads(1)
    parts: dict[str, Callable[[], list[Row]]] = {
        "overhead": lambda: overhead(stage),
        "switch": lambda: switching(stage),
        "shares": lambda: equal_shares(stage, options.interval),
        "srtf": lambda: shortest_first(stage),
        "pack": lambda: packed(stage),
        "inference": lambda: many_models(stage),
    }
    unknown = set(options.only) - parts.keys()
    if unknown:
        sys.exit(f"--only: expected one of {', '.join(parts)} (got {', '.join(sorted(unknown))})")
    if not options.pretend and not torch.cuda.is_available():
        sys.exit("no CUDA GPU is here; --pretend tries the script out on the CPU")
    return _run({name: parts[name] for name in options.only or parts}, stage, Path(options.out))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", required=True, help="folder for lanes.json and lanes.md")
    parser.add_argument("--only", action="append", default=[], help="a part; may be given several times")
    parser.add_argument("--interval", type=float, default=INTERVAL, help="seconds between three equal jobs")
    parser.add_argument("--pretend", action="store_true", help="on the CPU, to try the script out")
    return parser.parse_args()


def _run(parts: dict[str, Callable[[], list[Row]]], stage: Stage, folder: Path) -> int:
    """What was measured is written after each part: a later one may fail."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for name, part in parts.items():
        say(f"{name} ...")
        began = time.perf_counter()
        try:
            with stage.tidy():
                rows += part()
        except Exception as error:
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}"
        seconds[name] = round(time.perf_counter() - began, 1)
        say(f"{name}: {seconds[name]} s")
        _write(folder, rows, {"machine": _machine(stage), "seconds": seconds, "failed": failed})
    print(_table(rows))
    for name, error in failed.items():
        print(f"{name} FAILED: {error}")
    return 1 if failed else 0


def _write(folder: Path, rows: list[Row], facts: dict[str, Any]) -> None:
    written = [{**asdict(row), "median": row.median, "met": row.met} for row in rows]
    (folder / "lanes.json").write_text(json.dumps({**facts, "rows": written}, indent=1) + "\n")
    (folder / "lanes.md").write_text(_table(rows) + "\n")


def _machine(stage: Stage) -> dict[str, Any]:
    gpu = "none (pretended)" if stage.pretend else torch.cuda.get_device_name()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "gpu": gpu,
        "memory_gib": None if stage.pretend else round(torch.cuda.mem_get_info()[1] / 2**30, 1),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def _table(rows: list[Row]) -> str:
    lines = [HEADER, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    shown = [
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
    ]
    shown.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in shown)


if __name__ == "__main__":
    sys.exit(main())
