"""Kernel traces for the simulator: each workload runs for some iterations under the gate, which records them.

    python benchmarks/gpu/record.py --out papers/src/astrarium_papers/kernels/recorded

Every iteration is launched while the GPU is kept asleep, so that its kernels run one right after the other:
what is measured is their own time and not the gaps of the program that launches them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from gate import INFERENCE, TRAINING
from models import build

from astrarium.gate import library
from astrarium.gate.client import Client, client_environment
from astrarium.gate.driver import find_driver
from astrarium.gate.marking import NotUnderTheGate, phase_end

ITERATIONS = 12
SLEEP_CYCLES = 60_000_000  # some 30 ms: longer than it takes to launch an iteration
ASLEEP = "spin_kernel"  # what keeps the GPU asleep: no part of the workload
NAME_LENGTH = 72  # of a kernel's name: enough to tell what it is
PATIENCE = 240.0


def inference(model: str, batch: int) -> Callable[[], None]:
    work = build(model)
    module = work.module("cuda").eval()
    inputs = work.batch(batch, "cuda").inputs

    def once() -> None:
        with torch.inference_mode():
            work.answer(module(*inputs))

    return once


def phase_ends() -> None:
    """Do nothing: nobody need listen."""
    with suppress(NotUnderTheGate):
        phase_end()


def training(model: str, batch: int) -> Callable[[], None]:
    work = build(model)
    module = work.module("cuda").train()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    inputs, targets = work.batch(batch, "cuda")

    def once() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = work.loss(module(*inputs), targets)
        phase_ends()
        loss.backward()
        optimizer.step()
        phase_ends()

    return once


def workload(purpose: str, model: str, batch: int) -> Callable[[], None]:
    torch.set_num_threads(1)
    return {"inference": inference, "training": training}[purpose](model, batch)


def run(purpose: str, model: str, batch: int) -> None:
    """In the process that is recorded."""
    once = workload(purpose, model, batch)
    for _ in range(ITERATIONS):
        torch.cuda._sleep(SLEEP_CYCLES)
        once()
        torch.cuda.synchronize()


def record(purpose: str, model: str, batch: int, out: Path) -> Path:
    path = out / f"{model}-{purpose}-b{batch}.tsv"
    gate = library.prepared(library.gate_library(), find_driver(), library.private_home())
    client = Client(model, os.environ.get("CUDA_VISIBLE_DEVICES", "0"), record=path)
    command = [sys.executable, __file__, "--run", purpose, model, str(batch)]
    subprocess.run(command, env=client_environment(os.environ, gate, client), check=True, timeout=PATIENCE)
    path.write_text("\n".join(shortened(path.read_text().splitlines())) + "\n")
    return path


def shortened(lines: list[str]) -> list[str]:
    """Only the kernels of an iteration, without what kept the GPU asleep, and with short names."""
    cells = [line.split("\t") for line in lines]
    asleep = {row[1] for row in cells if row[0] == "kernel" and ASLEEP in row[2]}
    order = [number for row in cells if row[0] == "launches" for number in row[1].split()]
    used = sorted(set(order) - asleep, key=int)
    numbers = {number: str(new) for new, number in enumerate(used)}
    return ["\t".join(row) for row in (short(row, numbers) for row in cells) if row]


def short(row: list[str], numbers: dict[str, str]) -> list[str]:
    if row[0] == "kernel":
        known = row[1] in numbers
        return ["kernel", numbers[row[1]], row[2][:NAME_LENGTH], *row[3:]] if known else []
    if row[0] == "launches":
        return ["launches", " ".join(numbers[number] for number in row[1].split() if number in numbers)]
    if row[0] == "phase":
        return ["phase", str(int(row[1]) - 1)]  # the sleeper was the first launch
    return row


def main() -> None:
    chosen = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    chosen.add_argument("--out", type=Path, default=Path("kernels"))
    chosen.add_argument("--inference", default=INFERENCE, help="model:batch,...")
    chosen.add_argument("--training", default=TRAINING + ",transformer:8", help="model:batch,...")
    chosen.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = chosen.parse_args()
    if options.run:
        return run(options.run[0], options.run[1], int(options.run[2]))
    options.out.mkdir(parents=True, exist_ok=True)
    for purpose in ("inference", "training"):
        for word in filter(None, getattr(options, purpose).split(",")):
            model, batch = word.split(":")
            print(record(purpose, model, int(batch), options.out), flush=True)
    return None


if __name__ == "__main__":
    main()
