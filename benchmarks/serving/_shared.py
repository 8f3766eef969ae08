"""What the serving benchmarks take from the folder above, and share: circumstances, results, politeness."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from _measure import ROOT, Row, number, show
from run import caption, circumstances

RESULTS = ROOT / "benchmarks" / "results"

__all__ = ["RESULTS", "ROOT", "Row", "caption", "circumstances", "keep", "number", "parser", "say", "show"]


def parser(description: str | None) -> argparse.ArgumentParser:
    """SIGTERM ends a benchmark as Ctrl-C does, with everything that it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    flags = argparse.ArgumentParser(description=description)
    flags.add_argument("--date", type=date.fromisoformat, default=date.today(), help="today unless given")
    return flags


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def keep(kind: str, result: dict[str, Any]) -> Path:
    """Write `result` (with its circumstances) into results/, and return where; pictures go beside it."""
    machine = re.sub(r"\W+", "-", result["cpu"].replace("(R)", "")).strip("-").lower()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{result['date']}-{kind}-{machine}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path
