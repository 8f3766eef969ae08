"""How trials train may be chosen from Python as under `live` in a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from astrarium.core.decode import Decoder
from astrarium.core.errors import InputError
from astrarium.core.plain_data import as_plain
from astrarium.core.quantities import SECOND, check_above_zero, duration_in
from astrarium.tuning.live.slots.messages import Keep, Packing


class Live(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of how trials train, as under `live` in a file; what is not given is up to the engine.

    *packing*: trials that share a GPU are "processes", or threads in "lanes" of one process. *gate*: they
    come under the kernel gate, where there is one. *checkpoints* are so far apart in a trial that goes on;
    *keep*: "best" keeps each candidate's best beside its newest, "last" the newest alone.
    *patience*: how long a process may give no sign of life until its trial goes on elsewhere. *threads* of
    the CPU for each process. *slots*: processes that are kept for each GPU. *preload*: modules that trainings
    need, and that take long to import. *memory*: without a folder, checkpoints are kept in memory (local).
    *address* of the Ray cluster, and *cpus* that go with each of its GPUs (ray).
    """

    packing: Packing | None = None
    gate: bool | None = None
    checkpoints: str | None = None
    keep: Keep | None = None
    patience: str | None = None
    threads: int | None = None
    slots: int | None = None
    preload: tuple[str, ...] | None = None
    memory: bool | None = None
    address: str | None = None
    cpus: float | None = None


def live_options(options: Live | Mapping[str, Any] | None) -> Live:
    """Return options of the class, which may be given as a mapping or not at all."""
    written = msgspec.to_builtins(options) if isinstance(options, Live) else as_plain(options or {})
    return Decoder().decode_struct(Live, written, "live")


def backend_settings(live: Live, engine: str) -> dict[str, Any]:
    """Return the keyword arguments of a trial backend for the options that were given."""
    for name in {"local": ("address", "cpus"), "ray": ("memory",)}[engine]:
        if getattr(live, name) is not None:
            raise InputError(f"live.{name}", getattr(live, name), f"nothing: {engine} has no such option")
    names = {"slots": "most", "checkpoints": "checkpoint_seconds"}
    settings = {name: getattr(live, name) for name in live.__struct_fields__}
    settings |= {name: _seconds(name, settings[name]) for name in ("checkpoints", "patience")}
    return {names.get(name, name): value for name, value in settings.items() if value is not None}


def _seconds(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    duration = duration_in(f"live.{name}", text)
    check_above_zero(f"live.{name}", duration)
    return duration / SECOND
