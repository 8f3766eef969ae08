"""Ray Serve: a proxy process and one replica for each GPU, with `serve.batch`; also in its throughput mode.

In that mode clients talk to replicas directly, each on a port of its own. With one GPU that is measured as it
is, and with the proxy kept. With two it would need a balancer in front, and the one that Ray ships (HAProxy)
insists on listening on all interfaces: there, only with the proxy.
"""

from __future__ import annotations

from load import Template

from .peer import APPS, Peer, Place, Settings, free_port, grid

THROUGHPUT = "throughput mode with proxy"
DIRECT = "throughput mode"


class RayServe(Peer):
    name = "ray"
    environment = "ray"
    settings = grid(batches=(8, 16), delays=(0, 3), modes=("", THROUGHPUT, DIRECT))  # it takes long to start

    def candidates(self, gpus: int) -> tuple[Settings, ...]:
        return tuple(settings for settings in self.settings if gpus == 1 or settings.mode != DIRECT)

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        direct = settings.mode == DIRECT
        options = [f"--port={free_port() if direct else place.port}", f"--gpus={gpus}"]
        options += [f"--max-batch={settings.max_batch}", f"--delay-s={settings.delay_ms / 1000}"]
        knobs = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": int(bool(settings.mode))}
        knobs["RAY_SERVE_ENABLE_DIRECT_INGRESS"] = int(direct)
        for end in ("MIN", "MAX"):
            knobs[f"RAY_SERVE_DIRECT_INGRESS_{end}_HTTP_PORT"] = place.port + (end == "MAX")  # exclusive
        environment = [f"{name}={value}" for name, value in knobs.items()]
        return [
            "env",
            *environment,
            self.python,
            str(APPS / "ray_app.py"),
            *options,
            f"--folder={place.folder}",
        ]

    def variables(self, place: Place) -> dict[str, str]:
        """The last one keeps it on this machine: without it, Ray takes the address of a network card."""
        return {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        }

    def template(self) -> Template:
        return Template("/", b'{"input": 1.0}')
