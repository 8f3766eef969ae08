"""A small PyTorch training: what it is worth does not depend on where it trains, but for rounding."""

from __future__ import annotations

from typing import Any

from astrarium.tuning.live.training.workers import Workers

SECONDS = 0.15  # an iteration, on an emulated GPU by itself


class Small:
    """Two layers that learn a noisy sine, with momentum. All that it knows is in what it saves."""

    def __init__(self, values: dict[str, Any], workers: Workers) -> None:
        import torch

        torch.manual_seed(3)
        layers = torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        self._model = torch.nn.Sequential(*layers).double()
        self._trained = workers.parallel(self._model)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=values["rate"], momentum=0.9)
        self._workers = workers
        self._seconds = values.get("seconds", SECONDS)
        self._x = torch.linspace(-2, 2, 48).double().unsqueeze(1)

    def step(self) -> float:
        import torch

        chosen = torch.randperm(48)[:24]
        batch = self._workers.share(self._x[chosen])
        target = torch.sin(2 * batch)
        self._optimizer.zero_grad()
        torch.nn.functional.mse_loss(self._trained(batch), target).backward()
        self._optimizer.step()
        self._workers.emulate(self._seconds)
        with torch.no_grad():
            loss = torch.nn.functional.mse_loss(self._model(self._x), torch.sin(2 * self._x))
        return float(loss)

    def save(self) -> Any:
        return self._model.state_dict(), self._optimizer.state_dict()

    def load(self, state: Any) -> None:
        self._model.load_state_dict(state[0])
        self._optimizer.load_state_dict(state[1])


def build(values: dict[str, Any], workers: Workers) -> Small:
    return Small(values, workers)
