"""The GPUs that a cluster leases to this process may change while it runs: a file tells, another answers.

Whoever runs it says in ASTRARIUM_DEVICES which of the visible GPUs it has, and writes `gpus.json` in
ASTRARIUM_FOLDER when that changes. GPUs that it is to give up are free when it has answered.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

GPUS = "gpus.json"
USED = "gpus-used.json"
EVERY = 0.25  # seconds between looks


class LeasedGpus:
    """The GPUs to use now, as this process counts them, in the folder of its run. *elastic*: they may change,
    and the process sees others that are not its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.devices = tuple(int(gpu) for gpu in os.environ.get("ASTRARIUM_DEVICES", "").split(",") if gpu)
        self.elastic = bool(os.environ.get("ASTRARIUM_ELASTIC"))
        self._change = 0  # the number of the last change
        self._answered = 0  # and of the last that was answered
        self._looked_at = 0.0

    def changed(self) -> bool:
        """Return whether there are other GPUs to use than before; it is looked for now and then."""
        if not self.elastic or time.monotonic() - self._looked_at < EVERY:
            return False
        self._looked_at = time.monotonic()
        try:
            change = json.loads((self._folder / GPUS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        if change["run"] <= self._change:
            return False
        self._change = change["run"]
        self.devices = tuple(change["devices"])
        return True

    def use(self) -> None:
        """Answer that these GPUs are used now, and no others."""
        if self._answered < self._change:
            self._answered = self._change
            draft = self._folder / f".{USED}.{os.getpid()}"
            draft.write_text(json.dumps({"run": self._change}), encoding="utf-8")
            draft.replace(self._folder / USED)
