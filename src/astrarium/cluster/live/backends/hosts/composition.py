"""The agent of a host is put together here, from what the command line says and what the machine has."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import NamedTuple

from astrarium.cluster.live.backend import MachineStatus
from astrarium.cluster.live.backends.hosts.agent import HostAgent
from astrarium.cluster.live.machine.owners import check_above
from astrarium.cluster.live.machine.visible_gpus import visible_gpus
from astrarium.cluster.live.wire.connections import raised_descriptors
from astrarium.cluster.live.wire.handshake import read_place
from astrarium.cluster.live.wire.keys import read_key
from astrarium.core.errors import InputError


class AgentOptions(NamedTuple):
    """What is said about an agent. *name*: the host's if none is given; *gpus*: all that it has."""

    arbiter: str
    key_file: Path
    folder: Path
    name: str | None = None
    gpus: int | None = None
    rack: int = 0
    address: str = ""
    certificate: str = ""
    end_with_agent: bool = False


def host_agent(options: AgentOptions) -> HostAgent:
    """Return the agent of this machine; what is wrong with its options is said before it connects."""
    where = read_place("--arbiter", options.arbiter, options.certificate)
    key = read_key("--key-file", options.key_file)
    count, base = _gpus(options.gpus)
    name = _name(options.name)
    check_above("--folder", options.folder)
    raised_descriptors()
    return HostAgent(
        options.folder.resolve(),
        where,
        key,
        name,
        MachineStatus(count, options.rack),
        options.address,
        base,
        options.end_with_agent,
    )


def _gpus(wanted: int | None) -> tuple[int, int]:
    """Return how many GPUs the machine gives, and the number of the first."""
    seen, base = visible_gpus()
    count = seen if wanted is None else wanted
    if count < 1:
        raise InputError("--gpus", count, "at least one GPU")
    return count, base


def _name(wanted: str | None) -> str:
    name = wanted or socket.gethostname()
    if not re.fullmatch(r"[\w.-]+", name):
        raise InputError("--name", name, "letters, digits, dots and dashes")
    return name
