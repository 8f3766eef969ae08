"""An operator of a cluster asks which policy is fair to teams, and what one GPU does for several jobs.

Cells begin with # %%: run them one by one in an editor or a notebook, or all of them with python.
"""

# %% Which policy lets nobody wait too long? The apps of the example, on the same machines.
from pathlib import Path

import numpy as np

import astrarium

EXAMPLES = Path(__file__).resolve().parent.parent
scenario = astrarium.load(EXAMPLES / "cluster" / "cluster.yaml", seed=3)
comparison = astrarium.compare(scenario, ["tiresias:lease=10min", "drf", "themis"])
print(comparison)

# %% Who waited longest, and who held what?
run = comparison[0]
longest = int(np.nanargmax(run.apps["waited_s"]))
print(f"{run.apps['app'][longest]} waited {run.apps['waited_s'][longest] / 60:.0f} min")
held = run.leases["end_s"] - run.leases["start_s"]
print(f"{held.sum() / 3600:.0f} GPU-hours in {len(run.leases)} leases")

# %% Why? Every decision has its reason.
for at, app, why in zip(*(run.decisions[name][:3] for name in ("at_s", "app", "why")), strict=True):
    print(f"{at:8.0f} s  {app}: {why}")

# %% One GPU that jobs share: what does it bring to let the shortest go first?
jobs = astrarium.compare(EXAMPLES / "jobs.yaml", ["fifo", "srtf", "pack"])
print(jobs)

# %% Wrong input is named, with what would be right.
try:
    astrarium.load(scenario.source, {"policy.name": "tiresius"})
except astrarium.InputError as error:
    print(error)
