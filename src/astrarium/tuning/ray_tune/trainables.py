"""Ray Tune's trainables become trainings of ours, unchanged: classes, and functions that report.

Ray Tune's own methods step, save and restore a class. A function runs in a thread, which goes on for one
report at each step; `ray.tune.report` finds our session where it looks for Ray Tune's own. Checkpoints are
the files that a trainable has written.

A trainable that knows nothing of workers uses one GPU, or a part of it. One that is to be spread over several
asks for `astrarium.tuning.workers()`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias
from weakref import finalize

from astrarium.core.errors import InputError
from astrarium.core.optional import from_extra
from astrarium.tuning.live.training.parked import ParkedFunction
from astrarium.tuning.live.training.workers import Training, Workers, set_current_workers
from astrarium.tuning.ray_tune.allocation import factory

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


@dataclass(frozen=True)
class TrainableBuild:
    """The build makes a training of a trainable. *metric* is the name of the candidate's value in reports;
    *fixed* values are the same for all."""

    trainable: Any
    metric: str
    fixed: Mapping[str, Any]

    def __call__(self, values: dict[str, Any], workers: Workers) -> Training:
        set_current_workers(workers)
        kind = ClassTraining if inspect.isclass(self.trainable) else FunctionTraining
        return kind(self.trainable, {**self.fixed, **values}, workers, self.metric)


def trainable_build(trainable: Any, metric: str, fixed: Mapping[str, Any] | None = None) -> TrainableBuild:
    with from_extra("tune"):
        from ray import tune
    if not callable(trainable) or (inspect.isclass(trainable) and not issubclass(trainable, tune.Trainable)):
        expected = "a subclass of ray.tune.Trainable, or a function of a config"
        raise InputError("trainable", trainable, expected)
    if not metric:
        raise InputError("metric", metric, "the name of a value that the trainable reports")
    return TrainableBuild(trainable, metric, dict(fixed or {}))


class ClassTraining:
    def __init__(self, kind: Any, values: dict[str, Any], workers: Workers, metric: str) -> None:
        from ray.tune.result import TRIAL_INFO

        self._folder = TemporaryDirectory()
        self._metric = metric
        self._last = dict[str, Any]()
        self._one = _kept_in(kind, self._folder.name)({**values, TRIAL_INFO: TrialInfo(workers)})
        self._end = finalize(self, self._one.stop)

    def step(self) -> float:
        """Train one iteration. A trainable that has reported done keeps its last state."""
        if not self._last.get("done"):
            self._last = self._one.train()
        return worth(self._last, self._metric)

    def save(self) -> dict[str, Any]:
        with TemporaryDirectory() as folder:
            self._one.save(folder)
            return {"files": packed(folder), "iteration": self._one.iteration, "last": _plain(self._last)}

    def load(self, state: dict[str, Any]) -> None:
        with unpacked(state["files"]) as folder:
            self._one.restore(folder)
        self._one._iteration, self._last = state["iteration"], dict(state["last"])

    def close(self) -> None:
        """Stop the trainable as Ray Tune does; collecting the training as garbage does so too."""
        self._end()


class FunctionTraining:
    """A function writes checkpoints when it likes. A function that goes on from an older checkpoint repeats
    some reports, which are ignored."""

    def __init__(self, function: Any, values: dict[str, Any], workers: Workers, metric: str) -> None:
        self._metric = metric
        self._last = dict[str, Any]()
        self._files = Files()
        self._since = 0  # reports since those files were written
        self._again = 0  # reports that were heard before
        self._session = TrainableSession(lambda: function(values), workers)
        self._end = finalize(self, self._session.close)

    def step(self) -> float:
        for _ in range(self._again + 1):
            report = self._session.next()
            if report is None:
                break  # it has come to its end, and stays as it is
            self._last = dict(report.metrics)
            self._files, self._since = (report.files, 0) if report.files else (self._files, self._since + 1)
        self._again = 0
        return worth(self._last, self._metric)

    def save(self) -> dict[str, Any]:
        return {"files": self._files, "since": self._since, "last": _plain(self._last)}

    def load(self, state: dict[str, Any]) -> None:
        self._files, self._since, self._last = state["files"], 0, dict(state["last"])
        self._again = state["since"]
        self._session.load(self._files)

    def close(self) -> None:
        """End the function's thread; that also happens when the training is collected as garbage."""
        self._end()


def worth(result: Report, metric: str) -> float:
    if metric not in result:
        raise InputError("metric", metric, f"one that is reported: {', '.join(sorted(map(str, result)))}")
    return float(result[metric])


def _plain(result: Report) -> dict[str, Any]:
    """Return the values that are as easy to save as a number."""
    return {name: value for name, value in result.items() if isinstance(value, bool | int | float | str)}


def _kept_in(kind: Any, folder: str) -> Any:
    """Return the class with a temporary log folder; Ray Tune would leave one in the user's home."""

    def _setup_logdir(self: Any) -> None:
        self._logdir = folder
        os.makedirs(folder, exist_ok=True)

    return type(kind.__name__, (kind,), {"_setup_logdir": _setup_logdir, "__module__": kind.__module__})
