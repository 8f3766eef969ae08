"""Results of a live tuning run, one JSON line each: a run that was killed goes on with what is there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from itertools import count, takewhile
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol

from astrarium.core.errors import InputError
from astrarium.tuning.live_memory import Known


class Shelf(Protocol):
    """Where checkpoints are."""

    def kept(self, candidate: int) -> Iterable[int]:
        """Iterations of each checkpoint of it."""

    def clear(self, candidate: int) -> None:
        """Throw them away."""


class CheckpointFolder:
    """*folder*/candidate/iterations.pt"""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def kept(self, candidate: int) -> list[int]:
        files = (self._folder / str(candidate)).glob("*.pt")
        return sorted(int(file.stem) for file in files if file.stem.isdigit())

    def clear(self, candidate: int) -> None:
        rmtree(self._folder / str(candidate), ignore_errors=True)


class FileJournal:
    """Appends to *path*, and knows what it held before. The last line may be torn: then it never was."""

    def __init__(self, path: Path, shelf: Shelf) -> None:
        self._path, self._shelf = path, shelf
        self._values: dict[int, str] = {}  # by candidate: what was last trained under that number
        self._results: dict[tuple[int, str, int], Known] = {}
        self._read()

    def began(self, candidate: int, values: Mapping[str, Any]) -> None:
        written = _written(values)
        before = self._values.get(candidate)
        if before == written:
            return
        self._shelf.clear(candidate)  # of a candidate that is no more; or nobody knows of whom
        self._add({"candidate": candidate, "values": written})

    def finished(self, candidate: int, values: Mapping[str, Any], total: int, value: float | None) -> None:
        self._add({"candidate": candidate, "values": _written(values), "total": total, "value": value})

    def failed(self, candidate: int, values: Mapping[str, Any], total: int, error: str) -> None:
        self._add({"candidate": candidate, "values": _written(values), "total": total, "error": error})

    def result(self, candidate: int, values: Mapping[str, Any], total: int) -> Known | None:
        written = _written(values)
        known = self._results.get((candidate, written, total))
        if known is None or self._values.get(candidate) != written:
            return None
        return known if known.error or total in self._shelf.kept(candidate) else None

    def kept(self, candidate: int, values: Mapping[str, Any], below: int) -> int:
        if self._values.get(candidate) != _written(values):
            return 0
        return max((each for each in self._shelf.kept(candidate) if each < below), default=0)

    def tried(self) -> list[dict[str, Any]]:
        """Values of candidates in the order in which they were drawn, as far as none is missing."""
        known = takewhile(self._values.__contains__, count())
        return [json.loads(self._values[candidate]) for candidate in known]

    # helpers

    def _add(self, line: dict[str, Any]) -> None:
        self._take(line)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _take(self, line: dict[str, Any]) -> None:
        candidate, written = line["candidate"], line["values"]
        self._values[candidate] = written
        if "total" in line:
            known = Known(None, line["error"]) if "error" in line else Known(line["value"])
            self._results[candidate, written, line["total"]] = known

    def _read(self) -> None:
        if not self._path.exists():
            return
        text = self._path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self._path.write_text(whole, encoding="utf-8")
        for number, line in enumerate(whole.splitlines(), 1):
            self._read_line(number, line)

    def _read_line(self, number: int, line: str) -> None:
        try:
            self._take(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            expected = f"a line of a tuning journal: {error!r}"
            raise InputError(f"line {number}", line, expected, str(self._path)) from error


def _written(values: Mapping[str, Any]) -> str:
    """The same for the same values."""
    return json.dumps(dict(values), sort_keys=True, default=repr)
