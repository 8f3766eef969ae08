"""Clients who send their next call when they have the last answer: are they refused, where they need not be?

    python benchmarks/serving/parts/closed_loops.py

Every row is a model of its own on an emulated GPU (batches of up to 64 in 20 ms). First so many clients find
how long a cycle takes, with an objective of ten seconds: what 99 % of the answers keep, or the share that
--cycle says. Then the same clients come to a server whose objective is that over .8: all at once after
idleness, and in a step from a quarter of them. Clients and server share the machine, so a cycle is as long
as that makes it, and the median (--cycle .5) is no fair one where others share it too.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import grpc
import numpy as np
import uvloop
from _shared import caption, circumstances, keep, parser, say
from grpc_load import METHOD
from load import Template
from peers import Ours, Running, Settings
from peers.peer import Place

from astrarium.server.grpc.messages import message
from astrarium.server.path_trial.clients import Client

SIZES = {"small": 16, "large": 65_536}  # bytes, in and out
WAYS = ("HTTP", "gRPC")
CLIENTS = (1, 4, 16, 64, 256, 1024)
FITS = 0.8  # of the objective, a cycle does
GENEROUS_MS = 10_000.0
BATCH_MS = 20.0
LARGEST = 64
CHANNELS = 4  # as many connections over gRPC, at most


@dataclass(frozen=True)
class Cell:
    """A cell is a model of its own: so many clients send calls of a size over HTTP or gRPC."""

    size: str
    way: str
    clients: int

    @property
    def model(self) -> str:
        return f"{self.size}-{self.way}-{self.clients}"

    @property
    def tensor(self) -> dict[str, object]:
        return {"name": "X", "datatype": "UINT8", "shape": [1, SIZES[self.size]]}


@dataclass
class Loops:
    """Loops are what clients have had: how long answers took, and statuses other than that of an answer."""

    latencies_ms: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.latencies_ms, share)) if self.latencies_ms else float("nan")

    def heard(self, status: str, seconds: float) -> None:
        if status in ("200", "OK"):
            self.latencies_ms.append(1e3 * seconds)
        else:
            self.refused[status] += 1


class OurLoops(Ours):
    """Our server with a model for each cell."""

    def __init__(self, objectives_ms: dict[Cell, float]) -> None:
        super().__init__()
        self.objectives_ms = objectives_ms

    def scenario(self, gpus: int, workload: object = None) -> str:
        models = {
            cell.model: {
                "profile": {"table": [f"{BATCH_MS}ms"] * LARGEST},
                "slo": f"{objective:.3f}ms",
                "inputs": [{**cell.tensor, "shape": [SIZES[cell.size]]}],
            }
            for cell, objective in self.objectives_ms.items()
        }
        return json.dumps({"cluster": {"gpus": gpus}, "models": models, "server": {"memory": "1GiB"}})

    def templates(self) -> tuple[Template, ...]:
        head, data = body(next(iter(self.objectives_ms)))
        lengths = {"Inference-Header-Content-Length": str(len(head))}
        return (Template(path(next(iter(self.objectives_ms))), head + data, lengths),)


def path(cell: Cell) -> str:
    return f"/v2/models/{cell.model}/infer"


def body(cell: Cell) -> tuple[bytes, bytes]:
    tensor = {**cell.tensor, "parameters": {"binary_data_size": SIZES[cell.size]}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head, bytes(SIZES[cell.size])


async def over_http(place: Place, cell: Cell, clients: int, until: float, loops: Loops) -> None:
    head, data = body(cell)
    lengths = {"Inference-Header-Content-Length": str(len(head))}
    call = Template(path(cell), head + data, lengths).raw("127.0.0.1")
    here = asyncio.get_running_loop()

    def client() -> Client:
        sent = [time.monotonic()]

        def answered(status: str) -> None:
            now = time.monotonic()
            loops.heard(status, now - sent[0])
            sent[0] = now  # the next call leaves

        return Client(call, answered)

    made = [await here.create_connection(client, "127.0.0.1", place.port) for _ in range(clients)]
    await asyncio.sleep(until - time.monotonic())
    for transport, _ in made:
        transport.abort()


async def over_grpc(place: Place, cell: Cell, clients: int, until: float, loops: Loops) -> None:
    request = message("ModelInferRequest")(
        model_name=cell.model, raw_input_contents=[bytes(SIZES[cell.size])]
    )
    request.inputs.add(**cell.tensor)
    encoded = request.SerializeToString()
    own = [("grpc.use_local_subchannel_pool", 1)]
    address = f"127.0.0.1:{place.grpc_port}"
    channels = [grpc.aio.insecure_channel(address, own) for _ in range(min(clients, CHANNELS))]

    async def client(number: int) -> None:
        call = channels[number % len(channels)].unary_unary(METHOD)
        while (sent := time.monotonic()) < until:
            try:
                await call(encoded)
                loops.heard("OK", time.monotonic() - sent)
            except grpc.aio.AioRpcError as error:
                loops.heard(error.code().name, time.monotonic() - sent)

    await asyncio.gather(*map(client, range(clients)))
    for channel in channels:
        await channel.close()


def looped(place: Place, cell: Cell, seconds: float, first: int = 0) -> Loops:
    """Let all clients loop for so long; the *first* of them have begun half of that before."""
    loops = Loops()
    send = over_http if cell.way == "HTTP" else over_grpc

    async def run() -> None:
        until = time.monotonic() + seconds + bool(first) * seconds / 2
        early = asyncio.create_task(send(place, cell, first, until, loops)) if first else None
        await asyncio.sleep(bool(first) * seconds / 2)
        await send(place, cell, cell.clients - first, until, loops)
        if early is not None:
            await early

    (uvloop.run if cell.way == "HTTP" else asyncio.run)(run())
    time.sleep(seconds / 4)  # what is still open ends
    return loops


def row(server: Running, cell: Cell, objective_ms: float, seconds: float) -> dict[str, object]:
    time.sleep(seconds)  # nobody has asked for a while
    idle = looped(server.place, cell, seconds)
    step = looped(server.place, cell, seconds, cell.clients // 4) if cell.clients > 1 else Loops()
    both = Loops(idle.latencies_ms + step.latencies_ms, idle.refused + step.refused)
    return {
        "body": cell.size,
        "over": cell.way,
        "clients": cell.clients,
        "calls": len(both.latencies_ms) + both.refused.total(),
        "refused after idleness": idle.refused.total(),
        "refused after a step": step.refused.total(),
        "statuses": dict(both.refused),
        "p50 ms": both.quantile(0.5),
        "p99 ms": both.quantile(0.99),
        "objective ms": objective_ms,
    }


def shown(rows: Sequence[dict[str, object]]) -> str:
    """Return the rows as a table in Markdown."""
    names = [name for name in rows[0] if name != "statuses"]
    lines = [names, ["---"] * len(names)]
    for values in rows:
        cells = [values[name] for name in names]
        lines.append([f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--seconds", type=float, default=2.0, help="of each load, 2 unless given")
    flags.add_argument("--clients", type=int, nargs="+", default=CLIENTS, help="how many at a time")
    flags.add_argument("--cycle", type=float, default=0.99, help="share of answers in it, .99 unless given")
    options = flags.parse_args()
    load_before = circumstances(options.date, 0.0)["load_after"]
    cells = [Cell(*parts) for parts in product(SIZES, WAYS, options.clients)]
    cycles = dict.fromkeys(cells, GENEROUS_MS)
    with OurLoops(cycles).running(1, Settings()) as server:
        measure = partial(looped, server.place, seconds=options.seconds)
        cycles = {cell: measure(cell).quantile(options.cycle) for cell in cells}
    objectives = {cell: cycle / FITS for cell, cycle in cycles.items()}
    rows = []
    with OurLoops(objectives).running(1, Settings()) as server:
        for cell, objective in objectives.items():
            rows.append(row(server, cell, objective, options.seconds))
            say(str(rows[-1]))
    facts = circumstances(options.date, load_before)
    keep("closed-loops", {**facts, "rows": rows})
    print(shown(rows))
    print(caption(facts))


if __name__ == "__main__":
    main()
