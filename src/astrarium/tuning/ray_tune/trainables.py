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
from collections.abc import Mapping
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any
from weakref import finalize

from astrarium.core.errors import InputError
from astrarium.core.optional import from_extra
from astrarium.tuning.live.training.workers import Training, Workers, set_current_workers
from astrarium.tuning.ray_tune.function_session import (
    Files,
    Report,
    TrainableSession,
    TrialInfo,
    packed,
    unpacked,
)


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
            self._since = 0 if report.files else self._since + 1
            self._files = report.files or self._files
        self._again = 0
        return worth(self._last, self._metric)

    def save(self) -> dict[str, Any]:
        return {"files": self._files, "since": self._since, "last": _plain(self._last)}

    def load(self, state: dict[str, Any]) -> None:
        self._files = state["files"]
        self._since = 0
        self._last = dict(state["last"])
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
