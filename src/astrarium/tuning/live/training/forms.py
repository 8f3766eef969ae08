"""An objective comes in one of several forms, and each becomes a build of trainings.

| what it is | what an iteration is |
| --- | --- |
| a function (or class) of values and workers, which makes a training | a call of its `step` |
| the same of values alone | the same, on one GPU or a part of it |
| a function of values that calls `report(value)` as it goes | from one report to the next |
| a generator of values that yields what it is worth | from one yield to the next |
| a function of values that returns a number | the whole function; further ones change nothing |

A function is run in a thread, and parked at each report. What it hands over with a report (`report(value,
state)`, or yields beside the value) is its checkpoint, and `resumed()` returns it where the function goes on
elsewhere. Without one it begins anew there, and what it has reported before is passed over.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from astrarium.core.errors import InputError
from astrarium.tuning.live.training.parked import ParkedFunction
from astrarium.tuning.live.training.workers import (
    ClosableTraining,
    Training,
    Workers,
    set_current_workers,
)

LEAVING = 10.0  # seconds that a function may take to leave
NEEDED = ("step", "save", "load")
FORMS = (
    "a function of (values, workers) or of (values) that makes a training or returns a number, "
    "one that calls report(value), or a generator of values"
)


class _Report(NamedTuple):
    value: Any
    state: Any = None
    is_last: bool = False


class _Over(BaseException):
    """The error ends a function that is no longer wanted here."""


_running: ContextVar[FunctionTraining] = ContextVar("running")  # in the thread of a function that is trained


def report(value: Any, state: Any = None) -> None:
    """Report what the candidate is worth after an iteration; *state* is all it takes to go on from there.

    It is called by a function that `astrarium.tune` runs."""
    training = _running.get(None)
    if training is None:
        raise InputError("report", value, "a call from a function that astrarium.tune runs")
    training.park(_Report(value, state))


def resumed() -> Any:
    """Return the state of the last report before the function was begun anew elsewhere; None at first."""
    training = _running.get(None)
    return None if training is None else training.state


def training_of(objective: Any, values: dict[str, Any], workers: Workers) -> Training:
    """Make a training of an objective of whatever form."""
    if takes_workers(objective):
        return _checked(objective(values, workers))
    set_current_workers(workers)
    if inspect.isclass(objective):
        kind: Any = objective
        return as_training(kind(values))
    return FunctionTraining(objective, values, workers)


class FunctionTraining:
    """A function of values trains in a thread of its own, from one report to the next."""

    def __init__(self, function: Callable[..., Any], values: dict[str, Any], workers: Workers) -> None:
        self.state: Any = None  # with which the function goes on
        self._function = function
        self._values = values
        self._workers = workers
        self._own: Training | None = None  # that the function has made, and does not report itself
        self._value: Any = None
        self._since = 0  # reports since that state
        self._again = 0  # reports that were heard before
        self._is_over = False
        self._loaded: Any = None  # of the training that the function makes
        self._thread = ParkedFunction(self._run, "objective", _Over)

    def step(self) -> Any:
        """Run on to the next report. A function that has come to its end keeps its last value."""
        if self._own is None and not self._is_over:
            self._run_on()
        if self._own is not None:
            return self._own.step()
        if self._value is None:
            name = getattr(self._function, "__name__", self._function)
            raise InputError("objective", name, f"{FORMS}; it ended without any value")
        return self._value

    def save(self) -> dict[str, Any]:
        own = self._loaded if self._own is None else self._own.save()
        place = {"since": self._since + self._again, "is_over": self._is_over}
        return {"state": self.state, "value": self._value, "own": own, **place}

    def load(self, state: dict[str, Any]) -> None:
        self.state = state["state"]
        self._value = state["value"]
        self._again = state["since"]
        self._is_over = state["is_over"]
        self._loaded = state["own"]

    def close(self) -> None:
        self._thread.close(LEAVING)
        if isinstance(self._own, ClosableTraining):
            self._own.close()

    def park(self, reported: _Report) -> None:
        self._thread.park(reported)

    def _run_on(self) -> None:
        """Run to the next report, past those that were heard before, or to the end of the function."""
        for _ in range(self._again + 1):
            reported = self._thread.next()
            if reported is None:
                self._is_over = self._own is None
                break
            self._take(reported)
        self._again = 0

    def _take(self, reported: _Report) -> None:
        self._value = reported.value
        self._is_over = reported.is_last
        self._since += 1
        if reported.state is not None:
            self.state = deepcopy(reported.state)  # the function may go on to change it
            self._since = 0

    def _run(self) -> None:
        set_current_workers(self._workers, thread=True)
        _running.set(self)
        returned = self._function(self._values)
        if inspect.isgenerator(returned):
            for yielded in returned:
                self.park(_yielded(yielded))
        elif callable(getattr(returned, "step", None)):
            self._made(as_training(returned))
        elif returned is not None and self._value is None:
            self.park(_Report(returned, is_last=True))

    def _made(self, training: Training) -> None:
        """Train with what the function has made: it is no function that trains, but one that makes."""
        if self._loaded is not None:
            training.load(self._loaded)
        self._own = training


def _yielded(yielded: Any) -> _Report:
    if not isinstance(yielded, tuple):
        return _Report(yielded)
    if len(yielded) != 2:
        raise InputError("objective", yielded, "a value, or a pair of a value and a state, from each yield")
    return _Report(*yielded)


def as_training(made: Any) -> Training:
    """Return what was made, as a training. One with a `step` alone begins anew wherever it goes on."""
    names = [name for name in NEEDED if callable(getattr(made, name, None))]
    return _Unsaved(made) if names == ["step"] else _checked(made)


def _checked(made: Any) -> Training:
    missing = [name for name in NEEDED if not callable(getattr(made, name, None))]
    if missing:
        needed = f"an objective makes a training, which has {', '.join(NEEDED)}"
        raise TypeError(f"{needed}; {type(made).__name__} has no {', no '.join(missing)}")
    training: Training = made
    return training


class _Unsaved:
    """A training without `save` and `load` repeats its iterations where it goes on."""

    def __init__(self, made: Any) -> None:
        self._made = made
        self._done = 0

    def step(self) -> Any:
        self._done += 1
        return self._made.step()

    def save(self) -> int:
        return self._done

    def load(self, state: int) -> None:
        for _ in range(state):
            self.step()

    def close(self) -> None:
        if isinstance(self._made, ClosableTraining):
            self._made.close()


def takes_workers(function: Callable[..., Any]) -> bool:
    """Tell whether an objective is called with values and workers, or with values alone."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a builtin, say
        return True
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return True
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = [one for one in positional if one.default is one.empty]
    if not positional or len(needed) > 2:
        raise InputError("objective", getattr(function, "__name__", function), FORMS)
    return len(positional) > 1 and (len(needed) == 2 or positional[1].name == "workers")


def of_one_gpu(objective: Callable[..., Any] | str) -> bool:
    """Tell whether an objective knows nothing of workers, so that several GPUs would all do the same. Of one
    that is named, the file is read and not run."""
    if not isinstance(objective, str):
        return callable(objective) and not takes_workers(objective)
    where, _, name = objective.rpartition(":")
    if not where.endswith(".py") or not Path(where).is_file():
        return False
    try:
        tree = ast.parse(Path(where).read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):  # where it is opened, it says so
        return False
    named = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    return name in named and _of_values_alone(named[name])


def _of_values_alone(written: ast.FunctionDef | ast.ClassDef) -> bool:
    """Tell of an objective's source what `takes_workers` denies of the objective itself."""
    if isinstance(written, ast.ClassDef):
        makers = [one for one in written.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        names = [argument.arg for argument in makers[0].args.args[1:]] if makers else []
        needed = len(names) - len(makers[0].args.defaults) if makers else 0
    else:
        names = [argument.arg for argument in written.args.args]
        needed = len(names) - len(written.args.defaults)
    return needed == 1 and names[1:2] != ["workers"]
