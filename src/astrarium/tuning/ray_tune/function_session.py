"""A function of Ray Tune runs in a thread, and its reports and checkpoints come to us."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias

from astrarium.core.errors import InputError
from astrarium.tuning.live.training.parked import ParkedFunction
from astrarium.tuning.live.training.workers import Workers
from astrarium.tuning.ray_tune.resources import factory

Files: TypeAlias = dict[str, Any]  # by their names in the folder: tensors of bytes, which are quick to save
Report: TypeAlias = Mapping[str, Any]
LEAVING = 2.0  # seconds for a function that nobody wants any more
SESSIONS = "ray.train._internal.session"


class TrainableReport(NamedTuple):
    """A report of a function has its metrics, and the files of its checkpoint."""

    metrics: Report
    files: Files


class TrialInfo:
    """Ray Tune tells its trainables this of their trial."""

    def __init__(self, workers: Workers) -> None:
        from ray.tune import PlacementGroupFactory

        self.trial_id = self.trial_name = f"worker-{workers.rank}-of-{workers.size}"
        self.experiment_name = "astrarium"
        self.trial_resources = factory(PlacementGroupFactory([{"CPU": 1, "GPU": 1}]), workers.width)


class TrainableSession(TrialInfo):
    """The session answers `ray.tune.report`, `get_checkpoint` and `get_context` of a running function."""

    world_rank = None  # Ray Tune's own has none either

    def __init__(self, function: Callable[[], object], workers: Workers) -> None:
        super().__init__(workers)
        self.loaded_checkpoint: Any = None
        self._folder = TemporaryDirectory()
        self.trial_dir = self._folder.name
        self._began = False
        self._thread = ParkedFunction(function, "trainable", SystemExit)  # as Ray Tune ends a function

    def load(self, files: Files) -> None:
        """Set the checkpoint from which the function, which has not begun, goes on."""
        if files:
            self.loaded_checkpoint = self._checkpoint(files)

    def next(self) -> TrainableReport | None:
        """Return the next report; None when there are no more."""
        if not self._began:
            self._began = True
            _install(self)
        report: TrainableReport | None = self._thread.next()
        return report

    def report(self, metrics: Report, checkpoint: Any = None, **_: Any) -> None:
        """Take a report from the function, which goes on with the next step."""
        files = Files()
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                files = packed(folder)
            self.loaded_checkpoint = self._checkpoint(files)
        self._thread.park(TrainableReport(metrics, files))

    def close(self) -> None:
        _remove(self)
        self._thread.close(LEAVING)
        self._folder.cleanup()

    def _checkpoint(self, files: Files) -> Any:
        from ray.tune import Checkpoint

        folder = Path(self._folder.name, "checkpoint")
        _write(files, folder)
        return Checkpoint.from_directory(str(folder))


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


def _install(session: TrainableSession) -> None:
    """Install the session. Ray Tune has no public way: this is the one name that its functions look at."""
    ours: Any = import_module(SESSIONS)
    if not hasattr(ours, "_session"):
        raise InputError(
            "trainable", "a function", "a subclass of ray.tune.Trainable, with this version of Ray"
        )
    ours._session = session


def _remove(session: TrainableSession) -> None:
    ours: Any = import_module(SESSIONS)
    if ours._session is session:
        ours._session = None
