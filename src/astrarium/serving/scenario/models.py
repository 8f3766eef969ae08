"""The `models` section: profiles in all their forms, zoos and copies written out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astrarium.core.decode import Decoder, constructed
from astrarium.core.distributions import DISTRIBUTIONS, Constant, Distribution, Mode, Modes, Samples
from astrarium.core.errors import InputError, did_you_mean, one_of, written_in
from astrarium.core.plain_data import read_yaml
from astrarium.core.profiles import Dynamic, Kinds, Linear, Profile, Table
from astrarium.core.quantities import Duration
from astrarium.placement.problem import parse_shape
from astrarium.serving import zoo
from astrarium.serving.scenario import schema
from astrarium.serving.traces import read_samples

if TYPE_CHECKING:
    from astrarium.serving.live.backends.contract import ModelFiles
    from astrarium.serving.live.tensors import TensorSpec


# Reading what only serving needs: backends, tensors, the `server` section.


BACKEND_FORM = "one backend with its model, such as {onnx: model.onnx} or {python: words.py:detect}"


def check_served(entry: schema.ModelEntry, field: str) -> None:
    """Check what the simulator ignores of a model."""
    if entry.accepts and entry.preprocess is None:
        raise InputError(f"{field}.accepts", None, "`preprocess` beside it: what turns these into the inputs")
    for side in ("inputs", "outputs", "accepts"):
        _check_tensors(getattr(entry, side), f"{field}.{side}")
    _check_unlimited(entry.outputs, f"{field}.outputs")


def specs(tensors: tuple[schema.TensorEntry, ...]) -> tuple[TensorSpec, ...]:
    from astrarium.serving.live.tensors import TensorSpec

    return tuple(TensorSpec(**msgspec.structs.asdict(tensor)) for tensor in tensors)


def server_options(options: schema.ServerOptions, base: Path, serving: bool) -> schema.ServerOptions:
    """File names made absolute. That they exist matters only to who serves."""

    def absolute(name: str, field: str) -> str:
        return _file(name, base, f"server.{field}", serving)

    changed: dict[str, Any] = {}
    if options.tls is not None:
        changed["tls"] = schema.Tls(
            absolute(options.tls.cert, "tls.cert"), absolute(options.tls.key, "tls.key")
        )
    if options.api_keys is not None:
        changed["api_keys"] = absolute(options.api_keys, "api_keys")
    if options.record is not None:
        changed["record"] = str(base / options.record)
    return msgspec.structs.replace(options, **changed)


def _backend(entry: schema.ModelEntry, name: str, base: Path) -> schema.BackendChoice:
    """A model without a backend is emulated; nothing is imported for it."""
    if entry.backend is None:
        return schema.BackendChoice()
    field = f"models.{name}.backend"
    backend, options = _only_choice(entry.backend, field)
    from astrarium.serving.live.backends.contract import ModelFiles

    files = ModelFiles(
        name, backend, options, specs(entry.inputs), specs(entry.outputs), entry.max_batch, base
    )
    return schema.BackendChoice(backend, _options(files, field))


def _only_choice(raw: Any, field: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(raw, dict) or len(raw) != 1:
        raise InputError(field, raw, BACKEND_FORM)
    (backend, options), *_ = raw.items()
    if isinstance(options, str):
        return str(backend), {schema.MODEL: options}
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


def _check_tensors(tensors: tuple[schema.TensorEntry, ...], field: str) -> None:
    names = [tensor.name for tensor in tensors]
    for place, name in enumerate(names):
        if name in names[:place]:
            expected = f"a name of its own, not {one_of(names[:place])}"
            raise InputError(f"{field}[{place}].name", name, expected)


def _check_unlimited(outputs: tuple[schema.TensorEntry, ...], field: str) -> None:
    for place, output in enumerate(outputs):
        for limit, value in (("values", output.values), ("finite", output.finite)):
            if value:
                expected = "to be left out: only what clients send is checked"
                raise InputError(f"{field}[{place}].{limit}", value, expected)


def _preprocess(reference: str | None, base: Path, field: str) -> str | None:
    if reference is None:
        return None
    from astrarium.serving.live.backends.references import resolved

    return resolved(reference, base, field)


def _file(name: str, base: Path, field: str, needed: bool) -> str:
    path = base / name
    if needed and not path.is_file():
        raise InputError(field, name, f"a file; there is none at {path}")
    return str(path)


ZOO = "zoo:"
PROFILE_FORM = (
    "zoo:GPU/MODEL, FILE.yaml, {alpha, beta}, {table: ...}, {kinds: ...} or {dynamic: ...}, "
    "such as zoo:1080Ti/ResNet50 or {alpha: 1.053ms, beta: 5.072ms}"
)
_MEASURED = "`astrarium profile FILE --model NAME --write` measures the profile of a model with a backend"
DISTRIBUTION_FORM = (
    f"one distribution: {', '.join(DISTRIBUTIONS)}, such as {{normal: {{mean: 10ms, std: 2ms}}}}"
)


def written_out(raw: Any) -> Any:
    """`zoo:A100` as the mapping it stands for; anything else as it is."""
    if not isinstance(raw, str):
        return raw
    if not raw.startswith(ZOO):
        raise InputError("models", raw, "a mapping from names to models, or a whole zoo such as zoo:A100")
    gpu = raw.removeprefix(ZOO)
    try:
        return {name: {"profile": f"{ZOO}{gpu}/{name}"} for name in zoo.models(gpu)}
    except InputError as error:
        raise error.at("models") from None


class ModelReader:
    """*base* is the folder that relative file names start from."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self.decoder = Decoder({Profile: self._profile, Distribution: self._distribution})

    def read(self, raw: Any) -> dict[str, schema.Model]:
        raw = written_out(raw)
        if not isinstance(raw, dict) or not raw:
            raise InputError(
                "models", raw or "nothing", "at least one model, as NAME: {profile: ..., slo: ...}"
            )
        models: dict[str, schema.Model] = {}
        for name, entry in raw.items():
            for given, model in self._models(name, entry):
                if given in models:
                    raise InputError(f"models.{name}", given, "a name that no other model or copy has")
                models[given] = model
        return models

    def _models(self, name: Any, raw: Any) -> list[tuple[str, schema.Model]]:
        field = f"models.{name}"
        _check_name(name, field)
        if isinstance(raw, dict) and "profile" not in raw:
            raise InputError(f"{field}.profile", None, f"{PROFILE_FORM}; {_MEASURED}")
        entry: schema.ModelEntry = self.decoder.decode_struct(schema.ModelEntry, raw, field)
        profile = self._profile(entry.profile, f"{field}.profile")
        slo = entry.slo if entry.slo is not None else _zoo_slo(entry.profile)
        if slo is None:
            raise InputError(f"{field}.slo", None, "a value: only zoo profiles bring their own SLO")
        check_served(entry, field)
        backend = _backend(entry, name, self._base)
        preprocess = _preprocess(entry.preprocess, self._base, f"{field}.preprocess")
        _check_parallel(entry.parallel, f"{field}.parallel")
        read = {"profile": profile, "slo": slo, "backend": backend, "preprocess": preprocess, "copies": None}
        model = schema.Model(**{**msgspec.structs.asdict(entry), **read})
        if entry.copies is None:
            return [(name, model)]
        return [(f"{name}-{copy}", model) for copy in range(entry.copies)]

    def _profile(self, raw: Any, field: str) -> Profile:
        if isinstance(raw, str) and raw.startswith(ZOO):
            return _zoo_model(raw, field).profile
        if is_profile_file(raw):
            return self._profile(_profile_file(self._base / raw, raw, field), field)
        if not isinstance(raw, dict):
            raise InputError(field, "nothing" if raw is None else raw, PROFILE_FORM)
        if "alpha" in raw or "beta" in raw:
            return self.decoder.decode_struct(Linear, raw, field)
        readers = {"table": self._table, "kinds": self._kinds, "dynamic": self._dynamic}
        form = _only_key(raw, list(readers), field, PROFILE_FORM)
        return readers[form](raw[form], f"{field}.{form}")

    def _table(self, raw: Any, field: str) -> Profile:
        times = self.decoder.decode(tuple[Duration, ...] | dict[schema.Count, Duration], raw, field)
        points = times if isinstance(times, dict) else dict(enumerate(times, 1))
        return constructed(Table, raw, field, points=points)

    def _kinds(self, raw: Any, field: str) -> Profile:
        profiles = self.decoder.decode(dict[str, Profile], raw, field)
        for kind, profile in profiles.items():
            if isinstance(profile, Dynamic | Kinds):
                raise InputError(f"{field}.{kind}", raw[kind], "a profile that is zoo, linear or a table")
        return Kinds(profiles)

    def _dynamic(self, raw: Any, field: str) -> Profile:
        return self.decoder.decode_struct(Dynamic, raw, field)

    def _distribution(self, raw: Any, field: str) -> Distribution:
        form = _only_key(raw, list(DISTRIBUTIONS), field, DISTRIBUTION_FORM)
        body = raw[form]
        field = f"{field}.{form}"
        if form == Constant.form:
            return constructed(Constant, body, field, time=self.decoder.decode(Duration, body, field))
        if form == Modes.form:
            modes = self.decoder.decode(tuple[Mode, ...], body, field)
            return constructed(Modes, body, field, modes=modes)
        if form == Samples.form:
            return self._samples(body, field)
        return self.decoder.decode_struct(DISTRIBUTIONS[form], body, field)

    def _samples(self, raw: Any, field: str) -> Distribution:
        if isinstance(raw, list):
            times = sorted(self.decoder.decode(tuple[Duration, ...], raw, field))
            return constructed(Samples, raw, field, times=tuple(times))
        file = str(self._base / self.decoder.decode(str, raw, field))
        times = _from(field, raw, file)
        return constructed(Samples, raw, field, times=tuple(times), file=file)


def _check_name(name: Any, field: str) -> None:
    """Clients ask for a model by its name, in a URL and over gRPC: the same one everywhere."""
    if not isinstance(name, str) or not name:
        raise InputError(field, name, "a name that is text; put it in quotes")
    if "/" in name or name in (".", ".."):
        expected = "a name without '/' (and not . or ..): it is one part of a URL, /v2/models/NAME/infer"
        raise InputError(field, name, expected)


def _check_parallel(parallel: dict[str, schema.Parallel], field: str) -> None:
    for name, part in parallel.items():
        if parse_shape(name, f"{field}.{name}").gpus < 2:
            raise InputError(
                f"{field}.{name}", name, "several GPUs, such as op1pp2: two stages of one GPU each"
            )
        if isinstance(part.profile, Dynamic | Kinds):
            raise InputError(f"{field}.{name}.profile", None, "a profile that is zoo, linear or a table")
        if not part.memory:
            raise InputError(
                f"{field}.{name}.memory", None, "what it needs of each of its GPUs, such as 8GiB"
            )


def is_profile_file(raw: Any) -> bool:
    return isinstance(raw, str) and raw.endswith((".yaml", ".yml"))


def _profile_file(path: Path, raw: str, field: str) -> Any:
    """What `astrarium profile` wrote."""
    if not path.is_file():
        raise InputError(field, raw, f"a file with a profile; there is none at {path}")
    found = read_yaml(path)
    if is_profile_file(found):
        raise InputError(field, raw, "a file with a profile, not with another file's name")
    return found


def _from(field: str, raw: Any, file: str) -> list[Duration]:
    if not Path(file).is_file():
        raise InputError(field, raw, f"a file of measured times; there is none at {file}")
    try:
        return read_samples(file)
    except InputError as error:
        place = f"{error.field} of {file}" if error.field else file
        raise InputError(field, error.value, f"{error.expected}, at {place}") from None


def _zoo_model(raw: str, field: str) -> zoo.ZooModel:
    gpu, slash, name = raw.removeprefix(ZOO).partition("/")
    if not slash:
        raise InputError(field, raw, "zoo:GPU/MODEL, such as zoo:1080Ti/ResNet50")
    with written_in(field, raw):
        return zoo.lookup(gpu, name)


def _zoo_slo(profile: Any) -> Duration | None:
    is_zoo = isinstance(profile, str) and profile.startswith(ZOO)
    return _zoo_model(profile, "").slo if is_zoo else None


def _only_key(raw: Any, names: list[str], field: str, form: str) -> str:
    if not isinstance(raw, dict) or len(raw) != 1:
        raise InputError(field, "nothing" if raw is None else raw, form)
    key = str(next(iter(raw)))
    if key not in names:
        raise InputError(f"{field}.{key}", raw[next(iter(raw))], f"{form}{did_you_mean(names, key)}")
    return key
