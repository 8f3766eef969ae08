"""How a part of a run has ended, from what its keeper has left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from astrarium.cluster.seen import Ending
from astrarium.engines.cluster_session import STOPPED

LAST_WORDS = 300
LOG_END = 1 << 16  # bytes


def ending(outcome: dict[str, Any] | None, folder: Path) -> tuple[Ending, str]:
    if outcome is None:
        return "lost", "its keeper was killed"
    codes = outcome["codes"]
    if codes and all(code == 0 for code in codes):
        return "finished", ""
    if outcome["asked"] or not codes or all(code in (0, STOPPED) for code in codes):
        return "stopped", ""
    bad = int(outcome["first"])
    words = _last_words(folder, bad)
    return "failed", f"{_exit(codes[bad])}{f', {words}' if words else ''}"


def _exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _last_words(folder: Path, place: int) -> str:
    """The last line that the process wrote; of a long log, only the end is read."""
    logs = sorted(folder.glob("log-*.txt"), key=lambda path: int(path.stem.partition("-")[2]))
    if place >= len(logs):
        return ""
    with logs[place].open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_END))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:LAST_WORDS] if lines else ""
