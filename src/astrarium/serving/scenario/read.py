"""Scenario files: read, overridden, checked in every part, resolved."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from astrarium.core.choice import Seed, read_choice
from astrarium.core.decode import check_keys
from astrarium.core.errors import InputError, read_from
from astrarium.core.overrides import overridden
from astrarium.core.plain_data import read_yaml
from astrarium.core.quantities import Duration
from astrarium.serving.scenario import build
from astrarium.serving.scenario.cluster import Cluster
from astrarium.serving.scenario.lengths import LengthReader
from astrarium.serving.scenario.models import ModelReader, written_out
from astrarium.serving.scenario.rates import check_rates
from astrarium.serving.scenario.schema import DEFAULT_POLICY, Delays, Model, Preemption, Profiling, Scenario
from astrarium.serving.scenario.served import server_options
from astrarium.serving.scenario.server_options import ServerOptions
from astrarium.serving.scenario.workload import Workload

_REQUIRED = ("cluster", "models", "workload")
_NEEDED_TO_SERVE = ("cluster", "models")


def load(
    path: str | Path, overrides: Sequence[str] = (), serving: bool = False, planning: bool = False
) -> Scenario:
    """Read a scenario file, with `-o` overrides such as 'policy.name=eager'.

    To be served it needs no workload, but the files that its `server` section names. To be planned, its
    models need not fit all together on every GPU.
    """
    raw = read_yaml(Path(path))
    with read_from(path):
        raw = overridden(raw, overrides, {"models": written_out})
    try:
        return parse(raw, str(path), Path(path).parent, serving, planning)
    except InputError as error:
        raise _with_way_out(error, overrides) from None


def _with_way_out(error: InputError, overrides: Sequence[str]) -> InputError:
    """A policy that is named by -o alone gets the parameters that the file has for its own."""
    overridden = {key.strip(): value for key, _, value in (text.partition("=") for text in overrides)}
    name = overridden.get("policy.name")
    if name is None or not error.field.startswith("policy.") or error.field in overridden:
        return error
    way_out = f"; -o 'policy={{name: {name}}}' leaves out the parameters of the file's own policy"
    return InputError(error.field, error.value, error.expected + way_out, error.source)


def parse(
    raw: Any, source: str = "", base: Path | None = None, serving: bool = False, planning: bool = False
) -> Scenario:
    """Check plain data; files it names are looked for from *base*."""
    with read_from(source):
        return _parsed(raw, Path(os.path.abspath(base or Path())), serving, planning)


def _parsed(raw: Any, base: Path, serving: bool, planning: bool) -> Scenario:
    if not isinstance(raw, dict):
        raise InputError("", raw, f"a mapping with {', '.join(_REQUIRED)}")
    check_keys(raw, [info.name for info in msgspec.structs.fields(Scenario)], "")
    _check_sections(raw, serving)
    reader = ModelReader(base)
    models = reader.read(raw["models"])
    decode = reader.decoder.decode
    fields: dict[str, Any] = {
        "models": models,
        "policy": read_choice(raw.get("policy"), "policy", DEFAULT_POLICY),
    }
    fields["cluster"] = decode(Cluster, raw["cluster"], "cluster")
    if raw.get("workload") is not None:
        fields["workload"] = _workload(decode(Workload, raw["workload"], "workload"), models, base)
        read = LengthReader(models, base, reader.decoder)
        fields["workload"] = read.workload(fields["workload"], serving)
    fields["server"] = server_options(decode(ServerOptions, raw.get("server") or {}, "server"), base, serving)
    for name, kind in (
        ("network", Delays),
        ("preemption", Preemption),
        ("profiling", Profiling),
    ):
        fields[name] = decode(kind, raw[name] if raw.get(name) is not None else {}, name)
    if "seed" in raw:
        fields["seed"] = decode(Seed, raw["seed"], "seed")
    scenario = Scenario(**fields)
    build.policy(scenario, build.setup(scenario, placed=planning))  # what only shows when the parts meet
    return scenario


def _check_sections(raw: dict[str, Any], serving: bool) -> None:
    for name in _NEEDED_TO_SERVE if serving else _REQUIRED:
        if raw.get(name) is None:
            exception = " (only serving does without)" if name == "workload" else ""
            raise InputError(name, None, f"a value: this section is required{exception}")


def _workload(workload: Workload, models: dict[str, Model], base: Path) -> Workload:
    if workload.file is None:
        check_rates(workload, list(models))
        return workload
    from astrarium.serving.scenario.arrivals import check_trace
    from astrarium.serving.traces import read_trace

    file = str(base / workload.file)
    if not Path(file).is_file():
        raise InputError("workload.file", workload.file, f"a trace file; there is none at {file}")
    trace = read_trace(file)
    check_trace(trace, models)
    duration = workload.duration or Duration(trace.last + 1)  # the last one counts too
    try:
        return msgspec.structs.replace(workload, file=file, duration=duration)
    except InputError as error:
        raise error.at("workload") from None
