"""A measured profile goes into a file of its own, into the scenario, or on the screen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from astrarium.cli.serving.profile.scenario_text import with_field
from astrarium.cli.serving.profile.target import Target
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND, Time, write_duration

_LONGEST_LINE = 500


def check(target: Target, out: Path | None, write: bool) -> None:
    """Refuse a place that could not be written, before anything is measured."""
    if write and target.scenario is None:
        raise InputError("--write", None, "a scenario file to write into; or --out FILE")
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise InputError("--out", str(out), "the name of a file in a folder that is there")
    if write:
        _edited(target, profile="{table: [1ns]}", path_time="1ns")


def write_profile(
    target: Target, profile: dict[str, Any], path_time: Time | None, about: str, out: Path | None, into: bool
) -> list[str]:
    """Write the profile, and into a scenario what a call takes of the path; return the files."""
    places = [] if out is None else [_save(out, f"# {about}\n{_block(profile)}")]
    if into:
        assert target.scenario is not None
        inline = _line(profile)
        if len(inline) > _LONGEST_LINE:  # samples by the hundred: in a file beside the scenario
            beside = target.scenario.with_name(f"{target.name}.profile.yaml")
            places.append(_save(beside, f"# {about}\n{_block(profile)}"))
            inline = beside.name
        times = {} if path_time is None else {"path_time": write_duration(path_time)}
        places.append(_save(target.scenario, _edited(target, **times, profile=inline)))
    return places


def show(profile: dict[str, Any], path_time: Time | None, places: list[str]) -> None:
    if path_time is not None:
        carried = f"it carries {SECOND / path_time:,.0f} a second"
        print(f"a call takes {write_duration(path_time)} of the busiest thread of the path: {carried}")
    for place in places:
        print(f"written to {place}")
    if not places:
        print(f"profile: {_line(profile)}")


def _edited(target: Target, **fields: str) -> str:
    assert target.scenario is not None
    text = target.scenario.read_text(encoding="utf-8")
    for field, value in fields.items():
        text = with_field(text, target.name, field, value, str(target.scenario))
    return text


def _line(profile: dict[str, Any]) -> str:
    return str(yaml.safe_dump(profile, default_flow_style=True, sort_keys=False, width=10**9)).strip()


def _block(profile: dict[str, Any]) -> str:
    return str(yaml.safe_dump(profile, default_flow_style=None, sort_keys=False, width=100))


def _save(path: Path, text: str) -> str:
    """Write all of a file or nothing: a scenario is never left half written."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        if path.exists():
            os.chmod(draft, path.stat().st_mode)
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise InputError("--out", str(path), f"a file that can be written: {error.strerror}") from None
    return str(path)
