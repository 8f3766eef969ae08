"""One bad value a second on a real GPU: refused where its range is known, and survived where it is not.

    python benchmarks/serving/parts/bad_values.py [--seconds 20] [--rate 4000]

`known`: the encoder of gpu.py, whose embedding tells the range of its tokens; every second one request has a
token beyond it. All others are to be in time. `unknown`: a network that asserts on the GPU where it sees a
magic float, of which nobody can know beforehand; a CUDA context does not survive that. The server is to serve
again within 5 s each time. Beside it, on the same GPU, the encoder goes on: its share in time is told as a
whole, and from when on the other has been set apart.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import yaml

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from _ours import metrics
from _shared import Row, keep, parser, say, show
from load import Limits, Records, Result, Template, offer, read_records
from on_gpu.models import MODELS, requests
from on_gpu.scenario import written
from on_gpu.servers import OnGpu
from peers.peer import Place, Running, Settings

from run import cpu

EVERY_S = 1.0
AGAIN_S = 5.0
SLO_MS = 25.0
MAGIC = 12345.5
ENCODER = MODELS[0]
TABLE = {1: 0.54, 4: 0.62, 8: 0.75, 16: 1.05, 32: 1.75, 64: 3.4}  # ms on an H200, see gpu.py
LIMITS = Limits(lag_p99_ms=50.0, lag_max_ms=1000.0)  # while a model is loaded the generator shares its cores
CODE = f"""

class Magic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(4, 8))
        self.net = torch.nn.Linear(128, 8)

    def forward(self, X):
        magic = (X == {MAGIC}).any(1)
        return self.net(X) + self.table[magic.long() * 1_000_000]


def magic():
    torch.manual_seed(0)
    return Magic().eval()
"""


class Values(OnGpu):
    def __init__(self, scenario: Path, *models: str) -> None:
        super().__init__({}, scenario)
        self._named = models

    def templates(self) -> tuple[Template, ...]:
        of = {"encoder": requests("encoder", ENCODER), "magic": (floats(1.0),)}
        return tuple(template for name in self._named for template in of[name])

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        return [*super().command(place, gpus, settings), "--log", "json"]


def floats(first: float) -> Template:
    values = np.random.default_rng(0).standard_normal(128).astype(np.float32)
    values[0] = first
    return body("magic", "X", "FP32", values)


def tokens(beyond: int) -> Template:
    chosen = ENCODER.item(beyond).copy()
    chosen[beyond % 128] = 30522 + beyond
    return body("encoder", "TOKENS", "INT64", chosen)


def body(model: str, name: str, datatype: str, values: np.ndarray) -> Template:
    tensor = {"name": name, "datatype": datatype, "shape": [1, 128], "data": values.tolist()}
    return Template(f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode())


@dataclass
class BadClient:
    """A client with one bad request a second; each is another one."""

    url: str
    seconds: float
    magic: bool
    codes: Counter[int] = field(default_factory=Counter)
    message: str = ""

    def run(self) -> None:
        began = time.monotonic()
        for number in range(int(self.seconds / EVERY_S)):
            time.sleep(max(0.0, began + (number + 1) * EVERY_S - time.monotonic()))
            self.ask(magic_request(number) if self.magic else tokens(number))

    def ask(self, request: Template) -> None:
        try:
            with urllib.request.urlopen(f"{self.url}{request.path}", request.body, 10) as answer:
                self.codes[int(answer.status)] += 1
        except urllib.error.HTTPError as error:
            self.codes[error.code] += 1
            self.message = error.read().decode()[:300]


def magic_request(number: int) -> Template:
    values = np.random.default_rng(number + 1).standard_normal(128).astype(np.float32)
    values[number % 128] = MAGIC
    return body("magic", "X", "FP32", values)


def scenario(folder: Path) -> Path:
    path = written(folder, {"encoder": (ENCODER, 1.0)}, True, "")
    code = path.with_name("models.py")
    code.write_text(code.read_text() + CODE, encoding="utf-8")
    document = yaml.safe_load(path.read_text())
    document["models"]["encoder"]["profile"]["table"] = {size: f"{took}ms" for size, took in TABLE.items()}
    document["models"]["magic"] = {
        "profile": {"table": {1: "0.2ms", 64: "0.4ms"}},
        "slo": f"{SLO_MS:g}ms",
        "max_batch": 64,
        "backend": {"torch": {"model": "models.py:magic"}},
        "inputs": [{"name": "X", "datatype": "FP32", "shape": [128]}],
    }
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def known(folder: Path, rate: float, seconds: float) -> list[Row]:
    peer = Values(scenario(folder), "encoder")
    with peer.running(1, peer.settings[0]) as server:
        offer(server.url, server.templates, 500.0, 2.0, SLO_MS)
        bad = BadClient(server.url, seconds, magic=False)
        run, _ = beside(server, bad, rate, seconds)
        restarts = metrics(server.url)["astrarium_worker_restarts_total"]
    say(bad.message)
    return [
        Row("range known: all others in time", "%", [100 * run.in_time_share], bar=99.9),
        Row("range known: bad ones refused with 400", "", [bad.codes[400]], bar=int(seconds / EVERY_S)),
        Row("range known: workers started again", "", [restarts], 0.0, True),
    ]


def unknown(folder: Path, rate: float, seconds: float) -> list[Row]:
    peer = Values(scenario(folder), "magic")
    with peer.running(1, peer.settings[0]) as server:
        offer(server.url, server.templates, 500.0, 2.0, SLO_MS)
        time.sleep(10.0)  # until there is a process in reserve
        bad = BadClient(server.url, seconds, magic=True)
        other = Encoder(server.url, rate / 4, seconds)
        encoder = threading.Thread(target=other.run)
        encoder.start()
        _, records = beside(server, bad, rate, seconds)
        encoder.join()
        now = metrics(server.url)
        tell_starts(server.tree.log)
    say(bad.message)
    say(f"bad requests: {dict(bad.codes)}")
    away = outages(records)
    late = other.share(from_s=outages_end(records, 2))
    return [
        Row("range unknown: serving again after", "s", away or [0.0], AGAIN_S, True),
        Row("range unknown: outages", "", [len(away)]),
        Row("range unknown: workers started again", "", [now["astrarium_worker_restarts_total"]]),
        Row("range unknown: models set apart", "", [now["astrarium_models_apart"]]),
        Row("range unknown: the model beside it, in time", "%", [100 * other.share()]),
        Row("range unknown: the model beside it, in time since the second", "%", [100 * late], bar=99.0),
        Row("range unknown: unaccounted", "", [abs(now["astrarium_unaccounted"])], 0.0, True),
    ]


class Encoder:
    """The model beside the one that asserts."""

    def __init__(self, url: str, rate: float, seconds: float) -> None:
        self._url = url
        self._rate = rate
        self._seconds = seconds
        self._records: Records | None = None

    def run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "encoder.csv"
            templates = requests("encoder", ENCODER)
            offer(self._url, templates, self._rate, self._seconds, SLO_MS, records=path, limits=LIMITS)
            self._records = read_records(path)

    def share(self, from_s: float = 0.0) -> float:
        assert self._records is not None
        counted = self._records.due_ns >= from_s * 1e9
        return float(self._records.in_time()[counted].mean()) if counted.any() else float("nan")


def beside(server: Running, bad: BadClient, rate: float, seconds: float) -> tuple[Result, Records]:
    client = threading.Thread(target=bad.run)
    client.start()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.csv"
        run = offer(server.url, server.templates, rate, seconds, SLO_MS, records=path, limits=LIMITS)
        records = read_records(path)
    client.join()
    return run, records


def gaps(records: Records) -> list[tuple[float, float]]:
    """From when to when nobody was answered, in seconds, where that was longer than .1 s."""
    good = np.sort(records.due_ns[records.in_time()]) / 1e9
    ends = np.flatnonzero(np.diff(good) > 0.1)
    return [(float(good[end]), float(good[end + 1])) for end in ends]


def outages(records: Records) -> list[float]:
    return [after - before for before, after in gaps(records)]


def outages_end(records: Records, number: int) -> float:
    """Return when the first *number* outages were over."""
    ended = [after for _, after in gaps(records)][:number]
    return max(ended, default=0.0) + 1.0


def tell_starts(log: str) -> None:
    """Say what became of workers, as the server logged it."""
    for line in (json.loads(line) for line in log.splitlines() if line.startswith("{")):
        if line.get("level") == "WARNING" or "phases_s" in line:
            say(f"  {line.get('time', '')} {line['message'][:240]}")


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--seconds", type=float, default=20.0)
    flags.add_argument("--rate", type=float, default=4000.0)
    options = flags.parse_args()
    rows: list[Row] = []
    for measure in (known, unknown):
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(Path(folder), options.rate, options.seconds)
            show(rows)
    facts = {"date": str(options.date), "cpu": cpu(), "versions": Values(Path(), "encoder").versions()}
    keep("bad-values", {**facts, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
