"""What a file says of the pods in which jobs run on Kubernetes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from astrarium.core.errors import InputError


class KubernetesOptions(msgspec.Struct, frozen=True):
    """What runs on Kubernetes are made with: an *image* with python3 and sh; the claim of a *volume*, or
    CLAIM/FOLDER, that holds all jobs; *requests* of each pod besides GPUs; *pod*: more of its spec."""

    image: str
    volume: str
    namespace: str = "default"
    gang: Literal["none", "kueue", "volcano"] = "none"
    queue: str = ""
    rack_label: str = "topology.kubernetes.io/zone"
    requests: dict[str, str] = {}
    pod: dict[str, Any] = {}

    def __post_init__(self) -> None:
        for name in ("image", "volume", "namespace"):
            if not getattr(self, name):
                raise InputError(name, "", "a name")
        if (self.gang == "kueue" and not self.queue) or (self.gang == "none" and self.queue):
            raise InputError("queue", self.queue, "a LocalQueue with gang: kueue, and none without a gang")
        for name in self.pod.keys() & {"affinity", "containers", "restartPolicy", "subdomain", "volumes"}:
            raise InputError(f"pod.{name}", None, "nothing here: the backend sets it")
