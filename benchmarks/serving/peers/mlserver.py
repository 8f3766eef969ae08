"""MLServer: batches leave when full or after a delay, whether a GPU is free or not.

A GPU is a worker process of its pool, or a thread of the server's own process (`in process`).
"""

from __future__ import annotations

import json

from load import Template

from .peer import V2_BODY, Peer, Place, Settings, free_port, grid

IN_PROCESS = "in process"


class MlServer(Peer):
    name = "mlserver"
    environment = "mlserver"
    settings = grid(delays=(2, 5, 8), modes=("", IN_PROCESS))

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        inside = settings.mode == IN_PROCESS
        model = {
            "name": "resnet",
            "implementation": "mlserver_app.Emulated",
            "max_batch_size": settings.max_batch,
            "max_batch_time": settings.delay_ms / 1000,
            "parameters": {"extra": {"gpus": gpus if inside else 1}},
        }
        server = {
            "host": "127.0.0.1",
            "http_port": place.port,
            "grpc_port": place.grpc_port,
            "metrics_port": free_port(),
            "parallel_workers": 0 if inside else gpus,
            "debug": False,
        }
        (place.folder / "model-settings.json").write_text(json.dumps(model), encoding="utf-8")
        (place.folder / "settings.json").write_text(json.dumps(server), encoding="utf-8")
        return [self.python, "-m", "mlserver.cli.main", "start", str(place.folder)]

    def template(self) -> Template:
        return Template("/v2/models/resnet/infer", V2_BODY)
