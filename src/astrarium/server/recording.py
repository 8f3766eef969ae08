"""A recording holds what the policy heard and decided while it served, for `astrarium replay` to check.

One JSON line each: the scenario first; then, for each scheduler that was at work (a new one takes over when
profiles have drifted), its setup and its steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.trace import Step
from astrarium.core.units import Time
from astrarium.serving.contract import Action, Event, Setup

LIMIT = 4 << 30  # bytes; a recording that grows beyond is ended, the server goes on
_BUFFER = 1 << 20
log = logging.getLogger("astrarium.recording")


class Header(msgspec.Struct, frozen=True, tag="recording"):
    scenario: str  # as YAML
    version: str


class Section(msgspec.Struct, frozen=True, tag="setup"):
    setup: Setup


class StepRow(msgspec.Struct, frozen=True, tag="step", array_like=True):
    now: Time
    events: tuple[Event, ...]
    actions: tuple[Action, ...]


class Recording:
    """A recording is written as it happens; a crash loses at most what was buffered.

    There is no file before the first section: a server that does not start leaves an older recording as it
    is.
    """

    def __init__(self, path: Path, header: Header, limit: int = LIMIT) -> None:
        self._path, self._header, self._limit, self._written = path, header, limit, 0
        self._encode = msgspec.json.Encoder().encode
        self._file: IO[bytes] | None = None
        self._begun = False

    def section(self, setup: Setup) -> Callable[[Step], None]:
        """Begin a section; return the function by which a new scheduler notes its steps."""
        if not self._begun:
            self._begun = True
            self._file = self._path.open("wb", buffering=_BUFFER)
            self._write(self._header)
        self._write(Section(setup))
        return self._step

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _step(self, step: Step) -> None:
        self._write(StepRow(*step))

    def _write(self, line: Header | Section | StepRow) -> None:
        if self._file is None:
            return
        self._written += self._file.write(self._encode(line) + b"\n")
        if self._written > self._limit:
            log.warning("the recording %s has reached %d bytes and ends here", self._path, self._written)
            self.close()


class RecordingReader:
    """A recording reader reads a recording: its header, then `sections`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        first = next(self._lines(), None)
        if not isinstance(first, Header):
            raise InputError("", None, "a recording of `astrarium serve --record`", str(path))
        self.header = first

    def sections(self) -> Iterator[tuple[Setup, Iterator[Step]]]:
        """Yield the sections; the steps of each must be read before the next is asked for."""
        lines = self._lines()
        next(lines)
        line = next(lines, None)
        while isinstance(line, Section):
            following: list[Header | Section | StepRow | None] = [None]
            yield line.setup, _steps(lines, following)
            line = following[0]

    def _lines(self) -> Iterator[Header | Section | StepRow]:
        tagged = msgspec.json.Decoder(Header | Section)
        row = msgspec.json.Decoder(StepRow)
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield row.decode(line) if line.startswith(b"[") else tagged.decode(line)
                except msgspec.DecodeError as error:
                    if not line.endswith(b"\n"):
                        return  # the server was ended in the middle of this line
                    raise InputError(f"line {number}", None, f"a step: {error}", str(self._path)) from error


def _steps(
    lines: Iterator[Header | Section | StepRow], following: list[Header | Section | StepRow | None]
) -> Iterator[Step]:
    for line in lines:
        if not isinstance(line, StepRow):
            following[0] = line
            return
        yield Step(line.now, line.events, line.actions)
