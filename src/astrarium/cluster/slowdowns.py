"""Jobs get slower when their GPUs are apart: how much is told, or learnt from runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from astrarium.cluster.machines import Spread
from astrarium.core.quantities import Time

Spreads = Mapping[Spread, float]
GUESS: Spreads = {Spread.SLOT: 1.0, Spread.MACHINE: 1.0, Spread.RACK: 1.1, Spread.CLUSTER: 1.3}
NEWEST = 0.5  # weight of the latest look: iteration times are noisy


class JobProgress(NamedTuple):
    """How far a run *came* since it was last heard of, on so many *gpus* that it uses. *ended*: it is done,
    and the books take it that its owner's guess was right."""

    app: int
    job: int
    run: int
    model: str
    network: str
    spread: Spread
    gpus: int
    now: Time
    took: Time
    done: Time
    came: Time
    ended: bool


@dataclass
class Slowdowns:
    """How much slower a job gets when its GPUs are apart (S of Themis, 4.3.1). *known* is by model and
    network; a network of "" stands for all."""

    known: dict[tuple[str, str], dict[Spread, float]] = field(default_factory=dict)
    guess: Spreads = field(default_factory=lambda: dict(GUESS))

    def of(self, model: str, network: str, spread: Spread) -> float:
        for key in ((model, network), (model, "")):
            slowdown = self.known.get(key, {}).get(spread)
            if slowdown is not None:
                return slowdown
        return self.guess[spread]

    def hear(self, progress: JobProgress) -> None:
        if progress.took > 0 and progress.came > 0 and progress.gpus > 1:
            self.learn(
                progress.model,
                progress.network,
                progress.spread,
                progress.gpus * progress.took / progress.came,
            )

    def learn(self, model: str, network: str, spread: Spread, seen: float) -> None:
        """Learn from a slowdown that was seen; less than 1 is noise, as being apart makes no job faster."""
        table = self.known.setdefault((model, network), {})
        seen = max(1.0, seen)
        before = table.get(spread, seen)
        table[spread] = before + NEWEST * (seen - before)
