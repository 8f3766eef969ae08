"""The programs that share a GPU in the benchmarks. They know nothing of sharing; each has its own process.

    python benchmarks/gpu/clients.py serve resnet50 --batch 4
    python benchmarks/gpu/clients.py train bert_base --batch 8
    python benchmarks/gpu/clients.py infer mobilenet_v2 --batch 4 --graph

Each says "ready", then obeys lines on its stdin (clients_device.py):

    go 2.0 busy=0.25 arrivals=poisson seed=1     serve: two seconds of requests
    go 2.0                                       train, infer, and serve --closed
    quit

With --once "go ..." it obeys that line and ends.
"""

from __future__ import annotations

import argparse
import io
import sys

import torch
from clients_device import Handler, obey, own_stdout
from clients_loops import Inference, Loop, Training
from clients_serve import Server
from models import NAMES


def parser() -> argparse.ArgumentParser:
    chosen = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = chosen.add_subparsers(dest="kind", required=True)
    serve = common(kinds.add_parser("serve", help="answer requests as they arrive"), 4)
    serve.add_argument("--closed", action="store_true", help="the next request comes after the last answer")
    serve.add_argument("--eager", action="store_true", help="no CUDA graph")
    serve.add_argument("--trace", default="", help="file of arrival times, for arrivals=apollo")
    serve.add_argument("--stream", default="", help="one of the trace's streams; all of them unless given")
    train = common(kinds.add_parser("train", help="train as fast as possible"), 32)
    train.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    train.add_argument("--feed", choices=("device", "host"), default="device", help="where the batches wait")
    infer = common(kinds.add_parser("infer", help="offline inference as fast as possible"), 4)
    infer.add_argument("--graph", action="store_true", help="as a CUDA graph")
    for loop in (train, infer):
        loop.add_argument("--look-every", type=int, default=10, help="iterations; 1 waits for each of them")
    return chosen


def common(command: argparse.ArgumentParser, batch: int) -> argparse.ArgumentParser:
    command.add_argument("model", choices=NAMES)
    command.add_argument("--batch", type=int, default=batch)
    command.add_argument("--device", choices=("cuda", "cpu"), default=None, help="the GPU if there is one")
    command.add_argument("--priority", type=int, default=0, help="of the CUDA stream; less is more")
    command.add_argument("--tf32", choices=("on", "off"), default=None, help="PyTorch's default unless given")
    command.add_argument("--cudnn-benchmark", action="store_true", help="let cuDNN try its algorithms")
    command.add_argument("--once", default="", metavar="ORDER", help="obey this line and end")
    return command


def set_up(options: argparse.Namespace) -> None:
    """A client has one thread of its own: several of them share the cores of the machine."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = options.cudnn_benchmark
    if options.tf32:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.tf32 == "on"
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")


def main() -> None:
    chosen = parser()
    options = chosen.parse_args()
    if options.batch < 1 or getattr(options, "look_every", 1) < 1:
        chosen.error("--batch and --look-every must be at least 1")
    answers = own_stdout()
    set_up(options)
    try:
        client, handlers = client_of(options)
    except ValueError as problem:
        sys.exit(f"clients.py: {problem}")
    obey(io.StringIO(options.once) if options.once else sys.stdin, answers, handlers, client.facts)


def client_of(options: argparse.Namespace) -> tuple[Server | Loop, dict[str, Handler]]:
    if options.kind == "serve":
        server = Server(options)
        return server, {"go": server.go, "calibrate": server.calibrate}
    loop = Loop(Training if options.kind == "train" else Inference, options)
    return loop, {"go": loop.go}


if __name__ == "__main__":
    main()
