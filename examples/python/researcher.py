"""A researcher writes a policy, compares it with others on the same arrivals, and looks at its decisions.

Cells begin with # %%: run them one by one in an editor or a notebook, or all of them with python.
"""

# %% A policy hears events and answers with actions: this one sends what waits as soon as a GPU is idle.
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import astrarium
from astrarium.serving.contract import Action, Dispatch, Event, Setup
from astrarium.serving.state import ServingState


class Hasty:
    """Sends the oldest request, with up to seven more of its model, whatever their deadlines."""

    def __init__(self, setup: Setup, parameters: object = None) -> None:
        pass

    def decide(self, now: int, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        for gpu in state.gpus:
            if gpu.idle and state.waiting:
                oldest = next(iter(state.waiting.values()))
                same = [request.id for request in state.waiting.values() if request.model == oldest.model]
                yield Dispatch(gpu.id, tuple(same[:8]))


# %% Its class is handed over as it is; names of registered policies stand beside it.
scenario = astrarium.load(
    {
        "cluster": {"gpus": 2},
        "models": {"resnet50": {"profile": {"alpha": "1.053ms", "beta": "5.072ms"}, "slo": "25ms"}},
        "workload": {"arrivals": "poisson", "rate": "900/s", "duration": "2s", "warmup": "200ms"},
    }
)
comparison = astrarium.compare(scenario, [Hasty, "eager", "timeout:timeout=10%", "astrarium"], seeds=2)
print(comparison)
print(comparison.summary["policy"], comparison.summary["attainment"])

# %% Rows are NumPy arrays (`.to_pandas()` makes a DataFrame of them).
run = astrarium.simulate(scenario, policy=Hasty, trace=True)
answered = run.requests["outcome"] == "in_time"
print(f"{answered.mean():.1%} in time, median {np.median(run.requests['latency_s'][answered]) * 1e3:.1f} ms")

# %% A run can be replayed: the policy is pure, so a fresh one decides the same, step by step.
print(astrarium.replay(run))
print(astrarium.replay(run, policy="eager"))

# %% Everything about the run in one folder, with pictures and a timeline.
folder = Path("runs/hasty")
if not folder.exists():
    print("saved in", run.save(folder))
