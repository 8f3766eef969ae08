"""Traces are arrivals from files, CSV or JSON.

CSV has a header `time_s,model` (or time_ms, time_us, time_ns; `application` and `length` may follow), JSON is
`{"arrivals_ms": {model: [times]}}`."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from astrarium.core.errors import InputError, read_from
from astrarium.core.plain_data import csv_rows, read_text
from astrarium.core.quantities import LONGEST, MICROSECOND, MILLISECOND, SECOND, Duration, Time, read_duration

UNITS = {"time_s": SECOND, "time_ms": MILLISECOND, "time_us": MICROSECOND, "time_ns": 1}
HEADER = "a header such as time_ms,model, time_s,model,application or time_s,model,length"
JSON_FORM = 'an object {"arrivals_ms": {model: [times]}}'

Kind = tuple[str, str]  # model and application; the application is empty where the trace names none


class Trace:
    """A trace is columns in order of time; `kind[i]` is a number in `kinds`, with where each first stands."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.time = array("q")
        self.kind = array("i")
        self.length: array[int] | None = None  # of each request, where the trace has them
        self.kinds: dict[Kind, str] = {}
        self._codes: dict[Kind, int] = {}

    def add(self, time: Time, kind: Kind, place: str) -> None:
        code = self._codes.setdefault(kind, len(self._codes))
        if code == len(self.kinds):
            self.kinds[kind] = place
        self.time.append(time)
        self.kind.append(code)

    def __len__(self) -> int:
        return len(self.time)

    @property
    def last(self) -> Time:
        return self.time[-1]


def read_trace(path: str) -> Trace:
    """Read a trace, kept for a while: a scenario asks for its duration first, then for its arrivals."""
    try:
        status = Path(path).stat()
        with read_from(path):
            return _read(path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise InputError("", None, f"a trace file that can be read: {error.strerror}", path) from None


@lru_cache(maxsize=2)
def _read(path: str, _modified: int, _size: int) -> Trace:
    text = read_text(Path(path), "a text file")
    trace = Trace(path)
    if path.endswith(".json"):
        _read_json(text, trace)
    else:
        _read_csv(text.splitlines(), trace)
    if not len(trace):
        raise InputError("", None, "at least one arrival")
    return trace


def _read_csv(lines: Iterable[str], trace: Trace) -> None:
    rows = csv_rows(lines)
    header = [name.strip() for name in next(rows, (1, []))[1]]
    more = header[2:]
    if header[1:2] != ["model"] or sorted(more) not in _MORE or header[0] not in UNITS:
        raise InputError("line 1", ",".join(header), HEADER)
    unit = UNITS[header[0]]
    last = 0
    trace.length = array("i") if "length" in more else None
    for number, cells in rows:
        place = f"line {number}"
        if not cells:
            continue
        if len(cells) != len(header):
            raise InputError(place, ",".join(cells), f"{len(header)} cells: {','.join(header)}")
        last = _next_time(last, cells[0], unit, place)
        known = dict(zip(more, map(str.strip, cells[2:]), strict=True))
        trace.add(last, (cells[1].strip(), known.get("application", "")), place)
        if trace.length is not None:
            trace.length.append(_length(known["length"], place))


_MORE: tuple[list[str], ...] = ([], ["application"], ["length"], ["application", "length"])


def _length(text: str, place: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise InputError(f"{place}: length", text, "a whole number of at least 1")
    return int(text)


def _read_json(text: str, trace: Trace) -> None:
    try:
        streams = json.loads(text)["arrivals_ms"]
        pairs = [(str(model), list(times)) for model, times in streams.items()]
    except json.JSONDecodeError as error:
        raise InputError(f"line {error.lineno}", None, f"{JSON_FORM}: {error.msg}") from None
    except RecursionError:
        raise InputError("", None, f"{JSON_FORM}, and not nested so deeply") from None
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        cause = f": {error}" if isinstance(error, ValueError) else ""  # a number of too many digits
        raise InputError("arrivals_ms", None, f"{JSON_FORM}{cause}") from None
    rows = [row for model, times in pairs for row in _stream(model, times)]
    for time, model, place in sorted(rows, key=lambda row: row[0]):
        trace.add(time, (model, ""), place)


def _stream(model: str, times: list[object]) -> Iterable[tuple[Time, str, str]]:
    last = 0
    for number, raw in enumerate(times):
        place = f"arrivals_ms.{model}[{number}]"
        last = _next_time(last, raw, MILLISECOND, place)
        yield last, model, place


def _next_time(last: Time, raw: object, unit: Time, place: str) -> Time:
    time = _time(raw, unit)
    if time is None:
        raise InputError(place, raw, "a time of at least 0, as a number")
    if time < last:
        raise InputError(place, raw, "times in rising order: sort the trace")
    return time


def _time(raw: object, unit: Time) -> Time | None:
    try:
        if unit == 1:
            whole = int(str(raw))  # a float would lose the last nanoseconds of a long trace
            return whole if 0 <= whole <= LONGEST else None
        number = math.nan if isinstance(raw, bool) else float(str(raw))
    except ValueError:
        return None
    return round(number * unit) if 0 <= number * unit <= LONGEST else None  # NaN is neither


def read_samples(path: str) -> list[Duration]:
    """Read measured times, one a line, in milliseconds unless a header (time_s, ...) or the value says so."""
    lines = read_text(Path(path), "a text file of measured times").splitlines()
    header = lines[0].strip() if lines else ""
    unit = header.removeprefix("time_") if header in UNITS else "ms"
    times = []
    for number, text in enumerate((line.strip() for line in lines), 1):
        if text and (number > 1 or header not in UNITS):
            times.append(_sample(text, unit, f"line {number}", path))
    return sorted(times)


def _sample(text: str, unit: str, place: str, path: str) -> Duration:
    try:
        return read_duration(text if text[-1].isalpha() else text + unit)
    except ValueError as error:
        raise InputError(place, text, f"a number of {unit}, or {error}", path) from None
