"""Trials of a search packed on one GPU: as processes under the gate, and in lanes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import astrarium
from astrarium.tuning.state import Outcome

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

TRAINING = """
import torch
from torch import nn


class Training:
    def __init__(self, values, workers):
        torch.manual_seed(workers.seed)
        chance = torch.Generator(workers.device).manual_seed(1)
        self.inputs = torch.randn(256, 32, device=workers.device, generator=chance)
        self.model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(workers.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=values["rate"], momentum=0.9)

    def step(self):
        for _ in range(20):
            self.optimizer.zero_grad()
            loss = (self.model(self.inputs).squeeze() - self.inputs.sum(1)).pow(2).mean()
            loss.backward()
            self.optimizer.step()
        return float(loss)

    def save(self):
        return self.model.state_dict(), self.optimizer.state_dict()

    def load(self, state):
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])


def build(values, workers):
    return Training(values, workers)
"""


def values(folder: Path, policy: str, **how: Any) -> dict[int, float]:
    """Of successive halving with nine candidates, all of whose trials must finish."""
    path = folder / "training.py"
    path.write_text(TRAINING)
    space = {"rate": {"low": 1e-4, "high": 1e-2, "log": True}}
    halving = "successive-halving:candidates=9,iterations=9"
    record = astrarium.tune(f"{path}:build", space, halving, policy, gpus=1, live={"slots": 4, **how}).record
    assert [row.reason for row in record.rows if row.outcome is not Outcome.FINISHED] == []
    assert sum(row.place is not None for row in record.rows) == 0
    return {candidate.number: candidate.history[-1].value for candidate in record.candidates}


@pytest.mark.parametrize("gate", [False, True])
def test_packed_processes_learn_what_trials_alone_learn(tmp_path: Path, gate: bool) -> None:
    alone = values(tmp_path, policy="fifo", gate=False)
    packed = values(tmp_path, policy="dynamic-fluid", gate=gate)
    assert packed == pytest.approx(alone, rel=1e-2)


def test_trials_share_a_process_by_lanes(tmp_path: Path) -> None:
    """Their random numbers are not their own there, but nothing after the first weights is drawn."""
    best = values(tmp_path, policy="dynamic-fluid", packing="lanes", gate=False)
    assert len(best) == 9
    assert all(value < 40 for value in best.values())
