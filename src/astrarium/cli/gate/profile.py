"""astrarium gate profile -- COMMAND"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astrarium.cli.gate.options import ClientName, Command, Gpu, check_command, name_of
from astrarium.cli.options import Json
from astrarium.cli.output import emit, table
from astrarium.core.errors import AstrariumError, InputError
from astrarium.run.waiting import waiting

if TYPE_CHECKING:
    from astrarium.gate.kernel_profiles import KernelProfile

MARK = b"astrarium-kernels"
NARROW = 60  # of a kernel's name: templates make them endless

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Where the profile goes; NAME.kernels unless given."),
]
Rows = Annotated[int, typer.Option("--rows", min=1, help="How many kernels are shown.")]


def profile(
    command: Command,
    name: ClientName = None,
    out: Out = None,
    gpu: Gpu = 0,
    rows: Rows = 20,
    json: Json = False,
) -> None:
    """Run a program alone and record its kernels: how long each takes, how many SMs, of which kind.

    Needs no Nsight. `gate run --profile FILE` then knows them from the start; the simulator can replay them.
    """
    from astrarium.run.report import struct_as_dict

    check_command(command)
    place = _place(out, name_of(command, name))
    code = _record(command, name_of(command, name), gpu, place)
    kernels, repeats = read(place)
    shown = {
        "file": str(place),
        "repeats": repeats,
        "kernels": [struct_as_dict(kernel) for kernel in kernels],
    }
    emit(json, shown, tables(kernels, rows), None)
    if not json:
        print(f"written to {place}")
    if not repeats:
        print("its launches do not repeat: the simulator finds no iteration in it", file=sys.stderr)
    raise typer.Exit(code)


def _place(out: Path | None, name: str) -> Path:
    """Only a profile is ever written over."""
    from astrarium.run.folder import file_name

    place = out or Path(f"{file_name(name)}.kernels")
    if place.is_dir() or not place.absolute().parent.is_dir():
        raise InputError("--out", str(place), "a file in a folder that is there")
    if place.exists() and not place.read_bytes().startswith(MARK):
        raise InputError("--out", str(place), "a new file, or a kernel profile to write over")
    return place


def _record(command: list[str], name: str, gpu: int, place: Path) -> int:
    """The program's exit code. The file appears when it is whole."""
    from astrarium.gate.client import Client
    from astrarium.gate.driver import chosen_gpu
    from astrarium.gate.launch import alone

    draft = place.absolute().with_name(f".{place.name}.{os.getpid()}")
    with waiting(f"asking the driver for GPU {gpu}"):
        ready = alone(Client(name, chosen_gpu(gpu), record=draft))
    print(f"astrarium: recording {name} on {ready.description}", file=sys.stderr, flush=True)
    code = _run(command, ready.environment)
    if not draft.exists():
        why = "a signal ended it before it could write" if code > 128 else "it launched no kernels"
        raise AstrariumError(f"nothing was recorded of {name}: {why} (exit code {code})")
    draft.replace(place)
    return code


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Signals are for the program, which has them from the keyboard already. It writes when it ends."""
    from astrarium.run.pools import signals_to

    program = subprocess.Popen(command, env=environment)
    with signals_to(lambda number, _: program.terminate() if number == signal.SIGTERM else None):
        code = program.wait()
    return code if code >= 0 else 128 - code


def read(place: Path) -> tuple[list[KernelProfile], bool]:
    """The kernels, and whether an iteration was found that the launches repeat."""
    from astrarium.gate.kernel_profiles import read_kernel

    lines = place.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = [line.split("\t") for line in lines]
    kernels = [read_kernel(cells)[1] for word, *cells in rows if word == "kernel"]
    return kernels, any(word == "launches" for word, *_ in rows)


def tables(kernels: list[KernelProfile], rows: int) -> list[Any]:
    return [_by_kernel(kernels, rows), _by_kind(kernels)]


def _total(kernel: KernelProfile) -> int:
    return kernel.duration * kernel.count


def _by_kernel(kernels: list[KernelProfile], most: int) -> Any:
    whole = sum(map(_total, kernels)) or 1
    longest = sorted(kernels, key=_total, reverse=True)
    rows = [_row(kernel, whole) for kernel in longest[:most]]
    if rest := longest[most:]:
        launches = sum(kernel.count for kernel in rest)
        spent = _spent(sum(map(_total, rest)), whole)
        rows.append([f"{len(rest)} others", "", "", "", "", f"{launches:,}", "", "", *spent])
    right = ("SMs", "launches", "median us", "p95 us", "total ms", "share")
    return table("kernel", "grid", "block", "kind", right=right, rows=rows)


def _row(kernel: KernelProfile, whole: int) -> list[str]:
    name = kernel.name if len(kernel.name) <= NARROW else kernel.name[: NARROW - 3] + "..."
    sizes = [",".join(map(str, size)) for size in (kernel.grid, kernel.block)]
    times = [f"{time / 1e3:.1f}" if time else "-" for time in (kernel.duration, kernel.p95)]
    counts = [str(kernel.sms), f"{kernel.count:,}"]
    return [name, *sizes, kernel.kind, *counts, *times, *_spent(_total(kernel), whole)]


def _spent(time: int, whole: int) -> list[str]:
    return [f"{time / 1e6:.2f}", f"{time / whole:.1%}"]


def _by_kind(kernels: list[KernelProfile]) -> Any:
    whole = sum(map(_total, kernels)) or 1
    rows = []
    for kind in sorted({kernel.kind for kernel in kernels}):
        own = [kernel for kernel in kernels if kernel.kind == kind]
        launches = sum(kernel.count for kernel in own)
        rows.append((kind, str(len(own)), f"{launches:,}", *_spent(sum(map(_total, own)), whole)))
    return table("kind", right=("kernels", "launches", "total ms", "share"), rows=rows)
