"""LitServe: an HTTP process and one worker process for each GPU; workers form batches."""

from __future__ import annotations

from load import Template

from .peer import APPS, Peer, Place, Settings, grid

FAST_QUEUE = "fast queue"


class LitServe(Peer):
    name = "litserve"
    environment = "litserve"
    settings = grid(delays=(1, 2, 5), modes=("", FAST_QUEUE))  # with a delay of 0 its workers poll

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        options = [f"--port={place.port}", f"--gpus={gpus}", f"--max-batch={settings.max_batch}"]
        options += [f"--delay-s={settings.delay_ms / 1000}"] + ["--fast-queue"] * (
            settings.mode == FAST_QUEUE
        )
        return [self.python, str(APPS / "litserve_app.py"), *options]

    def template(self) -> Template:
        return Template("/predict", b'{"input": 1.0}')
