"""A worker on a real GPU, fed straight through its line and shared memory with batches back to back.

    python benchmarks/serving/parts/worker_pipeline.py
    python benchmarks/serving/parts/worker_pipeline.py --sizes 64 --modes native --values 1 2 256 1 2 256

ResNet50 on images of 150 kB and an encoder of the size of BERT-base, as in gpu.py. One worker runs batch
after batch (`run`: gather, copy, compute, copy, answer), another launches them ahead from Python
(`launch`), and a third does so without Python (`native`, which is what a server has). For each
size: items/s, the share of the time in which the GPU computes, and CPU time of the worker for a batch; of a
batch of one that is alone, the time from its order to its replies. How long the GPU computes a batch is told
by CUDA events of the batches that were launched ahead, for both. `--values` is how many different numbers the
inputs have: a GPU that multiplies zeros needs less power and is faster. Takes a minute and needs torch,
torchvision and a CUDA GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product, starmap
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from on_gpu.models import CODE, MODELS, Model
from processes import stat

from astrarium.core.optional import extension
from astrarium.serving.live.backends.contract import ModelFiles
from astrarium.serving.live.backends.torch import TorchModel
from astrarium.serving.live.backends.torch.cuda_runner import CudaRunner
from astrarium.serving.live.layout import aligned
from astrarium.serving.live.messages import (
    LARGEST_MESSAGE,
    BatchDone,
    BatchMember,
    LoadModel,
    ModelLoaded,
    Order,
    RunBatch,
    Stop,
    WorkerUp,
    decode_news,
    encode,
    packed,
    plain_files,
)
from astrarium.serving.live.shared_memory import SharedMemory
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker.__main__ import main as worker_main

MODES = ("run", "launch", "native")
ROOM = 8192  # bytes for an answer: ResNet50's 1000 numbers, and more than enough for the encoder's
SETS = 4  # of items in shared memory: no batch finds its inputs in a cache because it was the last one
AHEAD = 3  # orders that the worker has
ALONE = 100  # batches of one, with a pause before each
PATIENCE = 120.0


class Measurement(NamedTuple):
    model: str
    size: int
    values: int  # different ones in the inputs
    mode: str
    items: float  # a second
    compute_ms: float  # as the worker tells it
    interval_ms: float  # from batch to batch
    cpu_us: float  # of the worker for a batch


class WorkerProcess:
    """A worker process with both models, spoken to over its connection."""

    def __init__(self, mode: str, memory: SharedMemory, device: str) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._connection, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LARGEST_MESSAGE)
        self._connection.settimeout(PATIENCE)
        command = [sys.executable, __file__, "--worker", mode]
        arguments = [theirs.fileno(), memory.fd, memory.size, 0, "gpu", device]
        fds = theirs.fileno(), memory.fd
        self.process = subprocess.Popen([*command, *map(str, arguments)], pass_fds=fds)
        theirs.close()

    def say(self, order: Order) -> None:
        self._connection.send(encode(order))

    def hear(self, kind: type[Any]) -> Any:
        news = decode_news(self._connection.recv(LARGEST_MESSAGE))
        assert isinstance(news, kind), news
        return news

    def cpu_s(self) -> float:
        process = stat(self.process.pid)
        return process.cpu_s if process else 0.0


class Items(NamedTuple):
    """Items of a model in shared memory, from *first* on, in SETS sets of up to *most*."""

    model: Model
    number: int
    first: int
    most: int

    @property
    def block(self) -> int:
        return aligned(self.model.item_bytes) + ROOM

    @property
    def end(self) -> int:
        return self.first + SETS * self.most * self.block

    def fill(self, memory: SharedMemory, values: int) -> None:
        chance = np.random.default_rng(0)
        for at in range(self.first, self.end, self.block):
            low = chance.integers(values, size=self.model.shape).astype(_dtype(self.model))
            memory.view[at : at + low.nbytes] = low.tobytes()

    def order(self, tag: int, size: int) -> RunBatch:
        start = self.first + tag % SETS * self.most * self.block
        blocks = range(start, start + size * self.block, self.block)
        replies = [BatchMember(at, 1, 0, at + self.block - ROOM, ROOM) for at in blocks]
        return RunBatch(tag, self.number, packed(replies))


def _dtype(model: Model) -> Any:
    return {"INT64": np.int64, "UINT8": np.uint8}[model.datatype]


class Case(NamedTuple):
    """What each row of the table differs in; the models have a table each."""

    size: int
    values: int
    mode: str


def back_to_back(worker: WorkerProcess, items: Items, case: Case, seconds: float) -> Measurement:
    """Keep the worker supplied; what was before the first second is not counted."""
    size = case.size
    orders = [items.order(run, size) for run in range(SETS)]
    sent = 0
    news = list[BatchDone]()
    before = 0.0
    begin = time.monotonic()
    while time.monotonic() < begin + 1 + seconds or sent > len(news):
        while sent < len(news) + AHEAD and time.monotonic() < begin + 1 + seconds:
            worker.say(orders[sent % SETS])
            sent += 1
        news.append(worker.hear(BatchDone))
        if time.monotonic() < begin + 1:
            first = len(news)
            before = worker.cpu_s()
    counted = news[first:-AHEAD]
    interval = (counted[-1].finished - counted[0].finished) / (len(counted) - 1)
    compute = median(batch.computed - batch.computing for batch in counted)
    cpu = (worker.cpu_s() - before) / (len(news) - first)
    return Measurement(
        items.model.name, *case, 1e9 * size / interval, compute / 1e6, interval / 1e6, 1e6 * cpu
    )


def alone(worker: WorkerProcess, items: Items) -> float:
    """Return the median time from an order to its replies, in milliseconds, of a batch of one."""
    took = []
    for run in range(ALONE):
        worker.say(items.order(run, 1))
        batch = worker.hear(BatchDone)
        took.append((batch.finished - batch.received) / 1e6)
        time.sleep(0.005)
    return median(took)


def answers(worker: WorkerProcess, memory: SharedMemory, items: Items) -> Any:
    """Return the bytes that a worker answers a batch of three with."""
    order = items.order(0, 3)
    worker.say(order)
    worker.hear(BatchDone)
    replies = [items.first + n * items.block + items.block - ROOM for n in range(3)]
    outputs = 1000 if items.model.name == "resnet50" else 2
    return np.array([np.frombuffer(memory.view, np.float16, outputs, at) for at in replies], np.float32)


def load(worker: WorkerProcess, folder: Path, all_items: list[Items], sizes: list[int]) -> None:
    worker.hear(WorkerUp)
    for items in all_items:
        model = items.model
        inputs = (TensorSpec(model.tensor, model.datatype, model.shape),)
        options = {"model": f"{folder}/models.py:{model.name}", "dtype": "fp16", "graphs": [1, 4, *sizes]}
        files = ModelFiles(model.name, "torch", options, inputs, (), max(sizes), folder)
        worker.say(LoadModel(items.number, plain_files(files), [1, *sizes]))


def measured(options: argparse.Namespace, folder: Path) -> tuple[list[Measurement], dict[str, list[float]]]:
    (folder / "models.py").write_text(CODE, encoding="utf-8")
    all_items = []
    first = 0
    for number, model in enumerate(model for model in MODELS if model.name in options.models):
        all_items.append(Items(model, number, first, max(options.sizes)))
        first = aligned(all_items[-1].end)
    memory = SharedMemory.create(first)
    for items in all_items:
        items.fill(memory, options.values[0])
    workers = {mode: WorkerProcess(mode, memory, options.device) for mode in options.modes}
    for worker in workers.values():
        load(worker, folder, all_items, options.sizes)
    for _ in all_items:
        for worker in workers.values():
            worker.hear(ModelLoaded)
    measurements = []
    single = {}
    for items in all_items:
        wanted, *others = (answers(worker, memory, items) for worker in workers.values())
        for other in others:
            check_alike(wanted, other)
        single[items.model.name] = [alone(worker, items) for worker in workers.values()]
        for case in starmap(Case, product(options.sizes, options.values, options.modes)):
            items.fill(memory, case.values)
            measurements.append(back_to_back(workers[case.mode], items, case, options.seconds))
            print(json.dumps(measurements[-1]._asdict()), file=sys.stderr, flush=True)
    for worker in workers.values():
        worker.say(Stop())
        worker.process.wait(PATIENCE)
    return measurements, single


def check_alike(wanted: Any, other: Any) -> None:
    apart = float(np.abs(wanted - other).max())
    assert apart <= 0.02 * float(np.abs(wanted).max()), f"answers differ by {apart}"


def show(measurements: list[Measurement], single: dict[str, list[float]], modes: Sequence[str]) -> None:
    native = "native" if extension("_tensors") is not None else "Python (no extension)"
    print(f"gathering: {native}\n")
    print("| model | size | values | mode | items/s | GPU computes | interval | compute | CPU of a batch |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    by_events = {row[:3]: row.compute_ms for row in measurements if row.mode == "native"}
    for row in measurements:
        compute = row.compute_ms if row.mode == "native" else by_events.get(row[:3], math.nan)
        print(
            f"| {row.model} | {row.size} | {row.values} | {row.mode} | {row.items:,.0f} "
            f"| {compute / row.interval_ms:.3f} | {row.interval_ms:.2f} ms | {compute:.2f} ms "
            f"| {row.cpu_us:.0f} us |"
        )
    for name, times in single.items():
        latencies = ", ".join(f"{mode} {took:.2f} ms" for mode, took in zip(modes, times, strict=True))
        print(f"\n{name}, a batch of one alone, p50: {latencies}")


def serve(mode: str, arguments: list[str]) -> None:
    """Be a worker; without `launch` the models of this process run batch after batch."""
    if mode != "native":
        CudaRunner.hand_over = lambda *_: None  # type: ignore[method-assign]
    if mode == "run":
        prepare = TorchModel.__init__

        def prepare_to_run(self: TorchModel, *arguments: Any) -> None:
            prepare(self, *arguments)
            self.__dict__.pop("launch", None)
            self.__dict__.pop("in_flight", None)

        TorchModel.__init__ = prepare_to_run  # type: ignore[method-assign]
    worker_main(arguments)


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        serve(sys.argv[2], sys.argv[3:])
        return
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--seconds", type=float, default=2.0, help="of each run, 2 unless given")
    flags.add_argument("--sizes", type=int, nargs="+", default=[32, 64, 128], help="of the batches")
    flags.add_argument("--modes", nargs="+", default=MODES, choices=MODES, help="all three unless given")
    flags.add_argument("--values", type=int, nargs="+", default=[250], help="250 unless given")
    names = [model.name for model in MODELS]
    flags.add_argument("--models", nargs="+", default=names, choices=names, help="both unless given")
    flags.add_argument("--device", default="cuda:0", help="cpu only to try this script out")
    options = flags.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        show(*measured(options, Path(folder)), options.modes)


if __name__ == "__main__":
    main()
