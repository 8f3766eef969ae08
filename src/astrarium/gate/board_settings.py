"""People write settings of a board so: window=150us, allowance=0.05, chunk=2MiB."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.quantities import read_bytes, read_duration, write_bytes, write_duration
from astrarium.gate.board import native


class BoardSetting(msgspec.Struct, frozen=True):
    """A setting of the board has a unit: ns, bytes, sms, kernels, share or factor."""

    name: str
    unit: str
    least: float
    most: float
    about: str


def settings_table() -> dict[str, BoardSetting]:
    return {
        setting.name: setting for setting in msgspec.convert(native().setting_table(), list[BoardSetting])
    }


FORM = "NAME=VALUE, such as window=150us"


def read_settings(texts: Iterable[str], field: str = "--set") -> dict[str, float]:
    """Read settings; names, units and ranges are checked before anything is changed."""
    table = settings_table()
    return dict(_read(text, table, field) for text in texts)


def _read(text: str, table: dict[str, BoardSetting], field: str) -> tuple[str, float]:
    name, equals, raw = text.partition("=")
    if not equals:
        raise InputError(field, text, FORM)
    if name not in table:
        raise InputError(field, name, one_of(list(table), name))
    setting = table[name]
    try:
        value = _READ.get(setting.unit, float)(raw)
    except ValueError as error:
        expected = str(error) if setting.unit in _READ else "a number"
        raise InputError(f"{field} {name}", raw, expected) from None
    if not setting.least <= value <= setting.most:
        expected = f"{_shown(setting, setting.least)} to {_shown(setting, setting.most)}"
        raise InputError(f"{field} {name}", raw, expected)
    return name, value


def write_setting(name: str, value: float) -> str:
    return _shown(settings_table()[name], value)


def _whole(raw: str) -> int:
    try:
        return int(raw)
    except ValueError:
        raise ValueError("a whole number") from None


def _shown(setting: BoardSetting, value: float) -> str:
    if setting.unit == "ns":
        return write_duration(int(value))
    return write_bytes(int(value)) if setting.unit == "bytes" else f"{value:.4g}"


_READ: dict[str, Callable[[str], float]] = {
    "ns": read_duration,
    "bytes": read_bytes,
    "sms": _whole,
    "kernels": _whole,
}
