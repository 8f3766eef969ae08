"""Region handlers answer the paths of the protocol's extensions for shared memory."""

from __future__ import annotations

from typing import Any

from astrarium.server.http.bodies import BodyReader
from astrarium.server.http.forms import read_form
from astrarium.server.http.replies import Reply, json_reply
from astrarium.server.http.routing import HttpRequest, Route
from astrarium.server.protocol import wire
from astrarium.server.protocol.regions import no_cuda

_SYSTEM = "/v2/systemsharedmemory"
_CUDA = "/v2/cudasharedmemory"
_ONE = "region/{region}"


class RegionHandlers:
    def __init__(self, bodies: BodyReader) -> None:
        self._bodies = bodies

    async def regions(self, request: HttpRequest) -> Reply:
        found = request.regions.all(request.names.get("region", ""))
        return json_reply([wire.RegionEntry(one.name, one.key, one.offset, one.size) for one in found])

    async def region(self, request: HttpRequest) -> Reply:
        return await self.regions(request)

    async def register_region(self, request: HttpRequest) -> Reply:
        form = await read_form(self._bodies, request, wire.RegionForm)
        request.regions.register(request.names["region"], form.key, form.offset, form.byte_size)
        return json_reply({})

    async def unregister_regions(self, request: HttpRequest) -> Reply:
        await read_form(self._bodies, request, wire.ChangeRequest)
        request.regions.unregister(request.names.get("region", ""))
        return json_reply({})

    async def unregister_region(self, request: HttpRequest) -> Reply:
        return await self.unregister_regions(request)

    async def cuda_regions(self, _: HttpRequest) -> Reply:
        return json_reply([])

    async def register_cuda_region(self, request: HttpRequest) -> Reply:
        raise no_cuda(request.names["region"])

    async def unregister_cuda_regions(self, request: HttpRequest) -> Reply:
        await read_form(self._bodies, request, wire.ChangeRequest)
        return json_reply({})

    async def unregister_cuda_region(self, request: HttpRequest) -> Reply:
        return await self.unregister_cuda_regions(request)


def region_routes(h: RegionHandlers) -> list[Route]:
    entries: dict[str, Any] = {"answer": list[wire.RegionEntry]}
    change: dict[str, Any] = {"answer": dict, "body": wire.ChangeRequest}
    return [
        Route("GET", f"{_SYSTEM}/status", h.regions, "Regions of shared memory", **entries, statuses=(400,)),
        Route("GET", f"{_SYSTEM}/{_ONE}/status", h.region, "One region", **entries, statuses=(400,)),
        Route(
            "POST",
            f"{_SYSTEM}/{_ONE}/register",
            h.register_region,
            "Register a region",
            answer=dict,
            body=wire.RegionForm,
            statuses=(429,),
        ),
        Route("POST", f"{_SYSTEM}/unregister", h.unregister_regions, "Unregister all regions", **change),
        Route("POST", f"{_SYSTEM}/{_ONE}/unregister", h.unregister_region, "Unregister a region", **change),
        Route("GET", f"{_CUDA}/status", h.cuda_regions, "Regions in memory of GPUs: none", answer=list),
        Route(
            "POST",
            f"{_CUDA}/{_ONE}/register",
            h.register_cuda_region,
            "Not served: always 400",
            answer=dict,
            statuses=(400,),
        ),
        Route("POST", f"{_CUDA}/unregister", h.unregister_cuda_regions, "Does nothing", **change),
        Route("POST", f"{_CUDA}/{_ONE}/unregister", h.unregister_cuda_region, "Does nothing", **change),
    ]
