"""A backend and its slots share a folder: the build, checkpoints and logs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from astrarium.run.unpickling import make_own
from astrarium.tuning.live.slots.messages import Packing, SlotSetup
from astrarium.tuning.live.training.workers import Emulated

LANES = "pack"  # the iteration policy by which trials share a process


class SearchFolder:
    """The folder of a search holds the build that trainings come from, `checkpoints` and `logs`. A
    *temporary* one has no logs, and is removed when it is closed."""

    def __init__(self, folder: Path, packed_build: bytes, temporary: bool) -> None:
        self.folder = folder.absolute()
        self._temporary = temporary
        for name in ("checkpoints", "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.build = str(self.folder / "build.pkl")
        Path(self.build).write_bytes(packed_build)
        make_own(Path(self.build))

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def temporary_folder(self) -> str:
        """Return the folder that the fork server has to remove if this process cannot; empty if none."""
        return str(self.folder) if self._temporary else ""

    def log(self, name: str) -> str:
        return "" if self._temporary else str(self.folder / "logs" / name)

    def slot_setup(self, log: str, emulated: Emulated | None, packing: Packing, **more: Any) -> SlotSetup:
        """Return the setup of slots that train what is in this folder. *more* is what else it has."""
        device = "cpu" if emulated is not None else "cuda:0"
        lanes = LANES if packing == "lanes" else ""
        return SlotSetup(device, self.build, emulated, lanes=lanes, log=self.log(log), **more)

    def close(self) -> None:
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)
