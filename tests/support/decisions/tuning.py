"""What tuning policies decide under every search."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

from astrarium.run.experiment import simulate as simulate_level
from astrarium.tuning.level import LEVEL as TUNING
from astrarium.tuning.policies import tuning_policies
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.scenario.read import TuningScenario
from astrarium.tuning.scenario.read import parse as parse_tuning
from tests.support.decisions.digests import Case, Rows, Runs, rounded, values
from tests.support.decisions.scenarios import EXAMPLES, SEED, one_of
from tests.support.scenario_files import load_tuning

TUNED = ["hyperband", "live", "pbt"]


def tuned_example(name: str) -> TuningScenario:
    return load_tuning(EXAMPLES / "tuning" / f"{name}.yaml", SEED)


def tuned_searches(name: str) -> dict[str, TuningScenario]:
    """With other searches than its own; but known tasks have large grids."""
    own = tuned_example(name)
    home = EXAMPLES / "tuning" / name
    others = {search: how for search, how in SEARCHES.items() if search not in (own.search.name, "grid")}
    return {search: parse_tuning({**own.raw, "search": how}, home) for search, how in others.items()}


SEARCHES: dict[str, dict[str, Any]] = {
    "asha": {"name": "asha", "candidates": 18, "iterations": 9, "eta": 3, "smallest": 1, "concurrency": 6},
    "bohb": {"name": "bohb", "iterations": 9, "eta": 3, "passes": 1, "concurrency": 6},
    "grid": {"name": "grid", "iterations": 4},
    "hyperband": {"name": "hyperband", "iterations": 9, "eta": 3, "passes": 2, "brackets_at_once": 2},
    "pbt": {"name": "pbt", "population": 8, "iterations": 12, "interval": 3, "replaced": 0.25, "seed": 1},
    "random": {"name": "random", "candidates": 16, "iterations": 6},
    "successive-halving": {
        "name": "successive-halving", "candidates": 18, "iterations": 9, "eta": 3, "smallest": 1
    },
    "sync-bohb": {"name": "sync-bohb", "iterations": 9, "eta": 3, "passes": 2},
}  # fmt: skip


def random_searches(seed: int) -> dict[str, TuningScenario]:
    return {search: random_tuning(seed, search) for search in SEARCHES}


def random_tuning(seed: int, search: str) -> TuningScenario:
    draw = Random(f"tuning {seed}")
    task = {
        "iteration": f"{draw.randint(200, 20000)}ms",
        "start": 0.1,
        "reach": one_of(draw, 0.9, 0.01),
        "patience": draw.randint(2, 8),
        "noise": 0.01,
        "spread": one_of(draw, 0.0, 0.3),
        "packing": one_of(draw, 1.05, 1.3, 1.8),
        "scaling": one_of(draw, 1.05, 1.2, 1.6),
        "knobs": {
            "rate": {"best": draw.randint(2, 8) / 10, "weight": 2.0, "slower": 1.0},
            "size": {"best": 0.7, "weight": 0.3, "slower": one_of(draw, 0.5, 2.0)},
        },
    }
    return parse_tuning(
        {
            "task": task,
            "space": {"rate": {"low": 0.001, "high": 1.0, "log": True}, "size": {"options": [8, 16, 32]}},
            "search": SEARCHES[search],
            "gpus": draw.randint(2, 8),
            "policy": {"name": "fifo"},
            "seed": seed,
            "costs": {"starting": "500ms", "moving": one_of(draw, "0s", "2s", "10s"), "profile": seed % 3},
        }
    )


def tuning(scenario: TuningScenario) -> Runs:
    for name in tuning_policies.names():
        own = scenario.policy.name == name
        chosen = scenario if own else scenario.with_policy(name)
        yield name, "python", trials(simulate_level(TUNING, chosen).record)


def searching(scenarios: dict[str, TuningScenario]) -> Runs:
    """Every policy with every search."""
    for search, scenario in scenarios.items():
        for name, engine, rows in tuning(scenario):
            yield f"{name}+{search}", engine, rows


def trials(record: TuningRecord) -> Rows:
    """What the policy decided, and what the search did: candidates, and how long each was trained."""
    rows = [[at, *values(action, {})] for at, action in record.decisions]
    rows += [
        ["trial", row.trial.id, row.trial.group, row.trial.candidate, row.trial.begins, row.trial.iterations,
         row.ended, int(row.outcome)]
        for row in record.rows
    ]  # fmt: skip
    for candidate in record.candidates:
        rows.append(
            [
                "candidate",
                candidate.number,
                candidate.source,
                int(candidate.standing),
                _plain(candidate.values),
            ]
        )
    return rows


def _plain(known: dict[str, Any]) -> list[list[Any]]:
    return [
        [name, rounded(value) if isinstance(value, float) else value] for name, value in sorted(known.items())
    ]


def cases() -> Iterator[Case]:
    for name in TUNED:
        yield Case("tuning", name, tuning, partial(tuned_example, name))
        yield Case("tuning", f"{name}-searches", searching, partial(tuned_searches, name))
    for seed in range(1, 6):
        yield Case("tuning", f"random-{seed}", searching, partial(random_searches, seed), seed > 3)
