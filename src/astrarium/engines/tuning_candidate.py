"""What an objective of Optuna is given where it trains: the study, and its trial, are in another process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from astrarium.core.errors import InputError
from astrarium.engines.tuning_training import Workers


class CandidateTrial:
    """Stands in for an `optuna.Trial`. *number* is that of the candidate; *loop* that of the objective, which
    is told what is reported."""

    def __init__(self, values: Mapping[str, Any], workers: Workers, loop: Any) -> None:
        self.number, self.params = workers.candidate, dict(values)
        self.user_attrs: dict[str, Any] = {}
        self.loop, self._noted = loop, workers.noted

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(each for each in dir(type(self)) if not each.startswith("_"))
        raise AttributeError(f"where it trains, a trial has no {name!r}: only number, params, {known}")

    def suggest_float(self, name: str, low: float, high: float, **_: Any) -> float:
        return float(self._value(name))

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        return float(self._value(name))

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        return float(self._value(name))

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        return float(self._value(name))

    def suggest_int(self, name: str, low: int, high: int, **_: Any) -> int:
        return int(self._value(name))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._value(name)

    def report(self, value: float, step: int) -> None:
        self.loop.value = float(value)

    def should_prune(self) -> bool:
        """Who goes on is decided between runs, by the search."""
        return False

    def set_user_attr(self, key: str, value: Any) -> None:
        """The study hears of it, too."""
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
