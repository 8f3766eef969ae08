"""astrarium cluster agent"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from astrarium.core.errors import InputError

ArbiterPlace = Annotated[
    str, typer.Option("--arbiter", metavar="HOST:PORT", help="Where the arbiter listens.")
]
KeyFile = Annotated[Path, typer.Option("--key-file", metavar="FILE", help="The key, in a file of mode 600.")]
Name = Annotated[str | None, typer.Option("--name", help="Of this machine; its host name if not given.")]
Gpus = Annotated[int | None, typer.Option("--gpus", help="GPUs that it gives; all that it has if not given.")]
Rack = Annotated[int, typer.Option("--rack", help="The number of the rack in which it stands.")]
Folder = Annotated[
    Path, typer.Option("--folder", metavar="DIR", help="Where jobs of this machine have files.")
]
Address = Annotated[
    str, typer.Option("--address", help="Under which others of a gang reach it; else that of the connection.")
]
Certificate = Annotated[
    str, typer.Option("--certificate", metavar="FILE", help="The arbiter's, if it speaks TLS.")
]
WithAgent = Annotated[
    bool,
    typer.Option("--end-with-agent", help="Jobs end with this agent; else the next one here finds them."),
]


def agent(
    arbiter: ArbiterPlace,
    key_file: KeyFile,
    name: Name = None,
    gpus: Gpus = None,
    rack: Rack = 0,
    folder: Folder = Path("astrarium.agent"),
    address: Address = "",
    certificate: Certificate = "",
    end_with_agent: WithAgent = False,
) -> None:
    """Give the GPUs of this machine to a cluster whose arbiter listens for agents."""
    from astrarium.cluster.live.backend import MachineStatus
    from astrarium.cluster.live.backends.hosts.agent import HostAgent
    from astrarium.cluster.live.machine.owners import check_above, impassable
    from astrarium.cluster.live.machine.visible_gpus import visible_gpus
    from astrarium.cluster.live.wire.connections import raised_descriptors
    from astrarium.cluster.live.wire.handshake import read_place
    from astrarium.cluster.live.wire.keys import read_key
    from astrarium.run.pools import signals_to

    where = read_place("--arbiter", arbiter, certificate)
    key = read_key("--key-file", key_file)
    seen, base = visible_gpus()
    count = seen if gpus is None else gpus
    if count < 1:
        raise InputError("--gpus", count, "at least one GPU")
    called = name or socket.gethostname()
    if not re.fullmatch(r"[\w.-]+", called):
        raise InputError("--name", called, "letters, digits, dots and dashes")
    check_above("--folder", folder)
    raised_descriptors()
    one = HostAgent(
        folder.resolve(), where, key, called, MachineStatus(count, rack), address, base, end_with_agent
    )
    if os.geteuid() == 0 and (wall := impassable(folder)) is not None:
        print(f"apps of other users cannot run here: they may not pass {wall}", file=sys.stderr)
    leaving = threading.Event()
    with signals_to(lambda *_: leaving.set()):
        one.run(leaving)
    left = "jobs end with it" if end_with_agent else "jobs run on, and the next agent here finds them"
    print(f"the agent leaves; {left}", file=sys.stderr)
