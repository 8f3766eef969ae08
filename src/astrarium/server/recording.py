"""A recording holds what the policy heard and decided while it served, for `astrarium replay` to check.

One JSON line each: the scenario first; then, for each scheduler that was at work (a new one takes over when
profiles have drifted), its setup and its steps; at last why it ends. A recording without that last line was
cut off: its server was killed, or could not write any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from io import RawIOBase
from pathlib import Path

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.quantities import Time
from astrarium.core.trace import Step
from astrarium.serving.contract import Action, Event, Setup

LIMIT = 4 << 30  # bytes; a recording that grows beyond is ended, the server goes on
QUEUE_LIMIT = 64 << 20  # bytes that wait for the disk: some seconds of the fastest policy in Python
_WORTH_WRITING = 1 << 20  # so many bytes are written at once, without waiting for the next turn
FLUSH_SECONDS = 0.5  # between two turns of the writer: so much a killed server loses of its recording
_CLOSE_SECONDS = 5.0  # for the last bytes; a disk that takes none must not keep the server from ending
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


class End(msgspec.Struct, frozen=True, tag="end"):
    why: str


Line = Header | Section | StepRow | End


class Recording:
    """A recording is written by a thread of its own, and stops where it cannot be: the server goes on.

    Nothing that goes wrong with it reaches who notes a step, but for opening the file, which the first
    section does: a server that does not start leaves an older recording as it is.
    """

    def __init__(
        self,
        path: Path,
        header: Header,
        limit: int = LIMIT,
        queue_limit: int = QUEUE_LIMIT,
        opened: Callable[[Path], RawIOBase] = lambda path: path.open("wb", buffering=0),
    ) -> None:
        self._path = path
        self._header = header
        self._opened = opened
        self._limit = limit
        self._queue_limit = queue_limit
        self._encode = msgspec.json.Encoder().encode
        self._taken = 0  # bytes, in all
        self._writer: _Writer | None = None
        self._stopped = False
        self._lost = 0  # lines that were noted after it had stopped

    @property
    def goes_on(self) -> bool:
        """Whether steps are still written down."""
        return self._writer is not None and not self._stopped and not self._writer.failed

    @property
    def lost(self) -> int:
        """Return how many lines were noted and are not in the file, nor will be."""
        return self._lost + (self._writer.lost if self._writer is not None else 0)

    def section(self, setup: Setup) -> Callable[[Step], None]:
        """Begin a section; return the function by which a new scheduler notes its steps."""
        if self._writer is None:
            self._writer = _Writer(self._open(), self._path)
            self._note(self._header)
        self._note(Section(setup))
        return lambda step: self._note(StepRow(*step))

    def close(self) -> None:
        """Write what is left and end the file; what the disk does not take within seconds is lost."""
        if self._writer is None:
            return
        if not self._stopped:
            self._stop("the server stopped")
        self._writer.thread.join(_CLOSE_SECONDS)
        if self._writer.thread.is_alive():
            log.warning("the recording %s misses its end: the disk takes no more", self._path)

    def _open(self) -> RawIOBase:
        try:
            return self._opened(self._path)
        except OSError as error:
            expected = f"a file that can be written: {error.strerror}"
            raise InputError("server.record", str(self._path), expected) from None

    def _note(self, line: Line) -> None:
        if not self.goes_on:
            self._lost += 1
            return
        try:
            self._take(self._encode(line) + b"\n")
        except Exception as error:  # it is called in the middle of a scheduler's step
            self._lost += 1
            self._give_up(f"a step cannot be written as JSON: {error}")

    def _take(self, line: bytes) -> None:
        assert self._writer is not None
        self._taken += len(line)
        if self._writer.push(line) > self._queue_limit:
            self._give_up(f"{self._queue_limit} bytes wait for a disk that is slower than the policy")
        elif self._taken > self._limit:
            self._give_up(f"it has reached {self._taken} bytes")

    def _give_up(self, why: str) -> None:
        log.warning("the recording %s ends here, and the server goes on: %s", self._path, why)
        self._stop(why)

    def _stop(self, why: str) -> None:
        assert self._writer is not None
        self._stopped = True
        self._writer.end(self._encode(End(why)) + b"\n")


class _Writer:
    """It writes lines in order, in a thread of its own; once a write has failed, it counts lines as lost."""

    def __init__(self, file: RawIOBase, path: Path) -> None:
        self._file = file
        self._path = path
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._lines: list[bytes] = []
        self._waiting = 0  # bytes, those that are being written among them
        self._ends = False
        self.failed = False
        self.lost = 0  # lines
        self.thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self.thread.start()

    def push(self, line: bytes) -> int:
        """Take a line; return how many bytes wait for the disk."""
        with self._lock:
            if self.failed:
                self.lost += 1
                return 0
            self._lines.append(line)
            self._waiting += len(line)
        if self._waiting > _WORTH_WRITING:
            self._wanted.set()
        return self._waiting

    def end(self, line: bytes) -> None:
        """Write this line after all others, and close the file."""
        with self._lock:
            self._lines.append(line)
            self._ends = True
        self._wanted.set()

    def _run(self) -> None:
        while not self.failed and not self._ends:
            self._wanted.wait(FLUSH_SECONDS)
            self._wanted.clear()
            self._write()
        if not self.failed:
            self._write()  # what came between the last turn and the end
        self._close()

    def _write(self) -> None:
        with self._lock:
            lines = self._lines
            self._lines = []
        data = memoryview(b"".join(lines))
        written = 0
        try:
            while written < len(data):
                written += self._file.write(data[written:]) or 0
        except (OSError, ValueError) as error:  # the latter: of a closed file
            self._fail(bytes(data[written:]), error)
        with self._lock:
            self._waiting -= len(data)

    def _fail(self, rest: bytes, error: Exception) -> None:
        with self._lock:
            self.failed = True
            self.lost += rest.count(b"\n") + len(self._lines)
            self._lines = []
        why = (error.strerror if isinstance(error, OSError) else None) or error
        log.warning("the recording %s ends here, and the server goes on: %s", self._path, why)

    def _close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            log.warning("the recording %s could not be closed: %s", self._path, error)


class RecordingReader:
    """A recording reader reads a recording: its header, then `sections`; after them `cut` is known.

    What is there is read up to its last whole line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.cut = True  # whether it ends without saying why
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
            following: list[Line | None] = [None]
            yield line.setup, _steps(lines, following)
            line = following[0]
        self.cut = not isinstance(line, End)

    def _lines(self) -> Iterator[Line]:
        tagged = msgspec.json.Decoder(Header | Section | End)
        row = msgspec.json.Decoder(StepRow)
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return  # the server was ended in the middle of this line
                try:
                    yield row.decode(line) if line.startswith(b"[") else tagged.decode(line)
                except (ValueError, RecursionError) as error:
                    raise InputError(f"line {number}", None, f"a step: {error}", str(self._path)) from error


def _steps(lines: Iterator[Line], following: list[Line | None]) -> Iterator[Step]:
    for line in lines:
        if not isinstance(line, StepRow):
            following[0] = line
            return
        yield Step(line.now, line.events, line.actions)
