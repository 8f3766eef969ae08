"""Would several instances of a model on a GPU help? Each instance has a stream and CUDA graphs of its own.

    python benchmarks/serving/parts/instances.py

ResNet50 and the encoder of gpu.py, in half precision, their inputs already on the GPU. For each batch size:
items/s with one instance that is given batch after batch, with two and with four, and how long a batch then
takes. Needs torch, torchvision and a CUDA GPU; takes half a minute.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import torch
from on_gpu.models import CODE, MODELS, Model

SIZES = (1, 4, 8, 16, 32, 64)
COUNTS = (1, 2, 4)


class Instance:
    """An instance holds a stream, and a graph of the network for one batch size."""

    def __init__(self, net: Any, model: Model, size: int) -> None:
        items = torch.stack([torch.from_numpy(model.item(number)) for number in range(size)]).cuda()
        self.stream = torch.cuda.Stream()
        self.graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.stream(self.stream):
            for _ in range(3):
                net(items)
        self.stream.synchronize()
        with torch.inference_mode(), torch.cuda.graph(self.graph, stream=self.stream):
            net(items)

    def run(self, batches: int) -> None:
        with torch.cuda.stream(self.stream):
            for _ in range(batches):
                self.graph.replay()


def batch_ms(instances: list[Instance], batches: int) -> float:
    """Return how long a batch takes of instances that compute side by side: the mean of as many of each."""
    begin = torch.cuda.Event(enable_timing=True)
    ends = list[Any]()
    begin.record()
    for instance in instances:
        instance.stream.wait_event(begin)
    for _ in range(batches):
        for instance in instances:
            instance.run(1)
    for instance in instances:
        ends.append(torch.cuda.Event(enable_timing=True))
        ends[-1].record(instance.stream)
    torch.cuda.synchronize()
    return float(max(begin.elapsed_time(end) for end in ends)) / batches


def rows(model: Model, net: Any, seconds: float) -> None:
    for size in SIZES:
        instances = [Instance(net, model, size) for _ in range(max(COUNTS))]
        guess = batch_ms(instances[:1], 20)
        batches = max(20, round(1e3 * seconds / guess))
        took = [batch_ms(instances[:count], batches) for count in COUNTS]
        rates = [1e3 * count * size / ms for count, ms in zip(COUNTS, took, strict=True)]
        shown = [*(f"{rate:,.0f}" for rate in rates), *(f"{rate / rates[0]:.2f}" for rate in rates[1:])]
        print(
            f"| {model.name} | {size} | {' | '.join(shown)} | {', '.join(f'{ms:.2f}' for ms in took)} |",
            flush=True,
        )


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument(
        "--seconds", type=float, default=0.5, help="of each run with one instance, .5 unless given"
    )
    options = flags.parse_args()
    print("| model | batch | items/s of 1 | of 2 | of 4 | 2 over 1 | 4 over 1 | ms a batch with 1, 2, 4 |")
    print(f"|{' --- |' * 8}")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models.py").write_text(CODE, encoding="utf-8")
        sys.path.insert(0, folder)
        models = __import__("models")
        for model in MODELS:
            rows(model, getattr(models, model.name)().half().cuda(), options.seconds)


if __name__ == "__main__":
    main()
