"""A profile that `astrarium profile` measures: of which model, how, and where it goes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from astrarium.cli import output
from astrarium.cli.output import bar
from astrarium.core.errors import InputError, one_of, written_in
from astrarium.core.plain_data import parse_yaml, read_yaml
from astrarium.core.quantities import write_duration
from astrarium.run.waiting import waiting
from astrarium.serving.live import profiling
from astrarium.serving.live.backends import backends, examples, placed
from astrarium.serving.live.backends.contract import LoadedModel, ModelFiles, Place, complete, package
from astrarium.serving.live.profiling import Care, Fit, MeasuredTimes
from astrarium.serving.live.tensors import DATATYPES, Array, TensorSpec
from astrarium.serving.scenario import Scenario, load
from astrarium.serving.scenario.model_files import model_files

# Puts a model's profile into the text of a scenario file and leaves all else, comments too, as it is.


_BY_HAND = "a file whose models are written out one by one; put the profile there by hand"


def with_profile(text: str, model: str, profile: str, source: str) -> str:
    """*profile* is YAML that fits on one line. InputError where the edit would change anything else."""
    before = parse_yaml(text, source)
    entry = _entry(text, model, source)
    start, end, new = _place(text, entry, profile)
    edited = text[:start] + new + text[end:]
    changed = {**before["models"][model], "profile": parse_yaml(profile, source)}
    wanted = {**before, "models": {**before["models"], model: changed}}
    if not _says(edited, wanted):  # anchors, merged keys: forms that share text between models
        raise InputError(f"models.{model}.profile", None, _BY_HAND, source)
    return edited


def _says(text: str, wanted: Any) -> bool:
    try:
        return bool(parse_yaml(text, "") == wanted)
    except InputError:
        return False


def _entry(text: str, model: str, source: str) -> yaml.MappingNode:
    models = _value(yaml.compose(text), "models")
    entry = _value(models, model) if isinstance(models, yaml.MappingNode) else None
    if not isinstance(entry, yaml.MappingNode) or not entry.value:
        raise InputError(f"models.{model}", None, _BY_HAND, source)
    return entry


def _place(text: str, entry: yaml.MappingNode, profile: str) -> tuple[int, int, str]:
    """Which stretch of the text becomes what."""
    present = _value(entry, "profile")
    if present is not None:
        return present.start_mark.index, _end(present), profile
    first = entry.value[0][0].start_mark
    if entry.flow_style:
        return first.index, first.index, f"profile: {profile}, "
    return first.index, first.index, f"profile: {profile}\n{' ' * first.column}"


def _value(node: Any, key: str) -> Any:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)


def _end(node: yaml.Node) -> int:
    """A block's own mark lies behind the comments that follow it: take the end of its last leaf."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


# The measuring of `astrarium profile`, with its progress bar and its tables.


_MIXED = (1, 2, 4, 8, 16)  # sizes of the batches that mix applications
_MADE_UP = (
    "measured with zeros and ones; a GPU may take a tenth longer for real inputs: give some with --data"
)


class Wanted(NamedTuple):
    """Which sizes are measured, and what the profile is to hold of them."""

    name: str
    largest: int
    limit: int | None  # the first size that takes longer is the last
    chance: float
    slack: float
    data: Path | None  # inputs of somebody's own


class Outcome(NamedTuple):
    profile: dict[str, Any]  # as a scenario has it
    table: Any


def by_size(model: LoadedModel, specs: Sequence[TensorSpec], care: Care, wanted: Wanted) -> Outcome:
    data = _data(wanted, specs)
    with waiting(f"warming up {wanted.name}"):
        model.warm_up([1])
        complete(model)
    sizes = examples.sizes(wanted.largest, getattr(model, "rooms", ()))
    measure = profiling.measuring(model, specs, care, data)
    measured = list[MeasuredTimes]()

    def enough(found: MeasuredTimes) -> bool:
        return wanted.limit is not None and found.quantile(wanted.chance) > wanted.limit

    with bar(f"profiling {wanted.name}", len(sizes)) as progress:
        for found in profiling.by_size(measure, sizes, enough):
            measured.append(found)
            if progress is not None:
                progress(len(measured))
    measured = profiling.in_order(measure, measured, wanted.chance)
    table = profiling.rising(measured, wanted.chance, wanted.slack)
    times = {size: write_duration(time) for size, time in table.items()}
    shown = _size_table(measured, table)
    if data is None and any(DATATYPES[spec.datatype].kind in "iu" and spec.values is None for spec in specs):
        shown.caption = _MADE_UP
    return Outcome({"table": times}, shown)


def _data(wanted: Wanted, specs: Sequence[TensorSpec]) -> dict[str, Array] | None:
    try:
        return None if wanted.data is None else examples.own(wanted.data, specs)
    except InputError as error:
        raise error.at("--data") from None


def by_application(model: LoadedModel, care: Care, wanted: Wanted) -> Outcome:
    generators = model.applications  # type: ignore[attr-defined]
    if wanted.data is not None:
        expected = f"to be left out: {wanted.name} makes inputs for each of its applications"
        raise InputError("--data", str(wanted.data), expected)
    sizes = [size for size in _MIXED if size <= wanted.largest]
    with bar(f"profiling {wanted.name}", care.repeats * len(generators)) as progress:
        fit = profiling.by_application(model, generators, sizes, care, progress or (lambda done: None))
    applications = {
        name: {"time": {"samples": [write_duration(time) for time in times]}}
        for name, times in fit.alone.items()
    }
    found = {"applications": applications, "c0": write_duration(fit.c0), "c1": round(fit.c1, 6)}
    return Outcome({"dynamic": found}, _application_table(fit))


def _size_table(measured: list[MeasuredTimes], table: dict[int, int]) -> Any:
    titles = ("batch", "p50 ms", "p95 ms", "p99 ms", "max ms", "profile ms", "items/s at p50")
    rows = []
    for found in measured:
        spread = [f"{found.quantile(chance) / 1e6:.3f}" for chance in (0.5, 0.95, 0.99, 1.0)]
        rate = f"{found.size * 1e9 / found.quantile(0.5):,.0f}"
        rows.append((str(found.size), *spread, f"{table[found.size] / 1e6:.3f}", rate))
    return output.table(right=titles, rows=rows)


def _application_table(fit: Fit) -> Any:
    rows = []
    for name, times in fit.alone.items():
        spread = [times[int((len(times) - 1) * chance)] / 1e6 for chance in (0.5, 0.99, 1.0)]
        rows.append((name, *(f"{time:.3f}" for time in spread)))
    shown = output.table(right=("application", "p50 ms", "p99 ms", "max ms"), rows=rows)
    shown.caption = (
        f"batches of k: c0 {fit.c0 / 1e6:.3f} ms + {fit.c1:.3f} k max, off by {fit.error:.0%} on average"
    )
    return shown


# Which model `astrarium profile` measures: one of a scenario, or a file by itself.


_ENDINGS = {".onnx": "onnx", ".pt2": "torch", ".pt": "torch"}
INPUT_FORM = "NAME:TYPE:SHAPE, such as IMAGE:FP32:3,224,224 (the shape of one item)"
TARGET_FORM = "a scenario (.yaml), a model (.onnx, .pt2, .pt) or Python code (file.py:function)"
_UNKNOWN_YET = "{table: [1ns]}"  # what the rest of a scenario is checked with before anything is measured
DEFAULT_LARGEST = 64


@dataclass(frozen=True)
class Target:
    name: str
    files: ModelFiles
    largest: int = DEFAULT_LARGEST
    slo: int | None = None  # no need to measure batches that take longer
    scenario: Path | None = None


def find(
    text: str,
    model: str | None,
    backend: str | None,
    inputs: Sequence[TensorSpec],
    options: Mapping[str, Any],
) -> Target:
    if Path(text).suffix in (".yaml", ".yml"):
        if backend is not None or options:
            raise InputError("--backend" if backend else "--option", backend or dict(options), _IN_THE_FILE)
        return _of_scenario(Path(text), model)
    if model is not None:
        raise InputError("--model", model, "a scenario file to look for it in")
    return _by_itself(text, backend or _guessed(text), inputs, options)


_IN_THE_FILE = "to be left out: a scenario says it in the model's `backend`"


def tensor_of(text: str) -> TensorSpec:
    """'IMAGE:FP32:3,224,224' as a spec."""
    parts = text.rsplit(":", 2)
    if len(parts) != 3 or not parts[0]:
        raise InputError("--input", text, INPUT_FORM)
    if parts[1] not in DATATYPES:
        raise InputError("--input", text, f"a type that is {one_of(list(DATATYPES), parts[1])}")
    sizes = [size.strip() for size in parts[2].split(",") if size.strip()]
    if not all(size.isdigit() and int(size) > 0 for size in sizes):
        raise InputError("--input", text, f"sizes of at least 1 in {INPUT_FORM}")
    return TensorSpec(parts[0], parts[1], tuple(map(int, sizes)))


def _guessed(text: str) -> str:
    if Path(text).suffix in _ENDINGS:
        return _ENDINGS[Path(text).suffix]
    if ":" in text:
        return "python"
    raise InputError("MODEL", text, TARGET_FORM)


def _by_itself(text: str, backend: str, inputs: Sequence[TensorSpec], options: Mapping[str, Any]) -> Target:
    with written_in("--backend", backend):
        backends.get(backend)
    name = Path(text.rpartition(":")[0] or text).stem
    given = {"model": text, **options}
    return Target(name, ModelFiles(name, backend, given, tuple(inputs), base=Path.cwd()))


def _of_scenario(path: Path, wanted: str | None) -> Target:
    scenario = _loaded(path)
    name = wanted or _only_real(scenario)
    if name not in scenario.models:
        raise InputError("--model", name, one_of(list(scenario.models), name), str(path))
    model = scenario.models[name]
    if model.backend.name == "emulated":
        expected = f"a model with a backend of its own; {name} is emulated and takes what its profile says"
        raise InputError("--model", name, expected, str(path))
    described = {files.name: files for files in model_files(scenario, scenario.cluster.kinds[0])}
    return Target(name, described[name], model.max_batch, model.slo, path)


def _loaded(path: Path) -> Scenario:
    """Models that nobody has measured yet may have no profile."""
    raw = read_yaml(path)
    models = raw.get("models") if isinstance(raw, dict) else None
    entries = models.items() if isinstance(models, dict) else ()
    unknown = [name for name, entry in entries if isinstance(entry, dict) and "profile" not in entry]
    return load(path, [f"models.{name}.profile={_UNKNOWN_YET}" for name in unknown], serving=True)


def _only_real(scenario: Scenario) -> str:
    real = [name for name, model in scenario.models.items() if model.backend.name != "emulated"]
    if len(real) != 1:
        expected = f"{one_of(real)}" if real else "a scenario with a model that is not emulated"
        raise InputError("--model", None, expected)
    return real[0]


def load_model(target: Target, device: str, largest: int) -> LoadedModel:
    files = replace(target.files, max_batch=largest)
    place = Place(device=_device(device, files.backend))
    try:
        return backends.get(files.backend)(files, place)
    except InputError as error:
        raise (placed(error, target.name, files.backend) if target.scenario else error.at("MODEL")) from None


def _device(wanted: str, backend: str) -> str:
    if wanted == "auto":
        return "cuda:0" if backend == "torch" and package("torch", "torch").cuda.is_available() else "cpu"
    number = wanted.removeprefix("cuda:")
    if wanted != "cpu" and (number == wanted or not number.isdigit()):
        raise InputError("--device", wanted, "cpu, auto, or a GPU such as cuda:0")
    return wanted


def shaped(loaded: LoadedModel, given: list[TensorSpec]) -> list[TensorSpec]:
    """The model's inputs, with the sizes that were given on the command line."""
    known = {spec.name: spec for spec in examples.inputs_of(loaded)}
    for spec in given:
        if spec.name not in known:
            raise InputError("--input", spec.name, one_of(list(known), spec.name))
        if spec.datatype != known[spec.name].datatype or not known[spec.name].admits(spec.shape):
            expected = f"{known[spec.name].datatype} with the shape {list(known[spec.name].shape)}"
            raise InputError("--input", f"{spec.datatype} {list(spec.shape)}", expected)
    chosen = {**known, **{spec.name: replace(known[spec.name], shape=spec.shape) for spec in given}}
    if not chosen:
        raise InputError("--input", None, "the inputs: this model cannot tell them")
    return list(chosen.values())


# Where a measured profile goes: a file of its own, the scenario, or the screen.


_LONGEST_LINE = 500


def check(target: Target, out: Path | None, write: bool) -> None:
    """Before anything is measured."""
    if write and target.scenario is None:
        raise InputError("--write", None, "a scenario file to write into; or --out FILE")
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise InputError("--out", str(out), "the name of a file in a folder that is there")
    if write:
        _edited(target, "{table: [1ns]}")


def write_profile(
    target: Target, profile: dict[str, Any], about: str, out: Path | None, into: bool
) -> list[str]:
    """The files that were written."""
    places = [] if out is None else [_save(out, f"# {about}\n{_block(profile)}")]
    if into:
        assert target.scenario is not None
        inline = _line(profile)
        if len(inline) > _LONGEST_LINE:  # samples by the hundred: in a file beside the scenario
            beside = target.scenario.with_name(f"{target.name}.profile.yaml")
            places.append(_save(beside, f"# {about}\n{_block(profile)}"))
            inline = beside.name
        places.append(_save(target.scenario, _edited(target, inline)))
    return places


def show(profile: dict[str, Any], places: list[str]) -> None:
    for place in places:
        print(f"written to {place}")
    if not places:
        print(f"profile: {_line(profile)}")


def _edited(target: Target, profile: str) -> str:
    assert target.scenario is not None
    text = target.scenario.read_text(encoding="utf-8")
    return with_profile(text, target.name, profile, str(target.scenario))


def _line(profile: dict[str, Any]) -> str:
    return str(yaml.safe_dump(profile, default_flow_style=True, sort_keys=False, width=10**9)).strip()


def _block(profile: dict[str, Any]) -> str:
    return str(yaml.safe_dump(profile, default_flow_style=None, sort_keys=False, width=100))


def _save(path: Path, text: str) -> str:
    """All of it or nothing: a scenario is never left half written."""
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
