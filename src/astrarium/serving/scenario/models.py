"""The `models` section: profiles in all their forms, zoos and copies written out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from astrarium.core.decode import Decoder, check_keys, constructed
from astrarium.core.distributions import DISTRIBUTIONS, Constant, Distribution, Mode, Modes, Samples
from astrarium.core.errors import InputError, did_you_mean, written_in
from astrarium.core.plain_data import read_yaml
from astrarium.core.profiles import ByLength, BySize, Dynamic, Kinds, Linear, Profile, Table, by_size
from astrarium.core.quantities import Duration
from astrarium.core.size_grid import size_of
from astrarium.placement.problem import parse_shape
from astrarium.serving import zoo
from astrarium.serving.scenario.schema import Count, Model, ModelEntry, Parallel
from astrarium.serving.traces import read_samples

if TYPE_CHECKING:
    pass
from astrarium.serving.scenario.served import (
    check_served,
    check_sizes,
    read_accepts,
    read_backend,
    read_preprocess,
)

ZOO = "zoo:"
PROFILE_FORM = (
    "zoo:GPU/MODEL, FILE.yaml, {alpha, beta}, {table: ...}, {lengths: ...}, {kinds: ...} or {dynamic: ...}, "
    "such as zoo:1080Ti/ResNet50 or {alpha: 1.053ms, beta: 5.072ms}"
)
_MEASURED = "`astrarium profile FILE --model NAME --write` measures the profile of a model with a backend"
DISTRIBUTION_FORM = (
    f"one distribution: {', '.join(DISTRIBUTIONS)}, such as {{normal: {{mean: 10ms, std: 2ms}}}}"
)


def written_out(raw: Any) -> Any:
    """Return `zoo:A100` as the mapping it stands for; anything else as it is."""
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

    def read(self, raw: Any) -> dict[str, Model]:
        raw = written_out(raw)
        if not isinstance(raw, dict) or not raw:
            raise InputError(
                "models", raw or "nothing", "at least one model, as NAME: {profile: ..., slo: ...}"
            )
        models: dict[str, Model] = {}
        for name, entry in raw.items():
            for model_name, model in self._models(name, entry):
                if model_name in models:
                    raise InputError(f"models.{name}", model_name, "a name that no other model or copy has")
                models[model_name] = model
        return models

    def _models(self, name: Any, raw: Any) -> list[tuple[str, Model]]:
        field = f"models.{name}"
        _check_name(name, field)
        if isinstance(raw, dict) and "profile" not in raw:
            raise InputError(f"{field}.profile", None, f"{PROFILE_FORM}; {_MEASURED}")
        entry: ModelEntry = self.decoder.decode_struct(ModelEntry, raw, field)
        profile = self._profile(entry.profile, f"{field}.profile")
        slo = entry.slo if entry.slo is not None else _zoo_slo(entry.profile)
        if slo is None:
            raise InputError(f"{field}.slo", None, "a value: only zoo profiles bring their own SLO")
        check_served(entry, field)
        check_sizes(entry, profile, field)
        backend = read_backend(entry, name, self._base)
        preprocess = read_preprocess(entry.preprocess, self._base, f"{field}.preprocess")
        _check_parallel(entry.parallel, f"{field}.parallel")
        read = {
            "profile": profile,
            "slo": slo,
            "backend": backend,
            "preprocess": preprocess,
            "accepts": read_accepts(entry),
            "copies": None,
        }
        model = Model(**{**msgspec.structs.asdict(entry), **read})
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
        if ByLength.form in raw:
            return self._by_length(raw, field)
        readers = {"table": self._table, "kinds": self._kinds, "dynamic": self._dynamic}
        form = _only_key(raw, list(readers), field, PROFILE_FORM)
        return readers[form](raw[form], f"{field}.{form}")

    def _by_length(self, raw: dict[str, Any], field: str) -> Profile:
        tables = raw[ByLength.form]
        if not isinstance(tables, dict) or not any("x" in str(key) for key in tables):
            return self.decoder.decode_struct(ByLength, raw, field)
        check_keys(raw, [ByLength.form, "together"], field)
        together = self.decoder.decode(
            Literal["bucket", "length"], raw.get("together", "bucket"), f"{field}.together"
        )
        sizes = {}
        for key, table in tables.items():
            place = f"{field}.{ByLength.form}.{key}"
            try:
                size = size_of(key)
            except InputError as error:
                raise error.at(place) from None
            sizes[size] = self.decoder.decode(dict[Count, Duration], table, place)
        try:
            return by_size(sizes, together)
        except InputError as error:
            raise error.at(field) from None

    def _table(self, raw: Any, field: str) -> Profile:
        times = self.decoder.decode(tuple[Duration, ...] | dict[Count, Duration], raw, field)
        points = times if isinstance(times, dict) else dict(enumerate(times, 1))
        return constructed(Table, raw, field, points=points)

    def _kinds(self, raw: Any, field: str) -> Profile:
        profiles = self.decoder.decode(dict[str, Profile], raw, field)
        for kind, profile in profiles.items():
            if isinstance(profile, Dynamic | Kinds):
                expected = "a profile that is zoo, linear, a table or by length"
                raise InputError(f"{field}.{kind}", raw[kind], expected)
        _check_lengths_of_kinds(profiles, field)
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
    """Check a name by which clients ask for a model, in a URL and over gRPC."""
    if not isinstance(name, str) or not name:
        raise InputError(field, name, "a name that is text; put it in quotes")
    if "/" in name or name in (".", ".."):
        expected = "a name without '/' (and not . or ..): it is one part of a URL, /v2/models/NAME/infer"
        raise InputError(field, name, expected)


def _check_parallel(parallel: dict[str, Parallel], field: str) -> None:
    for name, part in parallel.items():
        if parse_shape(name, f"{field}.{name}").gpus < 2:
            raise InputError(
                f"{field}.{name}", name, "several GPUs, such as op1pp2: two stages of one GPU each"
            )
        if isinstance(part.profile, Dynamic | Kinds | ByLength):
            raise InputError(f"{field}.{name}.profile", None, "a profile that is zoo, linear or a table")
        if not part.memory:
            raise InputError(
                f"{field}.{name}.memory", None, "what it needs of each of its GPUs, such as 8GiB"
            )


def _check_lengths_of_kinds(profiles: Mapping[str, Profile], field: str) -> None:
    """Check that a model has the same lengths on every kind of GPU, or none on any."""
    first, *others = profiles
    for kind in others:
        if _grid(profiles[kind]) != _grid(profiles[first]):
            expected = f"the same lengths, `rounded` and `together` as on {first}"
            raise InputError(f"{field}.{kind}", None, expected)


def _grid(profile: Profile) -> Any:
    sizes = profile.sizes if isinstance(profile, BySize) else ()
    return isinstance(profile, ByLength) and (
        list(profile.lengths),
        profile.rounded,
        profile.together,
        sizes,
    )


def is_profile_file(raw: Any) -> bool:
    return isinstance(raw, str) and raw.endswith((".yaml", ".yml"))


def _profile_file(path: Path, raw: str, field: str) -> Any:
    """Return what `astrarium profile` wrote."""
    if not path.is_file():
        raise InputError(field, raw, f"a file with a profile; there is none at {path}")
    profile = read_yaml(path)
    if is_profile_file(profile):
        raise InputError(field, raw, "a file with a profile, not with another file's name")
    return profile


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
