"""A kernel trace lists the kernels of one request or iteration, as `astrarium gate profile` writes them:
text, with cells split by tabs.

    astrarium-kernels 1
    device    NAME   SMS
    kernel    INDEX  NAME  GX,GY,GZ  BX,BY,BZ  SHARED_BYTES  DURATION_NS  P95_NS  COUNT  SMS  KIND
    launches  0 1 2 1 ...
    phase     POSITION  forward | backward | update

`launches` are the numbers of kernels in the order of their launches. A phase begins at a position in that
order; everything is forward until one does, and a phase without a name is backward after forward, else
forward. Lines that start with # are comments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.quantities import Time
from astrarium.gate.kernel_profiles import KernelProfile, KernelUse, named_cells, read_kernel, whole_number

HEADER = "astrarium-kernels 1"
PHASES = ("forward", "backward", "update")


class KernelTrace(msgspec.Struct, frozen=True):
    """A trace has the kernels of a request or iteration, by launch; `phases[i]` is that of launch i."""

    device: str
    sms: int
    kernels: tuple[KernelProfile, ...]
    launches: tuple[int, ...]
    phases: tuple[str, ...]

    @property
    def duration(self) -> Time:
        """Return the time of the kernels one after another."""
        return sum(self.kernels[index].duration for index in self.launches)

    def use(self, index: int) -> KernelUse:
        kernel = self.kernels[index]
        return kernel.use or modelled_use(kernel.kind, kernel.sms / self.sms)


# The two kernels whose use Orion printed (section 3.2): a convolution that fills the GPU, and a batch
# normalization that fills 40 % of its SMs.
CONVOLUTION = KernelUse(0.89, 0.20)
NORMALIZATION = KernelUse(0.14, 0.80)
NORMALIZATION_SMS = 0.4


def modelled_use(kind: str, sms: float) -> KernelUse:
    """Return the use of a kernel for which none was recorded: a compute kernel is taken to be like Orion's
    convolution on as many SMs, a memory kernel like its normalization (from 40 % of the SMs on it uses the
    bandwidth as that does), an unknown one like half of a convolution. Copies use neither."""
    share = min(1.0, sms)
    if kind == "memory":
        part = min(1.0, share / NORMALIZATION_SMS)
        return KernelUse(NORMALIZATION.compute * part, NORMALIZATION.memory * part)
    part = {"compute": share, "unknown": share / 2, "copy": 0.0}[kind]
    return KernelUse(CONVOLUTION.compute * part, CONVOLUTION.memory * part)


def parse_kernels(lines: Iterable[str]) -> KernelTrace:
    reader = _Reader()
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            reader.read(number, line)
    return reader.finished()


class _Reader:
    """The reader goes line by line; its errors name the line, the field and its value."""

    def __init__(self) -> None:
        self.header = False
        self.device: tuple[str, int] | None = None
        self.kernels: dict[int, KernelProfile] = {}  # by their numbers in the file, which may have gaps
        self.launches: tuple[int, ...] | None = None
        self.phases: list[tuple[int, str]] = []
        self.line = 0

    def read(self, number: int, line: str) -> None:
        self.line = number
        if not self.header:
            if line.strip() != HEADER:
                raise InputError(f"line {number}", line.strip(), HEADER)
            self.header = True
            return
        word, *cells = line.split("\t")
        readers: dict[str, Callable[[list[str]], None]] = {
            "device": self._device,
            "kernel": self._kernel,
            "launches": self._launches,
            "phase": self._phase,
        }
        if word not in readers:
            raise InputError(f"line {number}", word, one_of(list(readers), word))
        try:
            readers[word](cells)
        except InputError as error:
            field = f"line {number}" + (f": {error.field}" if error.field else "")
            raise InputError(field, error.value, error.expected) from None

    def finished(self) -> KernelTrace:
        if self.device is None or self.launches is None:
            missing = (
                HEADER if not self.header else "a line `device`" if self.device is None else "`launches`"
            )
            raise InputError(f"line {self.line}", None, f"{missing} before the end")
        phases = ["forward"] * len(self.launches)
        for position, phase in self.phases:
            phases[position:] = [phase] * (len(phases) - position)
        places = {number: place for place, number in enumerate(self.kernels)}
        launches = tuple(places[number] for number in self.launches)
        return KernelTrace(*self.device, tuple(self.kernels.values()), launches, tuple(phases))

    def _device(self, cells: list[str]) -> None:
        name, sms = named_cells(cells, ("name", "sms"))
        self.device = name, whole_number("device sms", sms, 1)

    def _kernel(self, cells: list[str]) -> None:
        number, kernel = read_kernel(cells)
        if number in self.kernels:
            raise InputError("index", str(number), "a number that no kernel above has")
        self.kernels[number] = kernel

    def _launches(self, cells: list[str]) -> None:
        (text,) = named_cells(cells, ("launches",))
        numbers = tuple(whole_number("launches", word) for word in text.split())
        unknown = next((number for number in numbers if number not in self.kernels), None)
        if unknown is not None or not numbers:
            raise InputError("launches", unknown, "numbers of kernels above, at least one")
        self.launches = numbers

    def _phase(self, cells: list[str]) -> None:
        position, phase = named_cells([*cells, self._next_phase()][:2], ("position", "phase"))
        if phase not in PHASES:
            raise InputError("phase", phase, one_of(list(PHASES), phase))
        at = whole_number("position", position)
        least = self.phases[-1][0] if self.phases else 0
        most = len(self.launches or ())
        if self.launches is None or not least <= at <= most:
            raise InputError("position", position, f"a place in the launches above, {least} to {most}")
        self.phases.append((at, phase))

    def _next_phase(self) -> str:
        last = self.phases[-1][1] if self.phases else "forward"
        return "backward" if last == "forward" else "forward"
