"""Triton through PyTriton: its server calls back into a Python process."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from load import Template

from .peer import APPS, V2_BODY, Peer, Place, Settings


class PyTriton(Peer):
    name = "pytriton"
    environment = "triton"

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        options = [f"--port={place.port}", f"--grpc-port={place.grpc_port}", f"--gpus={gpus}"]
        options += [f"--max-batch={settings.max_batch}", f"--delay-us={settings.delay_ms * 1000:.0f}"]
        return [self.python, str(APPS / "pytriton_app.py"), *options]

    def variables(self, place: Place) -> dict[str, str]:
        """Triton's stub embeds a Python: it must find the library of the one that runs us."""
        return {"PYTRITON_HOME": str(place.folder), "LD_LIBRARY_PATH": sysconfig.get_config_var("LIBDIR")}

    def clear(self, processes: list[int]) -> None:
        """Its shared memory outlives it; the names begin with the process that asked for it."""
        for process in processes:
            for file in Path("/dev/shm").glob(f"pytrtion{process}-*"):
                file.unlink()

    def template(self) -> Template:
        return Template("/v2/models/resnet/infer", V2_BODY)
