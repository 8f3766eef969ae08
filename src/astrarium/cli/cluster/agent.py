"""astrarium cluster agent"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

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
    from astrarium.cluster.live.backends.hosts.composition import AgentOptions, host_agent
    from astrarium.cluster.live.machine.owners import impassable
    from astrarium.run.pools import signals_to

    options = AgentOptions(arbiter, key_file, folder, name, gpus, rack, address, certificate, end_with_agent)
    host = host_agent(options)
    if os.geteuid() == 0 and (wall := impassable(folder)) is not None:
        print(f"apps of other users cannot run here: they may not pass {wall}", file=sys.stderr)
    leaving = threading.Event()
    with signals_to(lambda *_: leaving.set()):
        host.run(leaving)
    left = "jobs end with it" if end_with_agent else "jobs run on, and the next agent here finds them"
    print(f"the agent leaves; {left}", file=sys.stderr)
