"""Orion's toy experiment on this GPU: a convolution beside a batch normalization, and each beside itself.

    python benchmarks/gpu/table2.py --out table2.json

Pairs run one after the other on one stream, and at the same time on two. Sizes are chosen so that each kernel
takes about as long as in the paper's Table 2. Medians over repetitions, with the spread.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from itertools import combinations_with_replacement
from pathlib import Path

import torch
from pair import aligned

Kernel = Callable[[], torch.Tensor]
HEADER = ("pair", "sequential ms", "collocated ms", "speedup", "spread", "paper")
PAPER = {"Conv2d-Conv2d": 0.98, "BN2d-BN2d": 1.08, "Conv2d-BN2d": 1.41}
MANY = 20  # of each kernel in a repetition: the launch itself is not what is measured
SLEEP_CYCLES = 4_000_000


def convolution(batch: int) -> Kernel:
    layer = torch.nn.Conv2d(128, 128, 3, padding=1).cuda()
    data = torch.randn(batch, 128, 56, 56, device="cuda")
    return lambda: layer(data)


def normalization(batch: int) -> Kernel:
    layer = torch.nn.BatchNorm2d(256).cuda()
    data = torch.randn(batch, 256, 56, 56, device="cuda")
    return lambda: layer(data)


def took(first: Kernel, second: Kernel, streams: tuple[torch.cuda.Stream, torch.cuda.Stream]) -> float:
    """Return the milliseconds of a pair, launched while the GPU sleeps so that both are there when it
    wakes."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    main = torch.cuda.current_stream()
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    begin.record()
    for stream in streams:
        stream.wait_stream(main)
    for _ in range(MANY):
        for kernel, stream in zip((first, second), streams, strict=True):
            with torch.cuda.stream(stream):
                kernel()
    for stream in streams:
        main.wait_stream(stream)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / MANY


def compared(first: Kernel, second: Kernel, repetitions: int) -> tuple[float, float, list[float]]:
    same_stream = torch.cuda.Stream()
    other_stream = torch.cuda.Stream()
    rounds = [
        (took(first, second, (same_stream, same_stream)), took(first, second, (same_stream, other_stream)))
        for _ in range(repetitions)
    ]
    ratios = [sequential / collocated for sequential, collocated in rounds[1:]]  # the first warms up
    sequential, collocated = (statistics.median(times) for times in zip(*rounds[1:], strict=True))
    return sequential, collocated, sorted(ratios)


def main() -> None:
    chosen = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    chosen.add_argument("--batches", default="32,256", help="images at a time; the paper has 32")
    chosen.add_argument("--repetitions", type=int, default=11)
    chosen.add_argument("--out", type=Path)
    options = chosen.parse_args()
    results = {}
    rows = []
    for batch in map(int, options.batches.split(",")):
        kernels = {"Conv2d": convolution(batch), "BN2d": normalization(batch)}
        with torch.inference_mode():
            for left, right in combinations_with_replacement(kernels, 2):
                name = f"{left}-{right}"
                sequential, collocated, ratios = compared(kernels[left], kernels[right], options.repetitions)
                results[f"{name} b{batch}"] = [sequential, collocated, ratios]
                spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
                speedup = f"{sequential / collocated:.2f}"
                times = (f"{sequential:.3f}", f"{collocated:.3f}")
                rows.append((f"{name} b{batch}", *times, speedup, spread, f"{PAPER[name]:.2f}"))
    print(aligned(HEADER, rows))
    if options.out:
        options.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
