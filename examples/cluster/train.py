"""A small training job that survives: stopped anywhere, it goes on elsewhere with the very same result.

    python train.py --steps 200 --seed 7

With several processes (`processes: gpu`), each works on its part of a batch, and gradients are averaged.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from torch import distributed, nn

from astrarium import cluster_job

BATCH = 32


def batch(seed: int, step: int, rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a step, always the same: the order of data is part of what a checkpoint must bring back."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    inputs = torch.randn(BATCH, 8, generator=generator)
    targets = inputs.sin().sum(dim=1, keepdim=True)
    return inputs[rank::world], targets[rank::world]


def train(steps: int, seed: int, pause: float) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with cluster_job.session() as session:
        if session.world > 1:
            distributed.init_process_group("gloo")
        torch.manual_seed(seed + session.rank)  # weights are alike, dropout is not
        kept = session.restore()
        if kept is not None:
            model.load_state_dict(kept["model"])
            optimizer.load_state_dict(kept["optimizer"])
            torch.set_rng_state(kept["chance"][session.rank])
        for step in session.steps(steps):
            one_step(model, optimizer, batch(seed, step, session.rank, session.world), session.world)
            time.sleep(pause)  # a real model takes longer
            session.checkpoint(
                lambda: {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "chance": chances(session.world),
                }
            )
        weights = sum(float(parameter.sum()) for parameter in model.parameters())
        session.result({"weights": weights, "steps": steps})
        print(f"{os.environ.get('ASTRARIUM_APP', 'alone')}: weights {weights!r}")
        if session.world > 1:
            distributed.destroy_process_group()


def chances(world: int) -> list[torch.Tensor]:
    """Return what each process would draw next."""
    mine = torch.get_rng_state()
    if world == 1:
        return [mine]
    gathered = [torch.empty_like(mine) for _ in range(world)]
    distributed.all_gather(gathered, mine)
    return gathered


def one_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: tuple[torch.Tensor, torch.Tensor], world: int
) -> None:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(data[0]), data[1])
    loss.backward()  # type: ignore[no-untyped-call]
    if world > 1:
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
            parameter.grad /= world  # type: ignore[operator]
    optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.02)
    options = parser.parse_args()
    train(options.steps, options.seed, options.pause)
