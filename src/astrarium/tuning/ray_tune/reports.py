"""What a function of Ray Tune finds where it looks for Ray Tune: who it is, and to whom it reports.

It runs in a thread of its own, from one report to the next.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias

from astrarium.core.errors import InputError
from astrarium.tuning.live.training import Workers
from astrarium.tuning.ray_tune.allocation import factory

Files: TypeAlias = dict[str, Any]  # by their names in the folder: tensors of bytes, which are quick to save
Report: TypeAlias = Mapping[str, Any]
LEAVING = 2.0  # seconds for a function that nobody wants any more
SESSIONS = "ray.train._internal.session"


class Said(NamedTuple):
    metrics: Report
    files: Files


class Session:
    """What `ray.tune.report`, `get_checkpoint` and `get_context` ask, as long as the function runs."""

    world_rank = None  # Ray Tune's own has none either
    experiment_name = "astrarium"

    def __init__(self, function: Callable[[], object], workers: Workers) -> None:
        info = TrialInfo(workers)
        self.trial_name = self.trial_id = info.trial_id
        self.trial_resources = info.trial_resources
        self.loaded_checkpoint: Any = None
        self._folder = TemporaryDirectory()
        self.trial_dir = self._folder.name
        self._function, self._ends = function, False
        self._said: queue.SimpleQueue[Said | BaseException | None] = queue.SimpleQueue()
        self._go = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True, name="trainable")

    def load(self, files: Files) -> None:
        """Where the function goes on from; it has not begun."""
        if files:
            self.loaded_checkpoint = self._checkpoint(files)

    def next(self) -> Said | None:
        """The next report; None: there are no more."""
        if self._ends:
            return None
        if self._thread.ident is None:
            _install(self)
            self._thread.start()
        else:
            self._go.release()
        said = self._said.get()
        self._ends = not isinstance(said, Said)
        if isinstance(said, BaseException):
            raise said
        return said

    def report(self, metrics: Report, checkpoint: Any = None, **_: Any) -> None:
        """Called by the function, which goes on with the next step."""
        files = Files()
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                files = packed(folder)
            self.loaded_checkpoint = self._checkpoint(files)
        self._said.put(Said(metrics, files))
        self._go.acquire()
        if self._ends:
            raise SystemExit(0)  # as Ray Tune ends a function that nobody wants any more

    def close(self) -> None:
        self._ends = True
        self._go.release()
        _remove(self)
        if self._thread.is_alive():
            self._thread.join(LEAVING)
        self._folder.cleanup()

    def _run(self) -> None:
        try:
            self._function()
            self._said.put(None)
        except SystemExit:
            self._said.put(None)
        except BaseException as error:
            self._said.put(error)

    def _checkpoint(self, files: Files) -> Any:
        from ray.tune import Checkpoint

        folder = Path(self._folder.name, "checkpoint")
        _write(files, folder)
        return Checkpoint.from_directory(str(folder))


class TrialInfo:
    """Of a trial, as Ray Tune tells its trainables."""

    def __init__(self, workers: Workers) -> None:
        from ray.tune import PlacementGroupFactory

        self.trial_id = self.trial_name = f"worker-{workers.rank}-of-{workers.size}"
        self.experiment_name = "astrarium"
        self.trial_resources = factory(PlacementGroupFactory([{"CPU": 1, "GPU": 1}]), workers.width)


def packed(folder: str) -> Files:
    import numpy as np
    import torch

    files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): torch.from_numpy(np.fromfile(path, np.uint8)) for path in files}


@contextmanager
def unpacked(files: Files) -> Iterator[str]:
    with TemporaryDirectory() as folder:
        _write(files, Path(folder))
        yield folder


def _write(files: Files, folder: Path) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content.numpy().tofile(path)


def _install(session: Session) -> None:
    """Ray Tune has no public way: this is the one name that its functions look at."""
    ours: Any = import_module(SESSIONS)
    if not hasattr(ours, "_session"):
        raise InputError(
            "trainable", "a function", "a subclass of ray.tune.Trainable, with this version of Ray"
        )
    ours._session = session


def _remove(session: Session) -> None:
    ours: Any = import_module(SESSIONS)
    if ours._session is session:
        ours._session = None
