"""A function of the user's can be run from one report to the next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class ParkedFunction:
    """The function runs in a thread, from one report to the next, and is parked in between: there its
    training saves it, and there it is left, by an error of the class *leaves*."""

    def __init__(self, function: Callable[[], object], name: str, leaves: type[BaseException]) -> None:
        self._function = function
        self._leaves = leaves
        self._over = False
        self._go = threading.Semaphore(0)
        self._reports: SimpleQueue[Any] = SimpleQueue()  # reports, and an error or None at the end
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)

    def next(self) -> Any:
        """Run the function on to its next report, and return that; None where it has come to its end."""
        if self._over:
            return None
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()
        report = self._reports.get()
        self._over = report is None or isinstance(report, BaseException)
        if isinstance(report, BaseException):
            raise report
        return report

    def park(self, report: object) -> None:
        """Report, from inside the function, and wait there for `next`."""
        if self._over:  # it was told to leave, and has kept that from itself
            raise self._leaves
        self._reports.put(report)
        self._go.acquire()
        if self._over:
            raise self._leaves

    def close(self, seconds: float) -> None:
        """Let the function leave, which it has so many seconds for."""
        self._over = True
        self._go.release()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._function()
            self._reports.put(None)
        except self._leaves:
            self._reports.put(None)
        except BaseException as error:
            self._reports.put(error)
