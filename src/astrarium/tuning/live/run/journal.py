"""A journal in a file: a run that was killed goes on with it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from astrarium.core.errors import InputError
from astrarium.tuning.live.checkpoints import Checkpoints
from astrarium.tuning.live.loop.journal import EarlierResult, Journal
from astrarium.tuning.live.loop.reports import Reported


class FileJournal(Journal):
    """A file journal appends results to *path*, a line of JSON each, and knows what the file held: a run that
    was killed goes on with it. A torn last line does not count."""

    def __init__(self, path: Path, checkpoints: Checkpoints) -> None:
        self._path = path
        self._checkpoints = checkpoints
        self._values: dict[int, str] = {}  # by candidate: what was last trained under that number
        self._results: dict[tuple[int, str, int], EarlierResult] = {}
        self._curves: dict[tuple[int, str], dict[int, Reported]] = {}
        self._read()

    def began(self, candidate: int, values: Mapping[str, Any]) -> None:
        written = _canonical(values)
        before = self._values.get(candidate)
        if before == written:
            return
        self._checkpoints.clear(candidate)  # they are of an earlier, or an unknown, candidate
        self._add({"candidate": candidate, "values": written})

    def finished(self, candidate: int, values: Mapping[str, Any], total: int, value: float | None) -> None:
        self._add({"candidate": candidate, "values": _canonical(values), "total": total, "value": value})

    def failed(self, candidate: int, values: Mapping[str, Any], total: int, error: str) -> None:
        self._add({"candidate": candidate, "values": _canonical(values), "total": total, "error": error})

    def reported(self, candidate: int, values: Mapping[str, Any], report: Reported) -> None:
        line = {"candidate": candidate, "values": _canonical(values), "at": report.iterations}
        metrics = {"metrics": dict(report.metrics)} if report.metrics else {}
        self._add({**line, "value": report.value, **metrics}, durable=False)

    def curve(self, candidate: int, values: Mapping[str, Any], upto: int) -> list[Reported]:
        known = self._curves.get((candidate, _canonical(values)), {})
        return [known[iterations] for iterations in sorted(known) if iterations <= upto]

    def result(self, candidate: int, values: Mapping[str, Any], total: int) -> EarlierResult | None:
        written = _canonical(values)
        known = self._results.get((candidate, written, total))
        if known is None or self._values.get(candidate) != written:
            return None
        return known if known.error or total in self._checkpoints.kept(candidate) else None

    def kept(self, candidate: int, values: Mapping[str, Any], below: int) -> int:
        written = _canonical(values)
        if self._values.get(candidate) != written:
            return 0
        known = self._curves.get((candidate, written), {})
        heard = max(known, default=below)  # what was saved after that has a value that nobody knows
        kept = [one for one in self._checkpoints.kept(candidate) if one < below and one <= heard]
        return max(kept, default=0)

    def tried(self) -> list[dict[str, Any]]:
        """Return the values of candidates in the order of drawing, up to the first that is missing."""
        known = takewhile(self._values.__contains__, count())
        return [json.loads(self._values[candidate]) for candidate in known]

    def _add(self, line: dict[str, Any], durable: bool = True) -> None:
        """Append a line; a *durable* one, and all before it, outlive the machine's end."""
        self._take(line)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            if durable:
                os.fsync(file.fileno())

    def _take(self, line: dict[str, Any]) -> None:
        candidate = line["candidate"]
        written = line["values"]
        self._values[candidate] = written
        if "at" in line:
            report = Reported(line["at"], line["value"], line.get("metrics", {}))
            self._curves.setdefault((candidate, written), {})[report.iterations] = report
        if "total" in line:
            known = EarlierResult(None, line["error"]) if "error" in line else EarlierResult(line["value"])
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
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            expected = f"a line of a tuning journal: {error!r}"
            raise InputError(f"line {number}", line, expected, str(self._path)) from error


def _canonical(values: Mapping[str, Any]) -> str:
    """Write values so that the same values give the same text."""
    return json.dumps(dict(values), sort_keys=True, default=repr)
