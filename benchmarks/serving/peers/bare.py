"""The least that a server can be: an event loop of our own with the simplest batching."""

from __future__ import annotations

from importlib.metadata import version

from load import Template

from .peer import APPS, V2_BODY, Peer, Place, Settings, grid


class Bare(Peer):
    name = "bare"
    settings = grid(delays=(0,))  # it never waits

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        options = [f"--port={place.port}", f"--gpus={gpus}", f"--max-batch={settings.max_batch}"]
        return [self.python, str(APPS / "bare_app.py"), *options]

    def template(self) -> Template:
        return Template("/infer", V2_BODY)

    def versions(self) -> dict[str, str]:
        return {"uvloop": version("uvloop")}
