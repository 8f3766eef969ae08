"""The section `live` of a scenario file says how a live cluster runs.

That is: on what, with which folders, where it listens, who may do what, and who is told of what happens.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, get_args

import msgspec

from astrarium.cluster.live.access import AccessSection
from astrarium.cluster.live.backends.kubernetes.options import KubernetesOptions
from astrarium.cluster.live.machine.keeping.grace import GRACE, PATIENCE, Grace
from astrarium.cluster.scenario.tasks import command_words
from astrarium.core.errors import InputError
from astrarium.core.quantities import MILLISECOND, SECOND, Duration, write_duration

Retries = Annotated[int, msgspec.Meta(ge=0, le=1000)]


class Address(NamedTuple):
    """A host and port to listen on, written HOST:PORT."""

    host: str
    port: int


def read_address(raw: object) -> Address:
    """Read PORT, on this machine alone, or HOST:PORT."""
    host, colon, port = str(raw).rpartition(":")
    if isinstance(raw, bool) or bool(host) != bool(colon) or not port.isdecimal() or int(port) > 65535:
        raise ValueError("a port, such as 9100, or an address, such as 0.0.0.0:9100")
    return Address(host.strip("[]") or "127.0.0.1", int(port))


On = Literal["submit", "start", "resume", "preempt", "end", "fail", "machine", "gpu", "trouble", "wait"]


class HookEntry(msgspec.Struct, frozen=True):
    """Who is told when something happens: a *command* is run, or a *url* called."""

    on: tuple[On, ...]
    command: str | tuple[str, ...] | None = None
    url: str | None = None
    timeout: Duration = Duration(10 * SECOND)
    retries: Retries = 3

    def __post_init__(self) -> None:
        if not self.on:
            raise InputError("on", None, f"at least one of {', '.join(get_args(On))}")
        if (self.command is None) == (self.url is None):
            raise InputError("url", self.url, "either a command or a url")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise InputError("url", self.url, "an address that begins with http:// or https://")
        if self.timeout <= 0:
            raise InputError("timeout", "0s", "a duration above 0")
        if self.command is not None:
            command_words(self.command)


class TlsFiles(msgspec.Struct, frozen=True):
    """The certificate that the arbiter shows, and its key."""

    certificate: str
    key: str


_OF_BACKENDS = {
    "address": ("ray", "kubernetes"),
    "partition": ("slurm",),
    "account": ("slurm",),
    "options": ("slurm",),
    "kubernetes": ("kubernetes",),
    "key": ("agents",),
    "copies": ("agents",),
}


class LiveSection(msgspec.Struct, frozen=True):
    """*state*: the folder of the store; *jobs*: that of all jobs, which every machine must see, but for
    agents: these connect to where the arbiter *listens*, with its *key*."""

    backend: Literal["local", "ray", "slurm", "kubernetes", "agents"] = "local"
    state: str | None = None
    jobs: str | None = None
    address: str | None = None
    partition: str | None = None
    account: str | None = None
    options: tuple[str, ...] | None = None
    kubernetes: KubernetesOptions | None = None
    grace: Duration = Duration(round(GRACE * SECOND))
    least: Duration = Duration(5 * SECOND)
    patience: Duration = Duration(round(PATIENCE * SECOND))
    progress: Duration = Duration(5 * SECOND)
    checkpoints: Duration = Duration(60 * SECOND)
    look: Duration = Duration(200 * MILLISECOND)
    retries: Retries = 2
    listen: str | None = None
    key: str | None = None
    tls: TlsFiles | None = None
    copies: bool | None = None
    access: AccessSection | None = None
    keys: str | None = None
    metrics: Address | None = None
    hooks: tuple[HookEntry, ...] = ()

    def __post_init__(self) -> None:
        for name, backends in _OF_BACKENDS.items():
            value = getattr(self, name)
            if value is not None and self.backend not in backends:
                raise InputError(name, value, f"backend: {' or '.join(backends)}, which has one")
        if self.backend == "kubernetes" and self.kubernetes is None:
            raise InputError(
                "kubernetes", None, "the image and the volume of jobs: {image: ..., volume: ...}"
            )
        if self.backend == "agents" and (self.listen is None or self.key is None):
            missing = "listen" if self.listen is None else "key"
            raise InputError(missing, None, "HOST:PORT and a file with a key, by which agents connect")
        if self.keys is not None and (self.access is None or self.listen is None):
            missing = "access" if self.access is None else "listen"
            raise InputError(missing, None, "who may do what, and HOST:PORT, beside the keys of users")
        for name in ("grace", "patience", "look"):
            if getattr(self, name) <= 0:
                raise InputError(name, "0s", "a duration above 0")
        if self.least > Grace(self.grace).start:
            raise InputError("least", write_duration(self.least), "at most half of grace: it is a part of it")
