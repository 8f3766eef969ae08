"""What only serving needs of a scenario file is read here: backends, tensors, the `server` section."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astrarium.core.errors import InputError, one_of, written_in
from astrarium.core.profiles import BySize, Profile, profile_by_length
from astrarium.serving.scenario.schema import ModelEntry
from astrarium.serving.scenario.server_options import ServerOptions, Tls
from astrarium.serving.scenario.tensor_entries import MODEL, BackendChoice, TensorEntry
from astrarium.serving.scenario.tokenization import TEXT, Tokenization, check_texts

if TYPE_CHECKING:
    from astrarium.serving.live.backends.contract import ModelFiles
    from astrarium.serving.live.tensors import TensorSpec


BACKEND_FORM = "one backend with its model, such as {onnx: model.onnx} or {python: words.py:detect}"


def check_served(entry: ModelEntry, field: str) -> None:
    """Check what the simulator ignores of a model."""
    if entry.accepts and entry.preprocess is None:
        raise InputError(f"{field}.accepts", None, "`preprocess` beside it: what turns these into the inputs")
    if isinstance(entry.preprocess, Tokenization):
        check_texts(entry.accepts, f"{field}.accepts")
    for side in ("inputs", "outputs", "accepts"):
        _check_tensors(getattr(entry, side), f"{field}.{side}")
    _check_unlimited(entry.outputs, f"{field}.outputs")
    _check_filled(entry, field)


def check_sizes(entry: ModelEntry, profile: Profile, field: str) -> None:
    """Check the lengths of a profile against the inputs; a worker does it where a model file tells these."""
    by_length = profile_by_length(profile)
    if not entry.inputs or by_length is None:
        return
    from astrarium.serving.live.fills import check_lengths, check_sizes

    try:
        if isinstance(by_length, BySize):
            check_sizes(_marked(entry), by_length.sizes)
        else:
            check_lengths(_marked(entry), list(by_length.lengths))
    except InputError as error:
        raise error.at(field) from None


def specs(tensors: tuple[TensorEntry, ...]) -> tuple[TensorSpec, ...]:
    from astrarium.serving.live.tensors import TensorSpec

    return tuple(
        TensorSpec(tensor.name, tensor.datatype, tensor.sizes, tensor.values, tensor.finite, tensor.ranges)
        for tensor in tensors
    )


def server_options(options: ServerOptions, base: Path, serving: bool) -> ServerOptions:
    """Return the options with absolute file names. That the files exist matters only to who serves."""

    def absolute(name: str, field: str) -> str:
        return _file(name, base, f"server.{field}", serving)

    changed: dict[str, Any] = {}
    if options.tls is not None:
        changed["tls"] = Tls(absolute(options.tls.cert, "tls.cert"), absolute(options.tls.key, "tls.key"))
    if options.api_keys is not None:
        changed["api_keys"] = absolute(options.api_keys, "api_keys")
    if options.record is not None:
        changed["record"] = str(base / options.record)
    return msgspec.structs.replace(options, **changed)


def read_backend(entry: ModelEntry, name: str, base: Path) -> BackendChoice:
    """Return a model's backend; one without is emulated, and nothing is imported for it."""
    field = f"models.{name}.backend"
    if entry.backend is None:
        if entry.pack:
            raise InputError(
                field, None, f"{BACKEND_FORM}: what `pack` is for (the model is emulated without)"
            )
        return BackendChoice()
    backend, options = _only_choice(entry.backend, field)
    from astrarium.serving.live.backends.contract import ModelFiles

    tensors = specs(entry.inputs), specs(entry.outputs)
    files = ModelFiles(name, backend, options, *tensors, entry.max_batch, base, entry.lengths, entry.mask)
    files = replace(files, offsets=entry.offsets, pack=entry.pack)
    return BackendChoice(backend, _options(files, field))


def _only_choice(raw: Any, field: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(raw, dict) or len(raw) != 1:
        raise InputError(field, raw, BACKEND_FORM)
    (backend, options), *_ = raw.items()
    if isinstance(options, str):
        return str(backend), {MODEL: options}
    if not isinstance(options, dict | None):
        raise InputError(f"{field}.{backend}", options, "the model's name, or a mapping of options")
    return str(backend), {str(name): value for name, value in (options or {}).items()}


def _options(files: ModelFiles, field: str) -> dict[str, Any]:
    from astrarium.serving.live.backends import backends, checked_options, placed

    with written_in(field, files.backend):
        backends.get(files.backend)
    try:
        return dict(checked_options(files))
    except InputError as error:
        raise placed(error, files.name, files.backend) from None


def _check_tensors(tensors: tuple[TensorEntry, ...], field: str) -> None:
    names = [tensor.name for tensor in tensors]
    for place, name in enumerate(names):
        if name in names[:place]:
            expected = f"a name of its own, not {one_of(names[:place])}"
            raise InputError(f"{field}[{place}].name", name, expected)


def _check_filled(entry: ModelEntry, field: str) -> None:
    """Check the inputs that the server fills; a worker does it where a model file tells the inputs."""
    if not entry.inputs or not (entry.lengths or entry.mask or entry.offsets or entry.pack):
        return
    from astrarium.serving.live.packing import check_outputs

    try:
        _marked(entry)
        if entry.pack:
            check_outputs(specs(entry.outputs))
    except InputError as error:
        raise error.at(field) from None


def _marked(entry: ModelEntry) -> tuple[TensorSpec, ...]:
    from astrarium.serving.live.fills import marked

    return marked(specs(entry.inputs), entry.lengths, entry.mask, entry.offsets, entry.pack)


def _check_unlimited(outputs: tuple[TensorEntry, ...], field: str) -> None:
    for place, output in enumerate(outputs):
        limits = (("values", output.values), ("finite", output.finite), ("shape", output.ranges))
        for limit, value in limits:
            if value:
                expected = "to be left out: only what clients send is checked"
                raise InputError(f"{field}[{place}].{limit}", value, expected)


def read_preprocess(choice: str | Tokenization | None, base: Path, field: str) -> str | Tokenization | None:
    """Return what makes the inputs, with an absolute file name."""
    if choice is None:
        return None
    from astrarium.serving.live.backends.references import existing, resolved

    if isinstance(choice, str):
        return resolved(choice, base, field)
    path = existing(choice.tokenizer, base, f"{field}.tokenizer")
    return msgspec.structs.replace(choice, tokenizer=str(path))


def read_accepts(entry: ModelEntry) -> tuple[TensorEntry, ...]:
    """Return what clients send where that is not what the model takes: to a tokenizer, a text."""
    return entry.accepts or ((TEXT,) if isinstance(entry.preprocess, Tokenization) else ())


def _file(name: str, base: Path, field: str, needed: bool) -> str:
    path = base / name
    if needed and not path.is_file():
        raise InputError(field, name, f"a file; there is none at {path}")
    return str(path)
