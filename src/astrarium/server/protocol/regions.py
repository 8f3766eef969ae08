"""Regions are memory of clients on this machine, where tensors of their calls lie that are in no message.

The native regions (native/exchange/regions.h) open, read and write them, for network threads as well as from
here. Each belongs to whoever has registered it: a user of this machine, with an API key where there are keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from astrarium.core.errors import one_of
from astrarium.server.contract import Kind, Refused
from astrarium.server.protocol.checking import CheckedTensor, bad, bytes_of
from astrarium.serving.live.tensors import Tensor, TensorSpec

if TYPE_CHECKING:
    from astrarium._front import Region, Regions

# as RegionOwner in native/exchange/regions.h
ANY_USER = -1
UNKNOWN_USER = -2
PREFIX = "shared_memory"
_REGION = "shared_memory_region"
_SIZE = "shared_memory_byte_size"
_OFFSET = "shared_memory_offset"
_LARGEST = 2**63 - 1


class RegionPart(NamedTuple):
    """A part of a region is where a tensor of one call lies."""

    region: Region
    at: int
    size: int
    field: str  # of the tensor in its request

    def read(self, model: str) -> bytes:
        data = self.region.read(self.at, self.size)
        if data is None:
            raise bad(f"{self.field}.parameters.{_REGION}", self.region.name, _AS_LARGE, model)
        return data

    def write(self, tensor: Tensor) -> None:
        """Write an output; Refused as network threads refuse it (native/front/calls/refusals.h)."""
        size = len(tensor.data)
        if size > self.size:
            expected = f"at least {size} bytes of region {self.region.name!r}"
            raise bad(f"output {tensor.name}: {_SIZE}", self.size, expected)
        if not self.region.write(self.at, tensor.data):
            raise bad(f"output {tensor.name}: {_REGION}", self.region.name, _AS_LARGE)


_AS_LARGE = "memory as large as it was registered"


class ClientRegions:
    """The regions of one client: nobody else reaches them, and it reaches no others."""

    def __init__(self, native: Regions | None, user: Callable[[], int], key: int) -> None:
        self._native = native
        self._user = user
        self._key = key

    @property
    def allowed(self) -> bool:
        return self._native is not None and self._native.allowed

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        native, owner = self._registry()
        for field, value in (("offset", offset), ("byte_size", byte_size)):
            if not 0 <= value <= _LARGEST:
                raise bad(field, value, f"a whole number of bytes up to {_LARGEST}")
        field, expected = native.add(*owner, name, key, offset, byte_size)
        if expected and not field:
            raise Refused(Kind.OVERLOADED, f"region {name}: expected {expected}", retry_after=1.0)
        if expected:
            raise bad(field, {"name": name, "key": key, "byte_size": byte_size}[field], expected)

    def unregister(self, name: str = "") -> None:
        """Unregister a region, or all; calls that use one end as if it were still there."""
        if self.allowed:
            native, owner = self._registry()
            native.remove(*owner, name)

    def all(self, name: str = "") -> Sequence[Region]:
        """Return all regions, or that of this name."""
        if not self.allowed:
            return [] if not name else [self._find(name, "region", "")]
        native, owner = self._registry()
        return [self._find(name, "region", "")] if name else native.of(*owner)

    def input_part(
        self, tensor: CheckedTensor, parameters: Mapping[str, Any], limit: int, model: str
    ) -> RegionPart | None:
        """Return where an input lies, or None where it is in the request; *limit* is in bytes."""
        part = self._part(tensor.field, parameters, model)
        if part is None:
            return None
        size = bytes_of(tensor)
        field = f"{tensor.field}.parameters.{_SIZE}"
        if size is not None and part.size != size:
            raise bad(field, part.size, f"{size} for {tensor.spec.datatype} {list(tensor.shape)}", model)
        if part.size > limit:
            raise _too_large(field, part.size, limit, model)
        return part

    def output_part(
        self, spec: TensorSpec, field: str, parameters: Mapping[str, Any], rows: int, model: str
    ) -> RegionPart | None:
        """Return where the client wants an output, or None where it wants it in the answer."""
        part = self._part(field, parameters, model)
        if part is None:
            return None
        if spec.item_bytes is not None and part.size < rows * spec.item_bytes:
            expected = f"at least {rows * spec.item_bytes} for {rows} x {spec.datatype} {list(spec.shape)}"
            raise bad(f"{field}.parameters.{_SIZE}", part.size, expected, model)
        if not part.region.is_writable:
            expected = "memory that both the client and the server may write"
            raise bad(f"{field}.parameters.{_REGION}", part.region.name, expected, model)
        return part

    def _part(self, field: str, parameters: Mapping[str, Any], model: str) -> RegionPart | None:
        names = [name for name in parameters if name.startswith(PREFIX)]
        if not names:
            return None
        field = f"{field}.parameters"
        if not self.allowed:
            expected = "tensors inside the request: there are no regions (server.shared_memory)"
            raise bad(field, names[0], expected, model)
        for name in names:
            if name not in (_REGION, _SIZE, _OFFSET):
                raise bad(field, name, one_of([_REGION, _SIZE, _OFFSET], name), model)
        region = self._find(parameters.get(_REGION), f"{field}.{_REGION}", model)
        size = _whole(parameters, _SIZE, 1, field, model)
        at = _whole(parameters, _OFFSET, 0, field, model) if _OFFSET in parameters else 0
        if at + size > region.size:
            raise bad(f"{field}.{_SIZE}", size, f"at most {max(region.size - at, 0)}, {_ends(region)}", model)
        return RegionPart(region, at, size, field.removesuffix(".parameters"))

    def _find(self, name: object, field: str, model: str) -> Region:
        if not self.allowed or not isinstance(name, str):
            raise bad(field, name, "the name of a region that this client has registered", model)
        native, owner = self._registry()
        region = native.find(*owner, name)
        if region is None:
            known = [region.name for region in native.of(*owner)[:_SHOWN]]
            expected = one_of(known, name) if known else "a region that this client has registered"
            raise bad(field, name, expected, model)
        return region

    def _registry(self) -> tuple[Regions, tuple[int, int]]:
        """Return the native regions, and who this client is there."""
        if self._native is None or not self._native.allowed:
            expected = "tensors in messages: this server takes no shared memory (server.shared_memory)"
            raise bad("shared memory", None, expected)
        user = self._user() if self._native.local else ANY_USER
        if user == UNKNOWN_USER:
            raise bad("shared memory", None, _LOCAL)
        return self._native, (user, self._key)


_SHOWN = 16  # names in a refusal
_LOCAL = (
    "a client on the same machine, over loopback and without TLS on gRPC, so that its user is known "
    "(else server.shared_memory_clients: any)"
)
NO_REGIONS = ClientRegions(None, lambda: UNKNOWN_USER, -1)


def no_cuda(region: str) -> Refused:
    """Return the refusal of a region in the memory of a GPU, which this server never opens."""
    return bad("CUDA region", region, "system shared memory: this server opens no memory of GPUs")


def check_total(parts: Iterable[RegionPart | None], limit: int, model: str) -> None:
    """Refuse inputs in regions that are together larger than a request may be."""
    size = sum(part.size for part in parts if part is not None)
    if size > limit:
        raise _too_large(f"inputs: {_SIZE}", size, limit, model)


def _too_large(field: str, size: int, limit: int, model: str) -> Refused:
    return Refused(Kind.TOO_LARGE, bad(field, size, f"at most {limit} bytes", model).reason)


def _whole(parameters: Mapping[str, Any], name: str, least: int, field: str, model: str) -> int:
    value = parameters.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise bad(f"{field}.{name}", value, f"a whole number of bytes, at least {least}", model)
    return value


def _ends(region: Region) -> str:
    return f"where region {region.name!r} of {region.size} bytes ends"
