"""`workload.lengths`, profiles by length and traces with lengths: what they may say, and what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from astrarium.core.errors import InputError
from astrarium.core.profiles import ByLength
from astrarium.core.quantities import MILLISECOND as MS
from astrarium.serving.level import events, run
from astrarium.serving.scenario import Scenario, build, parse
from astrarium.serving.scenario.model_files import model_files
from tests.serving.scenario.texts import TEXTS, texts

TABLE = {"profile": {"table": ["1ms", "2ms"]}, "slo": "20ms"}
NO_LENGTHS = {"cluster": {"gpus": 1}, "models": {"plain": TABLE}}


def drawn(lengths: Any) -> set[int]:
    return set(build.arrivals(texts(workload={"lengths": lengths})).length.tolist())


def raw(**workload: Any) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(TEXTS)
    data["models"]["plain"] = TABLE
    data["workload"] |= workload
    return data


@pytest.mark.parametrize(
    ("lengths", "values"),
    [
        ({"constant": 33}, {33}),
        ({"uniform": {"low": 4, "high": 6}}, {4, 5, 6}),
        ({"weights": {16: 1, 256: 2}}, {16, 256}),
        ({"samples": [8, 9, 8]}, {8, 9}),
        ({"encoder": {"constant": 12}}, {12}),
    ],
)
def test_every_form_is_read_and_drawn(lengths: Any, values: set[int]) -> None:
    assert drawn(lengths) == values


def test_texts_that_are_too_long_are_cut_off() -> None:
    lengths = drawn({"lognormal": {"median": 200, "sigma": 1.2}})
    assert max(lengths) == 256
    assert len(lengths) > 50


@pytest.mark.parametrize("header", ["", "length\n"])
def test_samples_come_from_a_file(tmp_path: Path, header: str) -> None:
    (tmp_path / "lengths.txt").write_text(f"{header}5\n\n70\n", encoding="utf-8")
    data = yaml.safe_load(TEXTS)
    data["workload"]["lengths"] = {"samples": "lengths.txt"}
    scenario = parse(data, base=tmp_path)
    assert set(build.arrivals(scenario).length.tolist()) == {5, 70}


def test_models_without_lengths_have_none() -> None:
    data = raw(rate={"encoder": "500/s", "plain": "500/s"})
    arrivals = build.arrivals(parse(data))
    assert set(arrivals.length[arrivals.model == 1].tolist()) == {0}
    assert set(arrivals.length[arrivals.model == 0].tolist()) == {16, 64, 256}


def test_lengths_are_drawn_apart_from_the_arrivals() -> None:
    one, other = (build.arrivals(texts(workload={"lengths": {"constant": c}})) for c in (16, 64))
    assert (one.time == other.time).all()


LENGTHS = "workload.lengths"
BAD: list[tuple[Any, str, str]] = [
    (None, LENGTHS, "how long the requests to encoder are"),
    ([1, 2], LENGTHS, "or a mapping from models to such"),
    ({}, LENGTHS, "one distribution of lengths"),
    ({"constnt": 3}, f"{LENGTHS}.constnt", "a model of the scenario"),
    ({"encodr": {"constant": 3}}, f"{LENGTHS}.encodr", "did you mean 'encoder'?"),
    ({"plain": {"constant": 3}}, f"{LENGTHS}.plain", "the profile of plain says nothing of lengths"),
    ({"encoder": {"constnt": 3}}, f"{LENGTHS}.encoder.constnt", "did you mean 'constant'?"),
    ({"encoder": 3}, f"{LENGTHS}.encoder", "one distribution of lengths"),
    ({"constant": 0}, f"{LENGTHS}.constant", "a whole number >= 1"),
    ({"constant": 257}, f"{LENGTHS}.constant", "at most 256, the longest that the profile of encoder knows"),
    ({"weights": {300: 1}}, f"{LENGTHS}.weights", "at most 256"),
    ({"weights": {16: -1}}, f"{LENGTHS}.weights.16", "a number >= 0"),
    ({"weights": {0: 1}}, f"{LENGTHS}.weights.0", "a whole number >= 1"),
    ({"constant": [3]}, f"{LENGTHS}.constant", "a whole number"),
    ({"samples": [5, 0]}, f"{LENGTHS}.samples[1]", "a whole number >= 1"),
    ({"weights": {16: 0}}, f"{LENGTHS}.weights", "at least one above 0"),
    ({"uniform": {"low": 9, "high": 2}}, f"{LENGTHS}.uniform.low", "at most 2"),
    ({"uniform": {"low": 9}}, f"{LENGTHS}.uniform.high", "required"),
    ({"lognormal": {"median": 0, "sigma": 1}}, f"{LENGTHS}.lognormal.median", "a number > 0"),
    ({"samples": []}, f"{LENGTHS}.samples", "at least one length"),
    ({"samples": "nowhere.txt"}, f"{LENGTHS}.samples", "there is none at"),
]


@pytest.mark.parametrize(("lengths", "field", "right"), BAD)
def test_bad_lengths_are_refused(lengths: Any, field: str, right: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(raw(lengths=lengths))
    assert caught.value.field == field
    assert right in str(caught.value)


def test_a_file_of_lengths_that_holds_words_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("length\n5\nfive\n", encoding="utf-8")
    data = yaml.safe_load(TEXTS)
    data["workload"]["lengths"] = {"samples": "lengths.txt"}
    with pytest.raises(InputError, match=r"lengths.txt: line 3: expected a whole number of at least 1"):
        parse(data, base=tmp_path)


def test_lengths_need_a_model_that_has_them() -> None:
    data = {
        **NO_LENGTHS,
        "workload": {"arrivals": "poisson", "rate": "9/s", "duration": "1s", "lengths": {"constant": 3}},
    }
    with pytest.raises(InputError, match="a model with a profile by length"):
        parse(data)


@pytest.mark.parametrize(
    ("profile", "field", "right"),
    [
        ({"lengths": {}}, "models.encoder.profile.lengths", "lengths of at least 1 that rise"),
        (
            {"lengths": {16: {1: "2ms"}, 32: {1: "1ms"}}},
            "models.encoder.profile.lengths.32.1",
            "at least 2ms",
        ),
        (
            {"lengths": {16: {1: "1ms", 1 << 30: "2ms"}}},
            f"models.encoder.profile.lengths.16.{1 << 30}",
            "<= 65536",
        ),
        ({"lengths": {1 << 40: {1: "1ms"}}}, f"models.encoder.profile.lengths.{1 << 40}", "<= 1073741824"),
        ({"lengths": {16: {1: 2}}}, "models.encoder.profile.lengths.16.1", "a duration with its unit"),
        ({"together": "buckets"}, "models.encoder.profile.together", "did you mean 'bucket'?"),
        ({"rounde": True}, "models.encoder.profile.rounde", "did you mean 'rounded'?"),
    ],
)
def test_bad_profiles_are_refused(profile: dict[str, Any], field: str, right: str) -> None:
    with pytest.raises(InputError) as caught:
        texts(profile=profile)
    assert caught.value.field == field
    assert right in str(caught.value)


def test_the_longest_request_must_fit_the_objective() -> None:
    data = yaml.safe_load(TEXTS)
    data["models"]["encoder"]["slo"] = "1.1ms"
    with pytest.raises(InputError, match=r"models.encoder.slo: expected at least 1.2ms"):
        parse(data)


def test_buckets_hold_as_large_batches_as_keep_the_objective() -> None:
    data = yaml.safe_load(TEXTS)
    data["models"]["encoder"]["slo"] = "2ms"
    known = build.setup(parse(data)).models[0].lengths
    assert known is not None
    assert [known.max_batch(bucket) for bucket in range(3)] == [16, 6, 1]
    assert build.setup(parse(data)).models[0].max_batch == 1


def test_workers_are_told_how_often_each_bucket_comes() -> None:
    (files,) = model_files(texts(), "gpu")
    assert files.buckets == (16, 64, 256)
    assert files.bucket_shares == pytest.approx((5 / 9, 3 / 9, 1 / 9), abs=0.05)
    (files,) = model_files(texts(profile={"shares": {64: 0.9, 256: 0.1}}), "gpu")
    assert files.bucket_shares == (0.0, 0.9, 0.1), "what was seen says more than what is simulated"
    (files,) = model_files(parse({**yaml.safe_load(TEXTS), "workload": None}, serving=True), "gpu")
    assert files.bucket_shares == ()
    (files,) = model_files(texts(profile={"rounded": False}), "gpu")
    assert (files.buckets, files.bucket_shares) == ((), ())


# a trace


def traced(tmp_path: Path, text: str, **workload: Any) -> Scenario:
    (tmp_path / "trace.csv").write_text(text, encoding="utf-8")
    data = yaml.safe_load(TEXTS)
    data["workload"] = {"arrivals": "trace", "file": "trace.csv", **workload}
    return parse(data, base=tmp_path)


def test_a_trace_brings_its_lengths(tmp_path: Path) -> None:
    scenario = traced(tmp_path, "time_ms,model,length\n0,encoder,7\n3,encoder,255\n")
    assert build.arrivals(scenario).length.tolist() == [7, 255]


def test_the_columns_of_a_trace_may_come_in_any_order(tmp_path: Path) -> None:
    scenario = traced(tmp_path, "time_ms,model,length,application\n0,encoder,7,\n")
    assert build.arrivals(scenario).length.tolist() == [7]


def test_a_trace_without_lengths_leaves_them_to_chance(tmp_path: Path) -> None:
    scenario = traced(tmp_path, "time_ms,model\n0,encoder\n1,encoder\n", lengths={"constant": 9})
    assert build.arrivals(scenario).length.tolist() == [9, 9]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("time_ms,model\n0,encoder\n", "or a column `length` in the trace"),
        ("time_ms,model,length\n0,encoder,0\n", "line 2: length: expected a whole number of at least 1"),
        ("time_ms,model,length\n0,encoder,long\n", "a whole number of at least 1"),
        (
            "time_ms,model,length\n0,encoder,257\n",
            "at most 256, the longest that the profile of encoder knows",
        ),
        ("time_ms,model,size\n0,encoder,2\n", "time_s,model,length"),
        ("time_ms,model,length\n0,encoder\n", "3 cells: time_ms,model,length"),
    ],
)
def test_a_bad_trace_is_refused(tmp_path: Path, text: str, right: str) -> None:
    with pytest.raises(InputError) as caught:
        build.arrivals(traced(tmp_path, text))
    assert right in str(caught.value)


# written again


@pytest.mark.parametrize(
    "lengths",
    [
        {"constant": 33},
        {"uniform": {"low": 4, "high": 6}},
        {"lognormal": {"median": 64.0, "sigma": 0.8}},
        {"weights": {16: 1.0, 256: 2.0}},
        {"samples": [8, 9, 8]},
    ],
)
@pytest.mark.parametrize("rounded", [True, False])
def test_a_scenario_with_lengths_loads_back_equal(lengths: Any, rounded: bool) -> None:
    scenario = texts(workload={"lengths": lengths}, profile={"rounded": rounded, "together": "length"})
    again = parse(yaml.safe_load(scenario.to_yaml()))
    assert again == scenario


# kinds of GPUs

KINDS = """\
cluster: {gpus: [{kind: fast, count: 1}, {kind: slow, count: 1}]}
models:
  encoder:
    slo: 20ms
    profile:
      kinds:
        fast: {lengths: {16: {1: 1ms, 4: 2ms}, 64: {1: 1ms, 4: 4ms}}, rounded: true}
        slow: {lengths: {16: {1: 3ms, 4: 3ms}, 64: {1: 3ms, 4: 9ms}}, rounded: true}
workload: {arrivals: poisson, rate: 300/s, duration: 1s, lengths: {weights: {16: 1, 64: 1}}}
policy: {name: eager}
"""


def test_policies_are_told_of_the_slowest_kind_and_each_gpu_takes_its_own_time() -> None:
    scenario = parse(yaml.safe_load(KINDS))
    known = build.setup(scenario).models[0].lengths
    assert known is not None
    assert [table[1] for table in known.latency] == [3 * MS, 3 * MS]
    assert [table[4] for table in known.latency] == [3 * MS, 9 * MS]
    batches = run(scenario, "python").batches
    took = batches.finished - batches.started
    singles = [set(took[(batches.gpu == gpu) & (batches.size == 1)].tolist()) for gpu in (0, 1)]
    assert singles == [{MS}, {3 * MS}]


def test_all_kinds_have_the_same_lengths() -> None:
    data = yaml.safe_load(KINDS)
    data["models"]["encoder"]["profile"]["kinds"]["slow"]["lengths"][128] = {1: "9ms"}
    with pytest.raises(InputError) as caught:
        parse(data)
    assert caught.value.field == "models.encoder.profile.kinds.slow"
    assert "the same lengths, `rounded` and `together` as on fast" in str(caught.value)


def test_events_carry_length_and_bucket() -> None:
    scenario = texts()
    requests = [event.request for _, event in events(build.arrivals(scenario), build.setup(scenario))]
    profile = scenario.models["encoder"].profile
    assert isinstance(profile, ByLength)
    assert {(request.length, request.bucket) for request in requests} == {(16, 0), (64, 1), (256, 2)}


def test_the_same_lengths_come_whatever_the_rate_of_another_model() -> None:
    both = raw(rate={"encoder": "500/s", "plain": "100/s"})
    more = raw(rate={"encoder": "500/s", "plain": "900/s"})
    first, second = (build.arrivals(parse(data)) for data in (both, more))
    assert np.array_equal(first.length[first.model == 0], second.length[second.model == 0])


def test_to_be_served_nobody_needs_to_say_how_long_requests_will_be() -> None:
    data = raw()
    del data["workload"]["lengths"]
    served = parse(data, serving=True)
    with pytest.raises(InputError, match="how long the requests to encoder are"):
        build.arrivals(served)
