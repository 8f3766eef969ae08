"""This module finds the library of the real CUDA driver, and asks it for GPUs."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from astrarium.core.errors import AstrariumError, InputError

DRIVER_VARIABLE = "ASTRARIUM_CUDA_DRIVER"
VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVER_NAME = "libcuda.so.1"
# Distributions, containers and WSL keep the library here; the compatibility package is for older drivers.
FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/local/cuda/compat",
)
PATIENCE = 60.0  # seconds: a driver that is being set up answers late

# The driver is asked in a process of its own: if it hangs or crashes, nothing else does.
_QUESTION = """
import ctypes, sys
driver, count, device, sms = ctypes.CDLL(sys.argv[1]), *(ctypes.c_int() for _ in range(3))
def ask(function, *arguments):
    code = getattr(driver, function)(*arguments)
    if code: sys.exit(f"{function} answered {code}")
ask("cuInit", 0)
ask("cuDeviceGetCount", ctypes.byref(count))
if not count.value: sys.exit("it has no device")
name = ctypes.create_string_buffer(256)
ask("cuDeviceGet", ctypes.byref(device), 0)
ask("cuDeviceGetName", name, 256, device)
ask("cuDeviceGetAttribute", ctypes.byref(sms), 16, device)
print(f'{count.value} {sms.value} {name.value.decode(errors="replace")}')
"""


class NoGpu(AstrariumError):
    """There is no GPU that could be shared; the message says what was looked for."""


class GpuInfo(NamedTuple):
    """The driver knows a GPU by this name, and with so many SMs."""

    name: str
    sms: int


def find_driver(environ: Mapping[str, str] = os.environ) -> Path:
    configured = environ.get(DRIVER_VARIABLE)
    if configured:
        path = Path(configured)
        if not path.is_file():
            raise InputError(DRIVER_VARIABLE, configured, "the path of the CUDA driver's library")
        return path.absolute()
    for path in _candidates(environ):
        if _ours(path):
            return path.absolute()
    raise NoGpu(
        f"no CUDA driver: looked for {DRIVER_NAME} in LD_LIBRARY_PATH, the loader's cache (ldconfig -p) "
        f"and {', '.join(FOLDERS)}; {DRIVER_VARIABLE} may name it"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    for folder in environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder:
            yield Path(folder) / DRIVER_NAME
    yield from _loader_cache()
    for folder in FOLDERS:
        yield Path(folder) / DRIVER_NAME


def _loader_cache() -> Iterator[Path]:
    for command in ("ldconfig", "/sbin/ldconfig"):
        try:
            known = subprocess.run([command, "-p"], capture_output=True, text=True).stdout
        except OSError:
            continue
        yield from map(Path, re.findall(rf"^\s*{re.escape(DRIVER_NAME)} .*=> (\S+)$", known, re.MULTILINE))
        return


def _ours(path: Path) -> bool:
    """Tell whether the library has this program's word size (the cache lists all), and is no linker's
    stub."""
    try:
        with path.open("rb") as file:
            head = file.read(5)
    except OSError:
        return False
    return head == b"\x7fELF" + bytes([struct.calcsize("P") // 4]) and "stubs" not in path.parts


def chosen_gpu(number: int = 0, environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of a GPU for CUDA_VISIBLE_DEVICES; if that is set, the number counts within it."""
    visible = environ.get(VISIBLE)
    if visible is None:
        return str(number)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if not names or names[0] == "-1":
        raise NoGpu(f"{VISIBLE}={visible} hides every GPU")
    if number >= len(names):
        raise InputError("--gpu", number, f"below {len(names)}: {VISIBLE} is {visible}")
    return names[number]


def probe(driver: Path, gpu: str, environ: Mapping[str, str] = os.environ) -> GpuInfo:
    """Ask the driver itself for a GPU's name and size: cuInit, then its devices."""
    answer = _ask(driver, gpu, {**environ, VISIBLE: gpu})
    return GpuInfo(answer.name, answer.sms)


def count_gpus(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many GPUs programs of this environment see, without importing PyTorch."""
    try:
        return _ask(find_driver(environ), environ.get(VISIBLE, "of this machine"), environ).gpus
    except NoGpu:
        return 0


class _Answer(NamedTuple):
    """The driver answers how many devices there are, and the size and the name of the first one."""

    gpus: int
    sms: int
    name: str


def _ask(driver: Path, gpu: str, environ: Mapping[str, str]) -> _Answer:
    asking = {name: value for name, value in environ.items() if name != "LD_PRELOAD"}
    command = [sys.executable, "-I", "-S", "-c", _QUESTION, str(driver)]
    try:
        answer = subprocess.run(command, env=asking, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise NoGpu(f"{driver} did not answer within {PATIENCE:.0f} s") from None
    if answer.returncode != 0:
        raise NoGpu(f"no GPU {gpu}: {_reason(answer, driver)} ({_device_files()})")
    count, sms, name = answer.stdout.strip().split(" ", 2)
    return _Answer(int(count), int(sms), name)


def _reason(answer: subprocess.CompletedProcess[str], driver: Path) -> str:
    lines = answer.stderr.strip().splitlines()
    if answer.returncode < 0:
        return f"asking {driver} ended with signal {-answer.returncode}"
    return f"{driver}: {lines[-1] if lines else 'no answer'}"


def _device_files() -> str:
    names = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    return f"device files: {', '.join(names)}" if names else "no device files /dev/nvidia0, ..."
