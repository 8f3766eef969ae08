"""A path trial serves a model's tensors from an emulated GPU that takes hardly any time.

So the path is what limits it. Clients ask for as much as it answers, and the server itself says how many
calls its path carries (`server/path_meter.py`).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
import numpy as np

from astrarium.core.errors import AstrariumError
from astrarium.core.profiles import Table
from astrarium.core.quantities import MICROSECOND, SECOND, Duration, Time
from astrarium.server.control.plan import network_threads
from astrarium.serving.live.backends import batches
from astrarium.serving.live.backends.contract import LoadedModel
from astrarium.serving.live.fills import sent
from astrarium.serving.live.tensors import Array, TensorSpec, datatype_of, to_bytes
from astrarium.serving.scenario import Scenario
from astrarium.serving.scenario.cluster import Cluster
from astrarium.serving.scenario.schema import Model
from astrarium.serving.scenario.server_options import ServerOptions
from astrarium.serving.scenario.tensor_entries import TensorEntry

_GPU_TIME = Duration(50 * MICROSECOND)  # of any batch: a small model's, and too little to be what limits
_OBJECTIVE = Duration(SECOND)  # nobody is refused, however busy the machine
_SECONDS = 3.5  # of load; the meter looks once a second, and takes the best that it has seen
_TRIES = 3  # where other work leaves the path too little of the machine to be busy
_CLIENTS = 64  # for each network thread, in a process of their own
_PART = 4  # of the server's memory for tensors, which nobody must find full, may be what is under way
_PATIENCE = 60.0  # seconds, for the server to come and to go


Call = Mapping[str, Array]  # a tensor of one item for each input that clients send


class NotMeasured(AstrariumError):
    """The path could not be measured, for the reason that the text says."""


class Sample(NamedTuple):
    """A sample is what clients send to a model and what it answers: tensors of one item each."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    calls: tuple[Call, ...]

    @property
    def answer_bytes(self) -> int:
        """Return the bytes of an answer, those of texts left out."""
        return sum(spec.item_bytes or 0 for spec in self.outputs)


def sample(model: LoadedModel, specs: Sequence[TensorSpec], calls: Sequence[Call]) -> Sample:
    """Return the sample of a loaded model, whose answers have the shapes of that to the first call."""
    answer = model.run(batches.alike(specs, calls[0])).outputs
    items = {name: np.asarray(items[0]) for name, items in answer.items()}
    outputs = [TensorSpec(name, datatype_of(item), item.shape) for name, item in items.items()]
    return Sample(sent(specs), tuple(outputs), tuple(calls))


def path_time(scenario: Scenario, name: str, sample: Sample) -> Time:
    """Return how long a call takes of the busiest thread of the path, in a server of this scenario."""
    calls = [_request(name, sample.inputs, call) for call in sample.calls]
    threads = network_threads(scenario.server)
    under_way = scenario.server.memory // _PART // (max(map(len, calls)) + sample.answer_bytes)
    with TemporaryDirectory(prefix="astrarium-path-") as folder:
        file = Path(folder) / "scenario.yaml"
        file.write_text(_emulated(scenario, name, sample).to_yaml(), encoding="utf-8")
        with _serving(file) as port:
            clients = max(1, min(_CLIENTS, under_way // threads))
            files = _written(calls, Path(folder))
            for _ in range(_TRIES):
                answers = _asked(port, files, threads, clients)
                if carried := _carried(port):
                    return max(1, round(SECOND / carried))
    raise NotMeasured(f"no second had enough calls: the answers had the statuses {dict(answers)}")


def _emulated(scenario: Scenario, name: str, sample: Sample) -> Scenario:
    """Return the scenario with this model alone on one emulated GPU, as clients on this machine reach it."""
    largest = scenario.models[name].max_batch
    model = Model(
        profile=Table({1: _GPU_TIME, largest: _GPU_TIME}),
        slo=_OBJECTIVE,
        max_batch=largest,
        inputs=tuple(map(_entry, sample.inputs)),
        outputs=tuple(map(_entry, sample.outputs)),
    )
    return Scenario(Cluster(gpus=1), {name: model}, scenario.policy, server=_reachable(scenario.server))


def _reachable(server: ServerOptions) -> ServerOptions:
    local = {"http": 0, "grpc": None, "host": "127.0.0.1", "api_keys": None, "record": None, "log": "text"}
    path = "python" if server.tls else server.path  # where TLS is ended, uvicorn reads the calls
    return msgspec.structs.replace(server, **local, tls=None, path=path, reserve=False)


def _entry(spec: TensorSpec) -> TensorEntry:
    return TensorEntry(spec.name, spec.datatype, spec.shape, spec.values, spec.finite)  # type: ignore[arg-type]


def _request(name: str, inputs: Sequence[TensorSpec], call: Call) -> bytes:
    """Return an HTTP request with binary tensors."""
    data = [bytes(to_bytes(call[spec.name])) for spec in inputs]
    tensors = [
        {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": list(call[spec.name].shape),
            "parameters": {"binary_data_size": len(values)},
        }
        for spec, values in zip(inputs, data, strict=True)
    ]
    text = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    body = b"".join([text, *data])
    lengths = f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(body)}"
    return f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n{lengths}\r\n\r\n".encode() + body


@contextmanager
def _serving(file: Path) -> Iterator[int]:
    """Serve a scenario inside the block, which is handed the port."""
    command = [sys.executable, "-m", "astrarium", "serve", str(file)]
    log = file.with_suffix(".log")
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield _port(process, log)
    finally:
        process.terminate()
        try:
            process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _port(process: subprocess.Popen[str], log: Path) -> int:
    assert process.stdout is not None
    for text in process.stdout:
        if address := re.search(r"http://127\.0\.0\.1:(\d+)", text):
            return int(address[1])
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise NotMeasured(f"the server for it did not start: {said[-1] if said else 'it said nothing'}")


def _written(calls: Sequence[bytes], folder: Path) -> list[Path]:
    files = [folder / f"call-{number}" for number in range(len(calls))]
    for file, call in zip(files, calls, strict=True):
        file.write_bytes(call)
    return files


def _asked(port: int, calls: Sequence[Path], processes: int, clients: int) -> Counter[str]:
    """Let so many clients in each process ask for some seconds; return how many answers had which status."""
    bounds = [str(port), str(clients), str(_SECONDS)]
    command = [sys.executable, "-m", "astrarium.server.path_trial.clients", *bounds, *map(str, calls)]
    asking = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    answers = Counter[str]()
    for process in asking:
        output, _ = process.communicate(timeout=_SECONDS + _PATIENCE)
        answers.update(json.loads(output) if process.returncode == 0 else {})
    return answers


def _carried(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_PATIENCE) as answer:
        text = answer.read().decode()
    carried = re.search(r"^astrarium_path_carries (\S+)$", text, re.MULTILINE)
    return float(carried[1]) if carried else 0.0
