"""A crew at home: it has a folder, a place where gangs meet, and is ended with the program."""

from __future__ import annotations

import atexit
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from astrarium.engines.tuning_gangs import SlotCrew
from astrarium.engines.tuning_meeting import Meeting
from astrarium.engines.tuning_slots import Slots


class Home:
    """A folder with the *parcel* that trainings are built from, `checkpoints`, and `logs`. One that is
    *temporary* has no logs, and goes when it is closed."""

    def __init__(self, folder: Path, parcel: bytes, temporary: bool) -> None:
        self.folder, self._temporary = folder.absolute(), temporary
        for name in ("checkpoints", "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.build = str(self.folder / "build.pkl")
        Path(self.build).write_bytes(parcel)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def litter(self) -> str:
        """What somebody else has to remove if we cannot any more."""
        return str(self.folder) if self._temporary else ""

    def log(self, name: str) -> str:
        return "" if self._temporary else str(self.folder / "logs" / name)

    def close(self) -> None:
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)


class HousedCrew(SlotCrew):
    def __init__(self, slots: Slots, home: Home, meeting: Meeting, checkpoint_seconds: float) -> None:
        super().__init__(slots, home.checkpoints, meeting, checkpoint_seconds)
        self._home, self._meeting = home, meeting
        self._closed, self._owner = False, os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        if self._closed or os.getpid() != self._owner:  # a copy of it that was forked ends nobody
            return
        self._closed = True
        atexit.unregister(self.close)
        super().close()
        self._meeting.close()
        self._home.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
