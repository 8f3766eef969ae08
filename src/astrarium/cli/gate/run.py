"""astrarium gate run -- COMMAND"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from astrarium.cli.gate.options import ClientName, Command, Gpu, Set, check_command, name_of
from astrarium.cli.gate.policy import KERNEL_POLICIES
from astrarium.core.errors import InputError, one_of
from astrarium.run.waiting import waiting

if TYPE_CHECKING:
    from astrarium.gate.client import Client

NEEDS_MPS = "mps"  # the one policy that is nothing without it

Class = Annotated[str, typer.Option("--class", metavar="CLASS", help="latency or best-effort.")]
Policy = Annotated[
    str | None,
    typer.Option("--policy", metavar="NAME", help="Who comes first chooses; astrarium unless given."),
]
Profile = Annotated[
    Path | None, typer.Option("--profile", metavar="FILE", help="What `gate profile` recorded of it.")
]
NoMps = Annotated[bool, typer.Option("--no-mps", help="Do not start or use NVIDIA's MPS.")]
Coverage = Annotated[
    bool, typer.Option("--coverage", help="Also count what the driver ran, for `gate top`; costs time.")
]
AllowNoGpu = Annotated[
    bool, typer.Option("--allow-no-gpu", help="Where there is no GPU, run the program unchanged.")
]


def run(
    command: Command,
    kind: Class,
    name: ClientName = None,
    policy: Policy = None,
    gpu: Gpu = 0,
    profile: Profile = None,
    no_mps: NoMps = False,
    coverage: Coverage = False,
    settings: Set = None,
    allow_no_gpu: AllowNoGpu = False,
) -> None:
    """Run a program under the gate, on a GPU that it shares with others."""
    from astrarium.gate.board import board_path
    from astrarium.gate.client import Client
    from astrarium.gate.driver import NoGpu, chosen_gpu

    _check(kind, profile, policy, no_mps)
    check_command(command)
    called = name_of(command, name)
    try:
        with waiting(f"asking the driver for GPU {gpu}"):
            chosen = chosen_gpu(gpu)
            client = Client(called, chosen, kind, board_path(chosen), policy, profile, coverage=coverage)
            environment = _environment(client, settings or [], not no_mps)
    except NoGpu as error:
        if not allow_no_gpu:
            raise
        print(f"astrarium: {error}; {called} runs without the gate", file=sys.stderr, flush=True)
        environment = dict(os.environ)
    become(command, environment)


def _check(kind: str, profile: Path | None, policy: str | None, no_mps: bool) -> None:
    from astrarium.gate.marking import CLASSES

    if kind not in CLASSES:
        raise InputError("--class", kind, " or ".join(CLASSES))
    if policy is not None and policy not in KERNEL_POLICIES:
        raise InputError("--policy", policy, one_of(list(KERNEL_POLICIES), policy))
    if profile is not None and not profile.is_file():
        raise InputError("--profile", str(profile), "a file that `astrarium gate profile` wrote")
    if policy == NEEDS_MPS and no_mps:
        raise InputError("--policy", policy, "another policy: --no-mps leaves nothing of this one")


def _environment(client: Client, settings: list[str], with_mps: bool) -> dict[str, str]:
    from astrarium.gate.board_settings import read_settings
    from astrarium.gate.launch import MpsUse, shared

    use_mps: MpsUse = "none" if not with_mps else "must" if client.policy == NEEDS_MPS else "may"
    ready = shared(client, read_settings(settings) if settings else {}, use_mps)
    print(f"astrarium: {ready.description}", file=sys.stderr, flush=True)
    return ready.environment


def become(command: list[str], environment: dict[str, str]) -> None:
    """The program takes this process's place: signals and the exit code are its own."""
    sys.stdout.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the program would inherit that
    os.execvpe(command[0], command, environment)
