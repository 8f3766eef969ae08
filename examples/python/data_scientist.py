"""A data scientist asks what a search would take, and then tunes a model with it, on shares of GPUs.

Cells begin with # %%: run them one by one in an editor or a notebook, or all of them with python.
"""

# %% First simulated: how much sooner does the same search end if small trials share GPUs?
from typing import Any

import astrarium
from astrarium.tuning import DynamicFluid, Hyperband, SuccessiveHalving, Workers

search = Hyperband(iterations=27, eta=3)
scenario = astrarium.load({"task": "cifar10-alexnet", "search": search, "gpus": 4})
comparison = astrarium.compare(scenario, ["fifo", DynamicFluid(packed=4)])
print(comparison)


# %% Then live. A training has `step`, `save` and `load`; it is built of a candidate's values.
class Parabola:
    """Goes down the slope of x squared; with PyTorch, a model and an optimizer would stand here."""

    def __init__(self, values: dict[str, Any], workers: Workers) -> None:
        self.rate = values["rate"]
        self.workers = workers
        self.x = 4.0

    def step(self) -> float:
        self.x -= self.rate * 2 * self.x
        self.workers.emulate(0.005)  # only where GPUs are emulated: what it takes on one alone
        return self.x**2

    def save(self) -> float:
        return self.x

    def load(self, state: float) -> None:
        self.x = state


# %% GPUs are emulated here. Leave `gpus` and `emulated` out, and all GPUs of this machine are used.
if __name__ == "__main__":
    result = astrarium.tune(
        Parabola,
        space={"rate": {"low": 0.001, "high": 1.2, "log": True}},
        search=SuccessiveHalving(candidates=6, iterations=9),
        policy=DynamicFluid(packed=4),
        gpus=1,
        emulated=True,
        longest="10min",  # a trial whose iteration hangs for longer fails
    )
    print("the best:", result.best.config, result.best.value)
    print(result.candidates)
