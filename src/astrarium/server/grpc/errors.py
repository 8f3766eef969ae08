"""Refusals as gRPC status codes, and what comes with a call: its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, NoReturn

import grpc

from astrarium.server.contract import Kind, Refused

Context = Any  # grpc.aio.ServicerContext, which comes without types
Metadata = Mapping[bytes, bytes]


def metadata_of(context: Context) -> Metadata:
    """Return the call's metadata, names and values as bytes, as HTTP's headers are."""
    return {
        key.encode(): value if isinstance(value, bytes) else value.encode()
        for key, value in context.invocation_metadata() or ()
    }


async def abort(context: Context, refused: Refused) -> NoReturn:
    trailing: tuple[tuple[str, str], ...] = ()
    if refused.retry_after is not None or refused.kind is Kind.OVERLOADED:
        wait = max(1, ceil((refused.retry_after or 0.0) * 1000))
        # The first is what gRPC's own retries obey.
        trailing = (("grpc-retry-pushback-ms", f"{wait}"), ("retry-after", f"{max(1, ceil(wait / 1000))}"))
    await context.abort(grpc.StatusCode[refused.kind.grpc], refused.reason, trailing)
    raise AssertionError("abort returned")


def our_fault(error: Exception) -> str:
    """Return what a client is told of a defect of ours: its kind; the log has the rest."""
    return f"the server failed, not the request: {type(error).__name__}"
