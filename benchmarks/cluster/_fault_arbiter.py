"""The arbiter of the cluster of faults.py, a process of root that is killed and started again and again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

TICK = 0.1  # seconds
ENDED = "arbiters that ended by themselves"


class Arbiter:
    """One process at a time; its starts and unasked ends are counted, and how large it became is kept."""

    def __init__(self, place: Path, home: Path, counts: Counter[str]) -> None:
        self._place = place
        self._home = home
        self._counts = counts
        self._output = place / "arbiter.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self.peak_kib = self.descriptors = 0

    @property
    def errors(self) -> int:
        return self._output.read_text().count("Traceback")

    def start(self) -> None:
        words = ["run", "live.yaml", "--state", str(self._home), "--stay"]
        command = [sys.executable, "-m", "astrarium", *words]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(command, cwd=self._place, stdout=output, stderr=output)
        (self._place / "arbiter.pid").write_text(str(self._process.pid))
        self._counts["starts of the arbiter"] += 1

    def watch(self, seconds: float) -> None:
        """Let time pass; an arbiter that ends by itself is started again."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self._look()
            time.sleep(TICK)

    def _look(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            self._counts[ENDED] += 1
            self.start()
        with suppress(OSError, StopIteration):
            folder = Path("/proc", str(self._process.pid))
            lines = (folder / "status").read_text().splitlines()
            peak = next(line for line in lines if line.startswith("VmHWM:"))
            self.peak_kib = max(self.peak_kib, int(peak.split()[1]))
            self.descriptors = max(self.descriptors, len(list((folder / "fd").iterdir())))

    def die(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def leave(self) -> None:
        """End as somebody does who presses Ctrl-C."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)

    def clear(self) -> None:
        """End whatever is left."""
        if self._process is not None and self._process.poll() is None:
            self.die()
