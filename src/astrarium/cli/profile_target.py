"""Which model `astrarium profile` measures: one of a scenario, or a file by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astrarium.core.errors import InputError, one_of

if TYPE_CHECKING:
    from astrarium.engines.backends.contract import ModelFiles
    from astrarium.engines.tensors import TensorSpec
    from astrarium.scenario import Scenario

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


_IN_THE_FILE = "no such option: a scenario says it in the model's `backend`"


def tensor_of(text: str) -> TensorSpec:
    """'IMAGE:FP32:3,224,224' as a spec."""
    from astrarium.engines.tensors import DATATYPES, TensorSpec

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
    from astrarium.engines.backends.contract import ModelFiles
    from astrarium.engines.backends.registry import backends

    try:
        backends.get(backend)
    except InputError as error:
        raise InputError("--backend", backend, error.expected) from None
    name = Path(text.rpartition(":")[0] or text).stem
    given = {"model": text, **options}
    return Target(name, ModelFiles(name, backend, given, tuple(inputs), base=Path.cwd()))


def _of_scenario(path: Path, wanted: str | None) -> Target:
    from astrarium.scenario.build import model_files

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
    from astrarium.scenario import load
    from astrarium.scenario.yaml_file import read_yaml

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
