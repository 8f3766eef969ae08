"""Every step of a run, kept for `astrarium replay`."""

from __future__ import annotations

import msgspec

from astrarium.core.level import Watching
from astrarium.core.trace import Step
from astrarium.run.folder import TRACE


class Traced:
    """Hears every step, and keeps it as the line of a trace."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._encoder = msgspec.json.Encoder()
        self.watching = Watching(trace=self._hear)

    def _hear(self, step: Step) -> None:
        self._lines.append(self._encoder.encode(step))

    def files(self) -> dict[str, bytes]:
        return {TRACE: b"".join(line + b"\n" for line in self._lines)}
