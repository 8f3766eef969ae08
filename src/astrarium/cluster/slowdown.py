"""How much slower a job gets when its GPUs are apart: S of Themis (4.3.1), by model, network and spread.

Until a placement was seen, S is a guess. What a job's own pace shows takes the guess's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from astrarium.cluster.machines import Spread

Spreads = Mapping[Spread, float]
GUESS: Spreads = {Spread.SLOT: 1.0, Spread.MACHINE: 1.0, Spread.RACK: 1.1, Spread.CLUSTER: 1.3}
NEWEST = 0.5  # weight of the latest look: iteration times are noisy


@dataclass
class Slowdowns:
    """*known* by model and network; a network of "" stands for all."""

    known: dict[tuple[str, str], dict[Spread, float]] = field(default_factory=dict)
    guess: Spreads = field(default_factory=lambda: dict(GUESS))

    def of(self, model: str, network: str, spread: Spread) -> float:
        for key in ((model, network), (model, "")):
            found = self.known.get(key, {}).get(spread)
            if found is not None:
                return found
        return self.guess[spread]

    def learn(self, model: str, network: str, spread: Spread, seen: float) -> None:
        """Nobody gets faster by being apart: less than 1 is noise."""
        table = self.known.setdefault((model, network), {})
        seen = max(1.0, seen)
        before = table.get(spread, seen)
        table[spread] = before + NEWEST * (seen - before)
