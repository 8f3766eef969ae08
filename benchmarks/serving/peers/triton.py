"""Triton Inference Server with a model repository of its own: dynamic batching, Python backend.

The server is the one inside PyTriton's wheel: the wheel that our own Python can import, or else the one in
its environment. The server looks for its Python stub beside the backend, so the backend is laid out anew with
the stub of our version of Python.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from load import Template

from . import environments
from .peer import APPS, V2_BODY, Peer, Place, Settings, grid

REJECTING = ("rejects after 12 ms", "rejects after 18 ms")  # in the queue
CONFIG = """\
name: "{model}"
backend: "python"
max_batch_size: {max_batch}
{tensors}
instance_group [{{ count: {instances} kind: KIND_CPU }}]
dynamic_batching {{
  max_queue_delay_microseconds: {delay_us}
  {queue_policy}
}}
"""
QUEUE_POLICY = "default_queue_policy {{ timeout_action: REJECT default_timeout_microseconds: {} }}"


class Triton(Peer):
    name = "triton"
    environment = "triton"
    settings = grid() + grid(delays=(0,), modes=REJECTING)
    http_threads = 2
    model = "resnet"
    tensors = """\
input [{ name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] }]
output [{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] }]"""
    files: tuple[Path, ...] = (APPS / "triton_model" / "model.py", APPS / "emulated_gpu.py")

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        self._write_repository(place.folder / "models", gpus, settings)
        self._lay_out_backend(place.folder / "backends" / "python")
        options = {
            "model-repository": place.folder / "models",
            "backend-directory": place.folder / "backends",
            "http-address": "127.0.0.1",
            "http-port": place.port,
            "http-thread-count": self.http_threads,
            "backend-config": f"python,shm-region-prefix-name=peer{place.port}",
        }
        switched_off = [f"--allow-{name}=false" for name in ("grpc", "metrics")]
        program = self._package() / "pytriton" / "tritonserver" / "bin" / "tritonserver"
        return [str(program), *(f"--{name}={value}" for name, value in options.items()), *switched_off]

    def _write_repository(self, folder: Path, gpus: int, settings: Settings) -> None:
        version = folder / self.model / "1"
        version.mkdir(parents=True)
        for file in self.files:
            (version / file.name).symlink_to(file)
        rejects = settings.mode in REJECTING
        policy = QUEUE_POLICY.format(int(settings.mode.split()[2]) * 1000) if rejects else ""
        config = CONFIG.format(
            model=self.model,
            tensors=self.tensors,
            max_batch=settings.max_batch,
            instances=gpus * settings.instances,
            delay_us=round(settings.delay_ms * 1000),
            queue_policy=policy,
        )
        (folder / self.model / "config.pbtxt").write_text(config, encoding="utf-8")

    def _lay_out_backend(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        server = self._package() / "pytriton" / "tritonserver"
        ours = f"{sys.version_info.major}.{sys.version_info.minor}"
        for file in (server / "backends" / "python").glob("*triton_python*"):
            (folder / file.name).symlink_to(file)
        stub = server / "python_backend_stubs" / ours / "triton_python_backend_stub"
        (folder / stub.name).symlink_to(stub)

    def variables(self, place: Place) -> dict[str, str]:
        """The stub embeds a Python: the library of the one that runs us, and what a python3 in PATH has."""
        libraries = (self._package() / "nvidia_pytriton.libs", sysconfig.get_config_var("LIBDIR"))
        path = f"{Path(self.python).parent}:{os.environ['PATH']}"
        return {"LD_LIBRARY_PATH": ":".join(map(str, libraries)), "PATH": path}

    def versions(self) -> dict[str, str]:
        return environments.versions(self.environment, self._package())

    def _package(self) -> Path:
        """Return the folder that the wheel was unpacked in."""
        found = find_spec("pytriton")
        if found and found.origin:
            return Path(found.origin).parents[1]
        environments.python(self.environment)
        return environments.packages(self.environment)

    def template(self) -> Template:
        return Template(f"/v2/models/{self.model}/infer", V2_BODY)
