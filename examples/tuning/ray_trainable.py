"""A PyTorch trainable of Ray Tune that can be spread over several GPUs: lines with `workers()` are ours.

    python examples/tuning/ray_trainable.py                # on this machine
    python examples/tuning/ray_trainable.py --engine ray   # on a Ray cluster

GPUs are emulated where there are none.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import ray.tune
import torch

from astrarium.tuning import Emulated, SuccessiveHalving, workers
from astrarium.tuning.ray_tune import fit

POINTS = torch.linspace(-2, 2, 64).unsqueeze(1)


class Sine(ray.tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self.device = workers().device
        layers = torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
        self.model = torch.nn.Sequential(*layers).to(self.device)
        self.parallel = workers().parallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config["rate"], momentum=0.9)

    def step(self) -> dict[str, Any]:
        batch = workers().share(POINTS.to(self.device))
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.parallel(batch), torch.sin(2 * batch))
        loss.backward()
        self.optimizer.step()
        workers().emulate(0.1)  # only where GPUs are emulated
        return {"loss": workers().mean(float(loss))}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        state = self.model.state_dict(), self.optimizer.state_dict()
        torch.save(state, os.path.join(checkpoint_dir, "state.pt"))

    def load_checkpoint(self, checkpoint: Any) -> None:
        model, optimizer = torch.load(os.path.join(checkpoint, "state.pt"), weights_only=True)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--gpus", type=int, default=4)
    options = parser.parse_args()
    emulated = False if torch.cuda.is_available() else Emulated(packing=1.2, scaling=1.1)
    result = fit(
        Sine,
        param_space={"rate": ray.tune.loguniform(0.001, 0.3)},
        metric="loss",
        search=SuccessiveHalving(candidates=9, iterations=9),
        spread=4,
        engine=options.engine,
        gpus=options.gpus,
        emulated=emulated,
    )
    print(f"loss {result.best.value:.3f} with {result.best.config}")


if __name__ == "__main__":
    main()
