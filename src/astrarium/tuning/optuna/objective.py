"""Objectives of Optuna become trainings of ours.

An objective runs in a thread, from one iteration of its loop to the next, and is parked in between: there it
is saved, and there it is left. Its trial is a stand-in with the values of the candidate. The study itself
stays where the search is: there the objective is asked for its suggestions, and leaves off where its loop
would begin.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from astrarium.core.errors import InputError
from astrarium.tuning.live.training.packing import named
from astrarium.tuning.live.training.parked import ParkedFunction
from astrarium.tuning.live.training.workers import Training, Workers, set_current_workers

if TYPE_CHECKING:
    import optuna


class CandidateTrial:
    """The stand-in replaces an `optuna.Trial` where an objective trains: the study is in another process.
    *number* is that of the candidate; the objective's *loop* is told what is reported."""

    def __init__(self, values: Mapping[str, Any], workers: Workers, loop: Any) -> None:
        self.number = workers.candidate
        self.params = dict(values)
        self.user_attrs: dict[str, Any] = {}
        self.loop = loop
        self._noted = workers.noted

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(attribute for attribute in dir(type(self)) if not attribute.startswith("_"))
        raise AttributeError(f"where it trains, a trial has no {name!r}: only number, params, {known}")

    def suggest_float(self, name: str, *_: Any, **__: Any) -> float:
        return float(self._value(name))

    suggest_uniform = suggest_loguniform = suggest_discrete_uniform = suggest_float  # its older names

    def suggest_int(self, name: str, low: int, high: int, **_: Any) -> int:
        return int(self._value(name))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._value(name)

    def report(self, value: float, step: int) -> None:
        self.loop.value = float(value)

    def should_prune(self) -> bool:
        """Return False: the search decides between runs which trials go on."""
        return False

    def set_user_attr(self, key: str, value: Any) -> None:
        """Set an attribute, of which the study hears too."""
        try:
            written = json.dumps(value)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"user_attrs.{key}", value, f"what JSON can hold, as Optuna needs: {error}"
            ) from None
        self.user_attrs[key] = value
        self._noted(key, written)

    def _value(self, name: str) -> Any:
        if name not in self.params:
            raise InputError("objective", name, "suggestions that are all made before the loop begins")
        return self.params[name]


LEAVING = 10.0  # seconds that an objective may take to leave
LOOP = "an objective whose loop is over iterations(trial, ...), of astrarium.tuning"
_suggesting: ContextVar[bool] = ContextVar("suggesting", default=False)  # only for suggestions


class _SuggestionsMade(BaseException):
    """The error ends an objective that has made all its suggestions."""


class _Over(BaseException):
    """The error ends an objective that is no longer wanted here."""


class ObjectiveLoop:
    """The loop of an objective has two sides: the objective's thread, and the training that lets it go on."""

    def __init__(self, function: Callable[[], Any], workers: Workers) -> None:
        self.value: float | None = None  # the last that was reported
        self.done = 0
        self.objects = dict[str, Any]()
        self._function = function
        self._workers = workers
        self._began = False
        self._thread = ParkedFunction(self._run, "objective", _Over)

    def begin(self) -> None:
        """Run the objective up to where its loop begins."""
        self.next()
        if not self._began:
            raise InputError("objective", None, LOOP)

    def next(self) -> None:
        """Run one iteration. A loop that has come to its end keeps its last state."""
        self._thread.next()

    def close(self) -> None:
        self._thread.close(LEAVING)

    def iterate(self, count: int, objects: dict[str, Any]) -> Iterator[int]:
        self._began = True
        self.objects = objects
        self._thread.park(0)
        while self.done < count:
            yield self.done
            self.done += 1
            if self.done < count:
                self._thread.park(self.done)

    def _run(self) -> None:
        set_current_workers(self._workers, thread=True)
        try:
            returned = self._function()
        except Exception as error:
            if not self._began or type(error).__name__ != "TrialPruned":
                raise
            returned = None
        self.value = self.value if self.value is not None or returned is None else float(returned)


class ObjectiveTraining:
    def __init__(self, objective: Callable[[Any], Any], values: dict[str, Any], workers: Workers) -> None:
        self._loop = ObjectiveLoop(lambda: objective(self._trial), workers)
        self._trial: Any = CandidateTrial(values, workers, self._loop)
        try:
            self._loop.begin()
        except BaseException:  # it was dropped meanwhile, say: the thread must not stay, with its model
            self._loop.close()
            raise

    def step(self) -> float:
        self._loop.next()
        if self._loop.value is None:
            raise InputError("objective", None, "trial.report(value, epoch) in each iteration")
        return self._loop.value

    def save(self) -> dict[str, Any]:
        objects = {name: plain(wrapped).state_dict() for name, wrapped in self._loop.objects.items()}
        report = {"value": self._loop.value, "user_attrs": self._trial.user_attrs}
        return {"done": self._loop.done, "objects": objects, **report}

    def load(self, state: dict[str, Any]) -> None:
        self._loop.done = state["done"]
        self._loop.value = state["value"]
        self._trial.user_attrs.update(state["user_attrs"])
        for name, object_state in state["objects"].items():
            plain(self._loop.objects[name]).load_state_dict(object_state)

    def close(self) -> None:
        self._loop.close()


@dataclass(frozen=True)
class ObjectiveBuild:
    """The build makes a training of an objective, or of its name."""

    objective: Callable[[Any], Any] | str

    @property
    def function(self) -> Callable[[Any], Any]:
        return named(self.objective) if isinstance(self.objective, str) else self.objective

    def __call__(self, values: dict[str, Any], workers: Workers) -> Training:
        return ObjectiveTraining(self.function, values, workers)

    def suggest(self, trial: optuna.Trial) -> None:
        """Make the objective choose. An error of its own before its loop comes again where it trains, and
        ends that trial only."""
        before = _suggesting.set(True)
        try:
            self.function(trial)
        except _SuggestionsMade:
            return
        except InputError:
            raise
        except Exception:
            return
        finally:
            _suggesting.reset(before)
        raise InputError("objective", self.objective, LOOP)


def iterations(trial: Any, count: int, **objects: Any) -> Iterable[int]:
    """Return the numbers of an objective's iterations, from where its checkpoint was written.

    The *objects*, such as model and optimizer, are what the checkpoint consists of: each has `state_dict` and
    `load_state_dict`. Where Optuna runs the objective itself, this is range(count).
    """
    for name, wrapped in objects.items():
        if not hasattr(plain(wrapped), "state_dict") or not hasattr(plain(wrapped), "load_state_dict"):
            raise InputError(f"iterations.{name}", wrapped, "an object with state_dict and load_state_dict")
    if _suggesting.get():
        raise _SuggestionsMade
    return trial.loop.iterate(count, objects) if isinstance(trial, CandidateTrial) else range(count)


def plain(wrapped: Any) -> Any:
    """Return a model without the wrapper of `Workers.parallel`: another number of workers has another."""
    return wrapped.module if type(wrapped).__name__ == "DistributedDataParallel" else wrapped
