"""A profile for iGniter holds what was measured of a kind of GPU and of the models on it."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Annotated, Any

import msgspec

from astrarium.core.errors import InputError

SOURCE = "igniter.json"


def shipped_profile() -> Any:
    """Return the profile that comes along, of AlexNet, ResNet50, VGG19 and SSD on a V100, as plain data."""
    return json.loads(files("astrarium.placement").joinpath(SOURCE).read_text(encoding="utf-8"))


Above0 = Annotated[float, msgspec.Meta(gt=0)]
From0 = Annotated[float, msgspec.Meta(ge=0)]
Row = tuple[Above0, ...]
_UNKNOWNS = 5  # of the curve of active times


class Copies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements of 1, 2, 3, ... copies: power in W, frequency in MHz, and a kernel's wait in ms."""

    power: Row
    frequency: Row
    idle: Row


class GpuMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements of a GPU: *bandwidth* in bytes a ms, *unit* (of shares) in percent."""

    frequency: Above0
    power_cap: Above0
    idle_power: From0
    bandwidth: Above0
    unit: Annotated[float, msgspec.Meta(gt=0, le=100)]
    copies: Copies


class Beside(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Active times in ms, alone and beside a model that used *l2_use* of the cache, with the frequency."""

    active_alone: Above0
    active: Above0
    frequency: Above0
    l2_use: Above0


class ModelMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements of a model by batch size and share; `l2_use[i]` is for the i-th of both."""

    input_bytes: From0
    output_bytes: From0
    kernels: Annotated[int, msgspec.Meta(ge=0)]
    idle: From0
    latency: tuple[Row, ...]
    power: tuple[Row, ...]
    frequency: tuple[Row, ...]
    l2_use: Row
    beside: Beside


class IgniterProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A profile holds measurements to fit: times in ms, power in W, frequencies in MHz, shares in percent."""

    source: str
    batches: tuple[Annotated[int, msgspec.Meta(ge=1)], ...]
    shares: Row
    gpu: GpuMeasured
    models: dict[str, ModelMeasured]

    def __post_init__(self) -> None:
        if len(self.batches) * len(self.shares) <= _UNKNOWNS or min(len(self.batches), len(self.shares)) < 3:
            raise InputError("batches", list(self.batches), "three batch sizes and three shares at least")
        for name, model in self.models.items():
            for table in ("latency", "power", "frequency"):
                _check_table(f"models.{name}.{table}", getattr(model, table), self)
            if len(model.l2_use) != min(len(self.batches), len(self.shares)):
                raise InputError(f"models.{name}.l2_use", list(model.l2_use), "a number for each batch size")
        copies = self.gpu.copies
        if not 3 <= len(copies.power) == len(copies.frequency) == len(copies.idle):
            raise InputError("gpu.copies", None, "power, frequency and idle for 1, 2, 3 copies at least")


def _check_table(field: str, table: tuple[Row, ...], profile: IgniterProfile) -> None:
    rows = len(profile.batches)
    columns = len(profile.shares)
    if len(table) != rows or any(len(row) != columns for row in table):
        expected = f"{rows} rows (batch sizes) of {columns} numbers (shares)"
        raise InputError(field, [list(row) for row in table], expected)
