"""A model that ends its worker beside one that does not: what the clients of the other see of it.

    python benchmarks/serving/parts/deadly.py [--seconds 30] [--gpus 2]

Two emulated GPUs serve an emulated model (`steady`) and a Python model (`deadly`) that does `os._exit(1)` for
inputs below -1000. `steady` is asked at a rate that keeps a GPU half busy; `deadly` gets one good request
every .1 s and one that ends its worker every 2 s, each with another input, so that no digest helps. The bar
is .99 of `steady` answered, all the time counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from _ours import metrics
from _shared import Row, parser, say, show
from load import Template, offer
from peers import Ours, Running, Settings
from peers.peer import V2_BODY, Place

EVERY_S = 2.0
GOOD_EVERY_S = 0.1
ANSWERED = 0.99
CODE = """\
import os


def deadly(X):
    if (X < -1000).any():
        os._exit(1)
    return {"Y": X}
"""


class Deadly(Ours):
    """Ours, with a Python model that can be killed beside the emulated one."""

    def scenario(self, gpus: int, workload: Mapping[str, object] | None = None) -> str:
        document = json.loads(super().scenario(gpus))
        tensor = {"datatype": "FP32", "shape": [1]}
        document["models"]["deadly"] = {
            "profile": {"alpha": "1ms", "beta": "1ms"},
            "slo": "100ms",
            "max_batch": 8,
            "backend": {"python": "deadly.py:deadly"},
            "inputs": [{"name": "X", **tensor}],
            "outputs": [{"name": "Y", **tensor}],
        }
        return json.dumps(document)

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        (place.folder / "deadly.py").write_text(CODE, encoding="utf-8")
        return super().command(place, gpus, settings)

    def templates(self) -> tuple[Template, ...]:
        return (Template("/v2/models/resnet/infer", V2_BODY),)


@dataclass
class Clients:
    """The clients of the deadly model; `codes` are what good requests got, `deaths` what bad ones got."""

    url: str
    seconds: float
    codes: Counter[int] = field(default_factory=Counter)
    deaths: Counter[int] = field(default_factory=Counter)

    def run(self) -> None:
        end = time.monotonic() + self.seconds
        number = 0
        bad_at = time.monotonic() + EVERY_S
        while (now := time.monotonic()) < end:
            number += 1
            if now >= bad_at:
                bad_at += EVERY_S
                self.deaths[self.ask(-1000 - number)] += 1
            else:
                self.codes[self.ask(number)] += 1
            time.sleep(GOOD_EVERY_S)

    def ask(self, value: float) -> int:
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [value]}
        body = json.dumps({"inputs": [tensor]}).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/v2/models/deadly/infer", body, 10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


def beside(server: Running, rate: float, seconds: float) -> list[Row]:
    clients = Clients(server.url, seconds)
    others = threading.Thread(target=clients.run)
    others.start()
    run = offer(server.url, server.templates, rate, seconds)
    others.join()
    now = metrics(server.url)
    good = clients.codes.total() or 1
    return [
        Row("deadly: of the other model answered", "%", [100 * run.in_time_share], bar=100 * ANSWERED),
        Row("deadly: of its own good requests answered", "%", [100 * clients.codes[200] / good]),
        Row("deadly: requests that end a worker", "", [clients.deaths.total()]),
        Row("deadly: workers started again", "", [now["astrarium_worker_restarts_total"]]),
        Row("deadly: models set apart", "", [now["astrarium_models_apart"]]),
        Row("deadly: unaccounted in the server's books", "", [abs(now["astrarium_unaccounted"])], 0.0, True),
    ]


def deadly(seconds: float, gpus: int, rate: float) -> list[Row]:
    say(f"a model that ends its worker every {EVERY_S:g} s beside {rate:g} requests/s ...")
    with Deadly().running(gpus, Settings()) as server:
        return beside(server, rate, seconds)


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--seconds", type=float, default=30.0)
    flags.add_argument("--gpus", type=int, default=2)
    flags.add_argument("--rate", type=float, default=150.0, help="of the other model, requests/s")
    options: argparse.Namespace = flags.parse_args()
    show(deadly(options.seconds, options.gpus, options.rate))


if __name__ == "__main__":
    main()
