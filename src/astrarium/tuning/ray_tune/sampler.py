"""The sampler takes configurations from any search algorithm of Ray Tune (`ray.tune.search.Searcher`),
without Ray Tune's loop.

The searcher hears each value as the result of a trial after so many training iterations, and of each trial's
end once. Copies that a search makes of candidates are its own: a searcher cannot be told of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from astrarium.core.errors import InputError
from astrarium.core.optional import from_extra
from astrarium.tuning.samplers import Configuration, CountingSampler, Goal, Standing
from astrarium.tuning.spaces import Choice, Range, Values

if TYPE_CHECKING:
    from ray.tune.search import Searcher


class RayTuneSampler(CountingSampler):
    """The sampler asks a searcher. *space* as Ray Tune writes it or as ours; None where the searcher was made
    with one. *metric* is the name of values in results, where the searcher has no name for them yet."""

    def __init__(
        self,
        searcher: Searcher,
        space: Mapping[str, Any] | None = None,
        goal: Goal | None = None,
        metric: str = "value",
    ) -> None:
        with from_extra("tune"):
            from ray.tune.search import ConcurrencyLimiter, Searcher
        if not isinstance(searcher, Searcher):
            raise InputError("searcher", searcher, "a Searcher of ray.tune.search")
        if isinstance(searcher, ConcurrencyLimiter):
            expected = "the searcher itself: how many run at a time is up to the search"
            raise InputError("searcher", type(searcher).__name__, expected)
        if space is not None or goal is not None or not searcher.mode:
            _set(searcher, metric, goal, space)
        mode: Any = searcher.mode
        if mode not in ("min", "max"):
            expected = "a searcher with one metric and a goal: min or max"
            raise InputError("searcher", type(searcher).__name__, expected)
        super().__init__()
        self.goal = mode
        self._searcher = searcher
        self._metric = searcher.metric or metric
        self._last: dict[int, dict[str, Any]] = {}
        self._own: set[int] = set()

    def ask(self) -> Configuration | None:
        values: Any = self._searcher.suggest(_name(self._next))
        return None if values in (None, self._searcher.FINISHED) else super().adopt(values)

    def adopt(self, values: Values) -> Configuration:
        self._own.add(self._next)
        return super().adopt(values)

    def observe(self, id: int, iterations: int, value: float) -> None:
        if id not in self._own:
            result = {self._metric: value, "training_iteration": iterations, "trial_id": _name(id)}
            self._last[id] = result
            self._searcher.on_trial_result(_name(id), result)

    def report(self, id: int, iterations: int, value: float) -> bool:
        self.observe(id, iterations, value)
        return False

    def tell(self, id: int, value: float | None, standing: Standing) -> None:
        """Tell the searcher how a trial ended; one that was withdrawn early has no result, and no error."""
        if id not in self._own:
            result = self._last.pop(id, None)
            failed = standing is Standing.FAILED
            self._searcher.on_trial_complete(_name(id), None if failed else result, error=failed)


def _name(id: int) -> str:
    return f"{id:05d}"


def _set(searcher: Searcher, metric: str, goal: Goal | None, space: Mapping[str, Any] | None) -> None:
    """Set space and goal. A searcher that was made with its own refuses others."""
    config = {name: _domain(dimension) for name, dimension in (space or {}).items()}
    if not searcher.set_search_properties(searcher.metric or metric, goal, config):
        expected = "a searcher that has none yet; it was made with its own"
        raise InputError("space" if space else "goal", type(searcher).__name__, expected)


def _domain(dimension: Any) -> Any:
    """Return a dimension of ours in Ray Tune's form; its own, and plain values, stay what they are."""
    from ray import tune

    if isinstance(dimension, Choice):
        return tune.choice(list(dimension.options))
    if not isinstance(dimension, Range):
        return dimension
    low = dimension.low
    high = dimension.high
    if dimension.whole:
        whole = tune.lograndint if dimension.log else tune.randint
        return whole(int(low), int(high) + 1)
    return tune.loguniform(low, high) if dimension.log else tune.uniform(low, high)
