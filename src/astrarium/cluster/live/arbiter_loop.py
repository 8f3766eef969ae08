"""An arbiter takes its turns here, until nothing is left to do or somebody asks it to drain."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from astrarium.cluster.live.arbiter import ArbiterProcess
from astrarium.cluster.live.disk_wait import DiskWait
from astrarium.cluster.live.machine.keeping.pauses import SELDOM
from astrarium.cluster.live.watching.console import Lines, say
from astrarium.cluster.live.watching.hooks import Hook, Hooks
from astrarium.core.quantities import Time


class ArbiterLoop:
    """Takes an arbiter's turns, *look* seconds apart; after each, hooks are kept and the operator is told.

    A turn that the disk refuses is taken again when it can be written (`DiskWait`).
    """

    def __init__(
        self,
        home: Path,
        arbiter: ArbiterProcess,
        observe: Callable[[str, Time], None],
        hooks: Sequence[Hook],
        look: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.draining = False
        self._home = home
        self._arbiter = arbiter
        self._disk = DiskWait(home, arbiter, observe)
        self._hooks = hooks
        self._look = look
        self._sleep = sleep

    def ask_to_drain(self, *_: object) -> None:
        """Have all jobs write checkpoints and leave. Who asks twice, or while the disk has no room for
        checkpoints, leaves at once: jobs run on, and the next arbiter finds them."""
        if self.draining or self._disk.missing:
            raise KeyboardInterrupt
        self.draining = True
        say("draining: jobs write checkpoints")

    def run(self, stay: bool) -> None:
        """Return when all apps have ended, unless the arbiter is to *stay*, or all jobs have left."""
        hooks = Hooks(self._home, self._arbiter.store, self._hooks)
        lines = Lines(self._arbiter)
        while not self.draining and self._turn(stay, hooks, lines):
            self._sleep(max(self._look, SELDOM) if self._disk.missing else self._look)
        while not self._all_have_left():
            self._sleep(self._look)
        if hooks.close(self._arbiter.now):
            say("hooks: what is not delivered yet is left for the next arbiter")

    def _turn(self, stay: bool, hooks: Hooks, lines: Lines) -> bool:
        """Take a turn and return whether there is another one."""
        with self._disk.waited_for():
            if not stay and self._arbiter.idle:
                return False
            self._arbiter.turn()
            hooks.keep(self._arbiter.now())
            lines.show()
        return True

    def _all_have_left(self) -> bool:
        with self._disk.waited_for():
            return self._arbiter.drain()
        return False
