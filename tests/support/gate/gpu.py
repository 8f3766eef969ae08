"""The driver's functions for Python, as a CUDA program or a runtime library would call them."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import threading
import time
from ctypes import byref, c_char_p, c_float, c_int, c_uint, c_uint64, c_void_p
from typing import Any

# The arguments of calls that are made by address; everything else is passed as 64 bits.
SHAPE = [c_uint] * 7
ARGUMENTS: dict[str, list[Any]] = {
    "cuLaunchKernel": [c_void_p, *SHAPE, c_void_p, c_void_p, c_void_p],
    "cuLaunchCooperativeKernel": [c_void_p, *SHAPE, c_void_p, c_void_p],
    "cuLaunchKernelEx": [c_void_p, c_void_p, c_void_p, c_void_p],
    "cuGetProcAddress": [c_char_p, c_void_p, c_int, c_uint64],
    "cuGetProcAddress_v2": [c_char_p, c_void_p, c_int, c_uint64, c_void_p],
}


class LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("shape", c_uint * 7),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


class Place(ctypes.Structure):
    """Where an address lies (Dl_info)."""

    _fields_ = (("file", c_char_p), ("base", c_void_p), ("symbol", c_char_p), ("address", c_void_p))


class DriverError(Exception):
    pass


def passed(value: Any) -> Any:
    """Integers are pointers or fit into a register: 64 bits do for all of them."""
    if isinstance(value, str):
        return c_char_p(value.encode())
    return c_uint64(value & (2**64 - 1)) if isinstance(value, int) else value


class Gpu:
    """The driver. Handles are integers."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library)
        self.holding = ctypes.PyDLL(library)  # its calls keep Python's lock
        self.buffers: list[Any] = []

    def call(self, name: str, *args: Any) -> int:
        return int(getattr(self.library, name)(*map(passed, args)))

    def check(self, name: str, *args: Any) -> None:
        code = self.call(name, *args)
        if code:
            raise DriverError(f"{name}: {code}")

    def made(self, name: str, *args: Any) -> int:
        """Calls whose first argument is where the handle goes."""
        handle = c_uint64()
        self.check(name, byref(handle), *args)
        return handle.value

    def stub(self, name: str, *args: Any) -> int:
        function = getattr(self.library, "stub_" + name)
        function.restype = c_uint64
        return int(function(*map(passed, args)))

    def start(self) -> None:
        self.check("cuInit", 0)
        self.enter()

    def enter(self) -> None:
        """Each thread says which context it uses."""
        self.check("cuCtxSetCurrent", self.made("cuDevicePrimaryCtxRetain", 0))

    def stream(self, flags: int = 1) -> int:
        return self.made("cuStreamCreate", flags)

    def kernel(
        self, name: str, duration: int = 0, registers: int = 32, threads: int = 1024, shared: int = 0
    ) -> int:
        function = self.stub("kernel", name, registers, threads, shared)
        self.stub("kernel_duration", function, duration)
        return function

    def library_kernel(self, name: str, duration: int = 0) -> int:
        """As the runtime finds them: a CUkernel."""
        library = self.stub("library")
        self.stub("library_kernel", library, name, 32, 1024, 0)
        kernel = self.made("cuLibraryGetKernel", library, name)
        self.stub("kernel_duration", kernel, duration)
        return kernel

    def launch(
        self,
        kernel: int,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (32, 1, 1),
        shared: int = 0,
        stream: int = 0,
        entry: str = "cuLaunchKernel",
        count: int = 1,
        at: int = 0,
        gil: bool = False,
    ) -> int:
        """*entry* says how; *at* is the function's address where it was not found by its name."""
        function = self.function(entry, at, gil)
        base = entry.removesuffix("_ptsz")
        config = LaunchConfig((*grid, *block, shared), stream, None, 0)
        shape = (*grid, *block, shared)
        arguments = {
            "cuLaunchKernel": (kernel, *shape, stream, None, None),
            "cuLaunchCooperativeKernel": (kernel, *shape, stream, None),
            "cuLaunchKernelEx": (ctypes.addressof(config), kernel, None, None),
            "cuGraphLaunch": (kernel, stream),
        }[base]
        return max(int(function(*arguments)) for _ in range(count))

    def function(self, entry: str, at: int = 0, gil: bool = False) -> Any:
        types = ARGUMENTS.get(entry.removesuffix("_ptsz"), [c_void_p, c_void_p])
        if at:
            return ctypes.CFUNCTYPE(c_int, *types)(at)
        function = (self.holding if gil else self.library)[entry]
        function.argtypes = types
        function.restype = c_int
        return function

    def launched(self) -> list[str]:
        """The names of all kernels that the driver was asked to launch, in order."""
        function = self.library["stub_launch"]
        function.restype = c_char_p
        function.argtypes = [c_uint64]
        return [function(index).decode() for index in range(self.stub("launches"))]

    def begin(self, stream: int, mode: int = 0) -> int:
        return self.call("cuStreamBeginCapture_v2", stream, mode)

    def end(self, stream: int) -> tuple[int, int]:
        graph = c_uint64()
        return self.call("cuStreamEndCapture", stream, byref(graph)), graph.value

    def graph_of(self, kernels: list[int], stream: int) -> int:
        """Captured and instantiated."""
        assert self.begin(stream) == 0
        for kernel in kernels:
            assert self.launch(kernel, stream=stream) == 0
        code, graph = self.end(stream)
        assert code == 0
        return self.made("cuGraphInstantiateWithFlags", graph, 0)

    def capture_status(self, stream: int) -> tuple[int, int]:
        status = c_int(-1)
        return self.call("cuStreamIsCapturing", stream, byref(status)), status.value

    def exchange_mode(self, mode: int) -> int:
        value = c_int(mode)
        self.check("cuThreadExchangeStreamCaptureMode", byref(value))
        return value.value

    def event(self, flags: int = 0) -> int:
        return self.made("cuEventCreate", flags)

    def elapsed(self, start: int, end: int, entry: str = "cuEventElapsedTime") -> int:
        """In nanoseconds."""
        ms = c_float()
        self.check(entry, byref(ms), start, end)
        return round(ms.value * 1e6)

    def buffer(self, text: str, size: int = 0) -> int:
        """Host memory that begins with *text*; it stays."""
        self.buffers.append(ctypes.create_string_buffer(text.encode(), size or len(text) + 1))
        return ctypes.addressof(self.buffers[-1])

    def peek(self, at: int, count: int) -> str:
        return ctypes.string_at(at, count).decode()

    def word(self, at: int) -> int:
        return c_uint.from_address(at).value

    def proc(
        self, symbol: str, version: int, flags: int = 0, arguments: int = 5, at: int = 0
    ) -> tuple[int, int, int]:
        """Asks cuGetProcAddress in one of its forms: code, address and status (-1: not told)."""
        name = {4: "cuGetProcAddress", 5: "cuGetProcAddress_v2"}[arguments]
        address = c_uint64()
        status = c_int(-1)
        values: list[Any] = [symbol.encode(), ctypes.addressof(address), version, flags]
        if arguments == 5:
            values.append(ctypes.addressof(status))
        code = int(self.function(name, at)(*values))
        return code, address.value, status.value

    def reopen(self, name: str) -> None:
        """As another library of the program would."""
        self.library = ctypes.CDLL(name)

    def symbol(self, name: str) -> int:
        return ctypes.cast(self.library[name], c_void_p).value or 0

    def home(self, address: int) -> tuple[str, str]:
        """The file that it lies in, and its name there."""
        place = Place()
        assert ctypes.CDLL(None).dladdr(c_void_p(address), byref(place))
        return os.path.basename(os.path.realpath(place.file.decode())), (place.symbol or b"").decode()

    def mark_thread(self, kind: int, name: str | None = None) -> int:
        return int(self.library["astrarium_gate_mark_thread"](c_int(kind), name and name.encode()))

    def request_end(self) -> None:
        self.library["astrarium_gate_request_end"]()

    def phase_end(self) -> None:
        self.library["astrarium_gate_phase_end"]()

    def labour(self, kernel: int, stream: int, seconds: float) -> int:
        """Requests of a few launches, one after the other, with pauses; how many there were."""
        end = time.monotonic() + seconds
        requests = 0
        while time.monotonic() < end:
            assert self.launch(kernel, stream=stream, count=5) == 0
            self.check("cuStreamSynchronize", stream)
            self.request_end()
            self.phase_end()
            requests += 1
            time.sleep(0.0005)
        return requests

    def print_tracebacks(self) -> None:
        """As many programs do: this sets handlers of signals."""
        faulthandler.enable()

    def fault(self, path: str) -> None:
        """The program's own mistake: it reads beyond the end of a file."""
        with open(path, "wb+") as file:
            file.truncate(mmap.PAGESIZE)
            memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
            file.truncate(0)
            memory.read(1)

    def fork(self, orders: list[tuple[str, list[Any]]]) -> int:
        """A child that does these orders, and then waits until it is ended; returns when it has done them."""
        reading, writing = os.pipe()
        child = os.fork()
        if child:
            os.close(writing)
            assert os.read(reading, 1) == b"!", "the child failed"
            return child
        for do, args in orders:
            getattr(self, do)(*args)
        os.write(writing, b"!")
        threading.Event().wait()
        raise AssertionError("not reached")

    def fork_and_leave(self) -> int:
        """A child that does nothing and leaves in an orderly way, with all that is done at exit."""
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def add(self, one: int, other: int) -> int:
        """Needs Python and nothing else."""
        return one + other
