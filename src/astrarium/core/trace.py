"""What was heard and decided, instant by instant: the record that replay feeds through a fresh policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.quantities import Time


class Step(NamedTuple):
    now: Time
    events: tuple[Any, ...]
    actions: tuple[Any, ...]


def as_trace(steps: Iterable[Step]) -> bytes:
    """Return steps as the text of a trace: one JSON line for each."""
    return msgspec.json.Encoder().encode_lines(steps)


def write_trace(path: Path, steps: Iterable[Step]) -> None:
    path.write_bytes(as_trace(steps))


def read_trace(path: Path, event: Any, action: Any) -> Iterator[Step]:
    """Steps of a level whose events and actions are the given (tagged union) types."""
    decoder = msgspec.json.Decoder(tuple[Time, tuple[event, ...], tuple[action, ...]])
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield Step(*decoder.decode(line))
            except (ValueError, RecursionError) as error:
                raise InputError(f"line {number}", None, f"a trace step: {error}", str(path)) from error
