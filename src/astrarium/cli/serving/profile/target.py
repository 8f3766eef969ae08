"""The model to measure is one of a scenario, or a file by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astrarium.core.errors import InputError, one_of, written_in
from astrarium.core.plain_data import read_yaml
from astrarium.serving.live import fills
from astrarium.serving.live.backends import backends, examples, placed
from astrarium.serving.live.backends.contract import LoadedModel, ModelFiles, Place, package
from astrarium.serving.live.ranges import Sizes, sizes_of
from astrarium.serving.live.tensors import DATATYPES, TensorSpec
from astrarium.serving.scenario import Scenario, load
from astrarium.serving.scenario.model_files import model_files

_ENDINGS = {".onnx": "onnx", ".pt2": "torch", ".pt": "torch"}
INPUT_FORM = (
    "NAME:TYPE:SHAPE, such as IMAGE:FP32:3,224,224 (the shape of one item) or TOKENS:INT64:1..512 (a range)"
)
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
    sizes = [_size(size.strip(), text) for size in parts[2].split(",") if size.strip()]
    shape = tuple(-1 if isinstance(size, tuple) else size for size in sizes)
    ranges = tuple(size if isinstance(size, tuple) else None for size in sizes)
    return TensorSpec(parts[0], parts[1], shape, ranges=ranges if any(ranges) else ())


def _size(size: str, text: str) -> int | Sizes:
    if not size.isdigit():
        try:
            return sizes_of(size, "") or 0
        except InputError:
            pass
    elif int(size) > 0:
        return int(size)
    raise InputError("--input", text, f"sizes of at least 1 in {INPUT_FORM}")


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
    section = {"model": text, **options}
    return Target(name, ModelFiles(name, backend, section, tuple(inputs), base=Path.cwd()))


def _of_scenario(path: Path, wanted: str | None) -> Target:
    scenario = loaded(path)
    name = wanted or _only_real(scenario)
    if name not in scenario.models:
        raise InputError("--model", name, one_of(list(scenario.models), name), str(path))
    model = scenario.models[name]
    if model.backend.name == "emulated":
        expected = f"a model with a backend of its own; {name} is emulated and takes what its profile says"
        raise InputError("--model", name, expected, str(path))
    described = {files.name: files for files in model_files(scenario, scenario.cluster.kinds[0])}
    # A profile is measured anew.
    files = replace(described[name], buckets=(), bucket_sizes=(), bucket_shares=())
    return Target(name, files, model.max_batch, model.slo, path)


def loaded(path: Path) -> Scenario:
    """Models that nobody has measured yet may have no profile."""
    raw = read_yaml(path)
    models = raw.get("models") if isinstance(raw, dict) else None
    entries = models.items() if isinstance(models, dict) else ()
    unknown = [name for name, entry in entries if isinstance(entry, dict) and "profile" not in entry]
    overrides = [f"models.{name}.profile={_UNKNOWN_YET}" for name in unknown]
    if isinstance(raw, dict) and raw.get("workload") is not None:
        overrides.append("workload=null")  # it may speak of lengths before there is a profile that does
    return load(path, overrides, serving=True)


def _only_real(scenario: Scenario) -> str:
    real = [name for name, model in scenario.models.items() if model.backend.name != "emulated"]
    if len(real) != 1:
        expected = f"{one_of(real)}" if real else "a scenario with a model that is not emulated"
        raise InputError("--model", None, expected)
    return real[0]


def load_model(target: Target, device: str, largest: int, lengths: Sequence[int]) -> LoadedModel:
    """Load a model to be measured at these lengths: where it can, it is prepared for them."""
    files = replace(target.files, max_batch=largest, buckets=tuple(lengths))
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


def shaped(loaded: LoadedModel, specs: list[TensorSpec], files: ModelFiles) -> list[TensorSpec]:
    """The model's inputs, with the sizes that were given on the command line, and what the server fills."""
    known = {spec.name: spec for spec in examples.inputs_of(loaded)}
    for spec in specs:
        if spec.name not in known:
            raise InputError("--input", spec.name, one_of(list(known), spec.name))
        ends = [examples.shape_of(spec, choose) for choose in (min, max)]
        if spec.datatype != known[spec.name].datatype or not all(map(known[spec.name].admits, ends)):
            expected = f"{known[spec.name].datatype} with the shape {list(known[spec.name].shape)}"
            raise InputError("--input", f"{spec.datatype} {list(spec.shape)}", expected)
    sized = {spec.name: replace(known[spec.name], shape=spec.shape, ranges=spec.ranges) for spec in specs}
    chosen = {**known, **sized}
    if not chosen:
        raise InputError("--input", None, "the inputs: this model cannot tell them")
    filled = files.lengths, files.mask, files.offsets, files.pack
    return list(fills.marked(list(chosen.values()), *filled))
