"""Serving from Python: a server in child processes of this one, for tests and notebooks."""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Self

import numpy as np

from astrarium.api.scenarios import Source, read
from astrarium.core.errors import AstrariumError, InputError, read_from
from astrarium.core.overrides import changed
from astrarium.core.plain_data import as_plain
from astrarium.core.quantities import duration_in
from astrarium.run.waiting import waiting
from astrarium.serving.live import tensors

STARTING = 120.0  # seconds: workers import their frameworks and load models first
ENDING = 30.0  # seconds for the requests that are under way
MOST_OUTPUT_LINES = 200  # lines of its log that are kept
_ADDRESS = re.compile(r"HTTP +(https?://\S+)")
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # proxies know no loopback
_HEADER = "Inference-Header-Content-Length"


class ServerError(AstrariumError):
    """A server refused a request, or ended. *status* is the HTTP status of the answer, if there was one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """A server answers in child processes, at its *url*, until its block or Python ends, or `close`."""

    def __init__(self, process: subprocess.Popen[str], home: tempfile.TemporaryDirectory[str]) -> None:
        self._process = process
        self._home = home
        self._output_lines: deque[str] = deque(maxlen=MOST_OUTPUT_LINES)
        self._ready = threading.Event()
        self.url = ""
        pipes = (process.stdout, process.stderr)
        self._readers = [threading.Thread(target=self._read, args=(pipe,), daemon=True) for pipe in pipes]
        for reader in self._readers:
            reader.start()
        atexit.register(self.close)  # nobody else would end it after a script that forgot to

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        timeout: float | str | None = None,
        priority: int | None = None,
        **named: Any,
    ) -> dict[str, Any]:
        """Ask a model, and return its outputs as NumPy arrays by name.

        Inputs are keywords, or stand in a mapping. Each is an array whose first dimension is the batch; text
        is an array of strings or bytes.

        *timeout* is how long the answer is of use, in seconds or as text such as "50ms". What the server
        refuses raises `ServerError` with its message.
        """
        parameters: dict[str, Any] = {"binary_data_output": True}
        if timeout is not None:
            parameters["timeout"] = _microseconds(timeout)
        if priority is not None:
            parameters["priority"] = priority
        encoded = [_tensor(name, value) for name, value in {**(inputs or {}), **named}.items()]
        head = {"inputs": [entry for entry, _ in encoded], "parameters": parameters}
        written = json.dumps(head).encode()
        body = written + b"".join(data for _, data in encoded)
        headers = {_HEADER: str(len(written)), "Content-Type": "application/octet-stream"}
        answer, length = self._ask(f"/v2/models/{model}/infer", body, headers)
        return _outputs(answer, length)

    def models(self) -> list[dict[str, Any]]:
        """Return the models, each with its state."""
        index: list[dict[str, Any]] = json.loads(self._ask("/v2/repository/index", b"{}")[0])
        return index

    def metadata(self, model: str) -> dict[str, Any]:
        """Return what a model's inputs and outputs are."""
        description: dict[str, Any] = json.loads(self._ask(f"/v2/models/{model}")[0])
        return description

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the server, each as its name with labels and its value."""
        lines = self._ask("/metrics")[0].decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    @property
    def log(self) -> str:
        """What the server has said last."""
        return "\n".join(self._output_lines)

    def close(self) -> None:
        """End the server once requests that are under way are answered; closing it twice is nothing."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(ENDING)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for reader in self._readers:
            reader.join(ENDING)
        self._home.cleanup()
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "ended" if self._process.poll() is not None else self.url or "starting"
        return f"<server: {state}>"

    def _await(self, seconds: float) -> None:
        until = monotonic() + seconds
        while not self._ready.wait(0.05):
            if self._process.poll() is not None or monotonic() > until:
                for reader in self._readers:
                    reader.join(1.0)
                if self._process.poll() is not None:
                    raise ServerError(self.log or "the server ended")
                raise ServerError(f"the server was not ready within {seconds:g} s\n{self.log}")

    def _read(self, pipe: Any) -> None:
        with pipe:
            for line in pipe:
                self._output_lines.append(line.rstrip("\n"))
                if (match := _ADDRESS.search(line)) is not None:
                    self.url = match[1]
                    self._ready.set()

    def _ask(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, int]:
        """Return the answer, and how much of it is JSON."""
        request = urllib.request.Request(self.url + path, body, dict(headers or {}))
        try:
            with _DIRECT.open(request) as answer:
                content = answer.read()
                return content, int(answer.headers.get(_HEADER) or len(content))
        except urllib.error.HTTPError as error:
            raise ServerError(_message(error.read()), error.code) from None
        except OSError as error:
            ended = self._process.poll() is not None
            raise ServerError(f"the server has ended\n{self.log}" if ended else str(error)) from None


def serve(
    scenario: Source,
    overrides: Mapping[str, Any] | None = None,
    port: int = 0,
    record: str | Path | None = None,
    starting: float = STARTING,
) -> Server:
    """Serve a scenario in child processes on this machine, and return when it answers.

        with astrarium.serve("scenario.yaml") as server:
            server.infer("resnet50", INPUT=array, timeout="50ms")

    *scenario* may be a file, plain data or what `load` returned; it needs no workload. *overrides* changes
    fields, as in `load`. *port*: 0 is any that is free. *record*: a file for what the policy hears and
    decides, which `replay` takes. *starting*: seconds that workers may take to load models. A server that
    does not come up raises `ServerError` with what it said.
    """
    home = tempfile.TemporaryDirectory(prefix="astrarium-serve-")
    try:
        file = Path(home.name) / "scenario.yaml"
        file.write_text(_written(scenario, overrides or {}), encoding="utf-8")
        words = ["serve", str(file), "--host", "127.0.0.1", "--http", str(port), "-o", "server.grpc=null"]
        words += [] if record is None else ["--record", str(Path(record).absolute())]
        process = subprocess.Popen(
            [sys.executable, "-m", "astrarium", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl-C in a notebook is ours: the server ends with its block
        )
    except BaseException:
        home.cleanup()
        raise
    server = Server(process, home)
    try:
        with waiting("starting the server"):
            server._await(starting)
    except BaseException:
        server.close()
        raise
    return server


def _written(source: Source, overrides: Mapping[str, Any]) -> str:
    """Return a scenario as a file has it, checked, and with absolute names of files."""
    from astrarium.serving.scenario import Scenario, parse
    from astrarium.serving.scenario.models import written_out

    if isinstance(source, Scenario):
        import yaml

        raw = yaml.safe_load(source.to_yaml())
        path = Path("scenario.yaml")
    else:
        raw, path = read(source)  # type: ignore[arg-type]
    name = str(path) if isinstance(source, str | Path) else ""
    with read_from(name):
        overridden = changed(raw, as_plain(overrides), {"models": written_out})
        return parse(overridden, name, path.parent, serving=True).to_yaml()


def _microseconds(timeout: float | str) -> int:
    if not isinstance(timeout, str):
        return round(timeout * 1e6)
    return round(duration_in("timeout", timeout) / 1000)


def _tensor(name: str, value: Any) -> tuple[dict[str, Any], bytes]:
    """Return an array as the protocol writes it: what it is, and its bytes."""
    array = np.asarray(value)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.ndim == 0:
        raise InputError(name, value, "an array whose first dimension is the batch, such as [value]")
    datatype = tensors.datatype_of(array)
    if datatype not in tensors.DATATYPES:
        raise InputError(name, str(array.dtype), "an array of numbers, booleans, text or bytes")
    if datatype == tensors.BYTES:
        elements = array.ravel().tolist()
        data = tensors.pack_bytes(
            [element if isinstance(element, bytes) else str(element) for element in elements]
        )
    else:
        data = bytes(tensors.to_bytes(array))
    entry = {"name": name, "shape": list(array.shape), "datatype": datatype}
    return {**entry, "parameters": {"binary_data_size": len(data)}}, data


def _outputs(answer: bytes, length: int) -> dict[str, Any]:
    head = json.loads(answer[:length])
    at = length
    outputs = {}
    for output in head["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        data = None if size is None else answer[at : at + size]
        at += size or 0
        outputs[output["name"]] = _array(output, data)
    return outputs


def _array(output: Mapping[str, Any], data: bytes | None) -> Any:
    name = output["name"]
    datatype = output["datatype"]
    shape = tuple(output["shape"])
    if data is None:
        return np.array(output["data"], dtype=tensors.DATATYPES[datatype]).reshape(shape)
    return tensors.to_array(tensors.Tensor(name, datatype, shape, data))


def _message(body: bytes) -> str:
    """Return the message of an error's answer; the answer itself where it is none of the protocol."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace") or "no reason was given"
