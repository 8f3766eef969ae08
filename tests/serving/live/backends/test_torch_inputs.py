"""What a PyTorch model does to its inputs stays with it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from astrarium.serving.live.backends.contract import Batch
from astrarium.serving.live.messages import BatchMember, packed
from astrarium.serving.live.shared_memory import SharedMemory
from astrarium.serving.live.worker.inputs import gathered
from tests.serving.live.backends.torch_models import X, load

pytest.importorskip("torch")

IN_PLACE = """\
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x.div_(2)
"""


@pytest.mark.filterwarnings("error")
def test_a_model_on_a_processor_that_writes_into_a_clients_inputs_has_a_copy(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(IN_PLACE)
    model = load(tmp_path, "net.py:Net")
    memory = SharedMemory.create(1 << 12)
    memory.view[:16] = struct.pack("4f", 1, 1, 1, 1)
    for _ in range(2):
        batch = gathered(memory.view, [X], packed([BatchMember(0, 1, 0, 64, 64)]))
        assert isinstance(batch, Batch)
        assert model.run(batch).outputs["OUTPUT"].tolist() == [[0.5] * 4]
