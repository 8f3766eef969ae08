"""BentoML: worker processes that answer HTTP and form batches, one for each GPU.

Its batching knows a latency to keep (and refuses with 503) rather than a delay: that is what is tuned here.
"""

from __future__ import annotations

from load import Template

from .peer import APPS, Peer, Place, Settings, grid


class BentoMl(Peer):
    name = "bentoml"
    environment = "bentoml"
    settings = grid(batches=(8, 16), delays=(20, 25, 40, 1000))

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        knobs = [f"PEER_GPUS={gpus}", f"PEER_MAX_BATCH={settings.max_batch}"]
        knobs += [f"PEER_MAX_LATENCY_MS={settings.delay_ms:.0f}"]
        options = ["--host=127.0.0.1", f"--port={place.port}", f"--working-dir={APPS}"]
        return ["env", *knobs, self.python, "-m", "bentoml", "serve", "bentoml_app:Emulated", *options]

    def variables(self, place: Place) -> dict[str, str]:
        return {"BENTOML_HOME": str(place.folder), "BENTOML_DO_NOT_TRACK": "True"}

    def template(self) -> Template:
        return Template("/infer", b'{"inputs": [1.0]}')
