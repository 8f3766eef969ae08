"""Region methods are those of the protocol's extensions for shared memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from astrarium.server.grpc.errors import Context
from astrarium.server.grpc.messages import filled, message
from astrarium.server.protocol.regions import ClientRegions, no_cuda

RegionsOf = Callable[[Context], ClientRegions]


def region_methods(regions_of: RegionsOf) -> dict[str, Callable[[Any, Context], Awaitable[Any]]]:
    """Return the methods by name; *regions_of* says which regions a caller has."""

    async def status(request: Any, context: Context) -> Any:
        entries = {
            one.name: {"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.size}
            for one in regions_of(context).all(request.name)
        }
        return filled("SystemSharedMemoryStatusResponse", {"regions": entries})

    async def register(request: Any, context: Context) -> Any:
        regions_of(context).register(request.name, request.key, request.offset, request.byte_size)
        return message("SystemSharedMemoryRegisterResponse")()

    async def unregister(request: Any, context: Context) -> Any:
        regions_of(context).unregister(request.name)
        return message("SystemSharedMemoryUnregisterResponse")()

    async def cuda_status(_: Any, __: Context) -> Any:
        return message("CudaSharedMemoryStatusResponse")()

    async def cuda_register(request: Any, _: Context) -> Any:
        raise no_cuda(request.name)

    async def cuda_unregister(_: Any, __: Context) -> Any:
        return message("CudaSharedMemoryUnregisterResponse")()

    return {
        "SystemSharedMemoryStatus": status,
        "SystemSharedMemoryRegister": register,
        "SystemSharedMemoryUnregister": unregister,
        "CudaSharedMemoryStatus": cuda_status,
        "CudaSharedMemoryRegister": cuda_register,
        "CudaSharedMemoryUnregister": cuda_unregister,
    }
