"""astrarium profile: what is measured, what is written, what is refused."""

from __future__ import annotations

import json
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from astrarium.cli import main as command_line
from astrarium.serving import scenario
from astrarium.serving.live import profiling
from astrarium.serving.live.backends import examples, own_requests
from astrarium.serving.live.backends.contract import Batch, Ran, Result
from astrarium.serving.live.profiling import Care, MeasuredTimes, measuring
from astrarium.serving.live.tensors import TensorSpec, to_bfloat16

MS = 1_000_000
X = TensorSpec("X", "FP32", (2,))

CODE = """\
import numpy as np

def double(X):
    return X * 2

def texts(TEXT):
    return TEXT

texts.applications = {
    "short": lambda generator: {"TEXT": np.array([b"a"], object)},
    "long": lambda generator: {"TEXT": np.array([b"b" * int(generator.integers(10, 99))], object)},
}
"""

SCENARIO = """\
# ours
cluster: {gpus: 1}
models:
  emulated: {profile: zoo:A100/VGG16}
  real:
    backend: {python: code.py:double}  # doubles
    inputs: [{name: X, datatype: FP32, shape: [2]}]
    outputs: [{name: Y, datatype: FP32, shape: [2]}]
    slo: 10s
    max_batch: 4
"""


class Stepping:
    """A clock that stands still but for what the model says its batches take."""

    def __init__(self, takes: Any) -> None:
        self.inputs: tuple[TensorSpec, ...] = (X,)
        self.outputs: tuple[TensorSpec, ...] = (X,)
        self.now = 0
        self.takes = takes
        self.sizes = list[int]()

    def perf_counter_ns(self) -> int:
        return self.now

    def warm_up(self, sizes: Any) -> None: ...

    def run(self, batch: Batch) -> Result:
        self.sizes.append(batch.size)
        self.now += self.takes(batch)
        return Result({})

    def close(self) -> None: ...


@pytest.fixture
def stepping(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(takes: Any) -> Stepping:
        model = Stepping(takes)
        monkeypatch.setattr(profiling, "time", model)
        return model

    return make


def never(times: MeasuredTimes) -> bool:
    return False


def test_sizes_at_most_double_and_end_at_the_largest() -> None:
    assert examples.sizes(1) == [1]
    assert examples.sizes(10) == [1, 2, 3, 4, 6, 8, 10]
    assert examples.sizes(10, graphs=[1, 7, 10]) == [1, 2, 3, 4, 6, 7, 8, 10]
    sizes = examples.sizes(512)
    assert sizes[-1] == 512
    assert all(high <= 2 * low for low, high in pairwise(sizes))


def test_a_quantile_is_a_time_that_was_measured() -> None:
    times = MeasuredTimes(1, tuple(range(1, 101)))
    assert [times.quantile(chance) for chance in (0, 0.5, 0.95, 0.99, 1)] == [1, 50, 95, 99, 100]
    assert MeasuredTimes(1, (7,)).quantile(0.99) == 7


def test_every_size_is_run_and_the_first_runs_do_not_count(stepping: Any) -> None:
    model: Stepping = stepping(lambda batch: batch.size * MS * (100 if len(model.sizes) % 10 <= 3 else 1))
    times = list(profiling.by_size(measuring(model, (X,), Care(warm_up=3, repeats=7)), [1, 2], never))
    assert model.sizes == [1] * 10 + [2] * 10
    assert [(size_times.size, set(size_times.times)) for size_times in times] == [
        (1, {MS, 100 * MS}),
        (2, {2 * MS, 200 * MS}),
    ]
    assert [size_times.times.count(size_times.size * 100 * MS) for size_times in times] == [1, 1]


def test_the_first_size_that_is_enough_is_the_last(stepping: Any) -> None:
    model = stepping(lambda batch: batch.size * MS)
    times = list(
        profiling.by_size(
            measuring(model, (X,), Care(0, 5)), [1, 2, 4, 8, 16], lambda each: each.times[0] > 3 * MS
        )
    )
    assert [size_times.size for size_times in times] == [1, 2, 4]


def test_slow_sizes_are_measured_less_often(stepping: Any) -> None:
    model = stepping(lambda batch: 1000 * MS)
    (measured,) = profiling.by_size(measuring(model, (X,), Care(0, 1000, patience=8000 * MS)), [1], never)
    assert len(measured.times) == 8


def test_a_profile_never_falls_and_has_slack() -> None:
    measured = [MeasuredTimes(1, (5,)), MeasuredTimes(2, (3,)), MeasuredTimes(4, (10,))]
    assert profiling.rising(measured, 0.5) == {1: 5, 2: 5, 4: 10}
    assert profiling.rising(measured, 0.5, slack=0.2) == {1: 6, 2: 6, 4: 12}


def test_one_hiccup_lifts_no_larger_size(stepping: Any) -> None:
    """The machine is busy during the whole of the second size, and during one run of the third."""
    model: Stepping = stepping(
        lambda batch: (32 if len(model.sizes) in {6, 7, 8, 9, 10, 13} else batch.size) * MS
    )
    care = Care(warm_up=0, repeats=5)
    times = list(profiling.by_size(measuring(model, (X,), care), [1, 2, 4, 8], never))
    assert profiling.rising(times, 0.95) == {1: MS, 2: 32 * MS, 4: 32 * MS, 8: 32 * MS}
    times = profiling.in_order(measuring(model, (X,), care), times, 0.95)
    assert profiling.rising(times, 0.95) == {1: MS, 2: 2 * MS, 4: 4 * MS, 8: 8 * MS}
    assert len(model.sizes) == 6 * 5  # two sizes were measured once more, the others not


def test_a_size_that_is_slower_than_a_larger_one_stays_so(stepping: Any) -> None:
    model = stepping(lambda batch: {1: 1, 3: 9, 4: 4}[batch.size] * MS)
    care = Care(0, 5)
    measure = measuring(model, (X,), care)
    times = profiling.in_order(measure, list(profiling.by_size(measure, [1, 3, 4], never)), 0.95)
    assert profiling.rising(times, 0.95) == {1: MS, 3: 9 * MS, 4: 9 * MS}


def test_one_hiccup_is_not_enough(stepping: Any) -> None:
    model: Stepping = stepping(lambda batch: (32 if len(model.sizes) == 3 else batch.size) * MS)
    measure = measuring(model, (X,), Care(0, 5))
    times = list(profiling.by_size(measure, [1, 2], lambda each: each.times[-1] > 20 * MS))
    assert [size_times.times[-1] for size_times in times] == [MS, 2 * MS]


def test_the_times_of_applications_are_found_again(stepping: Any) -> None:
    """A machine that pads to the longest: a batch of k takes 1 ms + 0.5 k max."""

    def takes(batch: Batch) -> int:
        lengths = batch.inputs["X"].astype(np.int64)
        return int(lengths.max()) * MS if batch.size == 1 else MS + batch.size * int(lengths.max()) * MS // 2

    def items(low: int, high: int) -> Any:
        return lambda generator: {"X": np.array([generator.integers(low, high)], np.float32)}

    model = stepping(takes)
    generators = {"short": items(4, 5), "long": items(10, 20)}
    progress: list[int] = []
    fit = profiling.by_application(model, generators, [2, 4, 8], Care(0, 40), progress.append)
    assert set(fit.alone["short"]) == {4 * MS}
    assert {low // MS for low in fit.alone["long"]} <= set(range(10, 20))
    assert fit.c0 == pytest.approx(MS, rel=1e-3)
    assert fit.c1 == pytest.approx(0.5)
    assert fit.error == pytest.approx(0, abs=1e-6)
    assert progress == list(range(1, 81))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    return tmp_path


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ending:
            command_line.main(["profile", "--repeats", "5", *arguments])
        captured = capsys.readouterr()
        return int(ending.value.code or 0), captured.out, captured.err

    return run


def test_a_function_by_itself(call: Any, home: Path) -> None:
    code, out, err = call("code.py:double", "--input", "X:FP32:3", "--max-batch", "3", "--json")
    assert (code, err) == (0, "")
    shown = json.loads(out)
    assert shown["model"] == "code"
    assert list(shown["profile"]["table"]) == ["1", "2", "3"]
    assert shown["written"] == []


def test_the_table_shows_the_spread_and_the_profile(call: Any, home: Path) -> None:
    code, out, _ = call("code.py:double", "--input", "X:FP32:3", "--max-batch", "2")
    assert code == 0
    assert "batch  p50 ms  p95 ms  p99 ms" in out
    profile = yaml.safe_load(out[out.index("profile: {") :])
    assert list(profile["profile"]["table"]) == [1, 2]


def test_a_model_without_a_profile_is_measured_and_written_into_its_scenario(call: Any, home: Path) -> None:
    code, out, err = call("scenario.yaml", "--model", "real", "--write", "--no-path", "--slack", "1")
    assert (code, err) == (0, "")
    assert "written to scenario.yaml" in out
    text = (home / "scenario.yaml").read_text()
    assert text.startswith(SCENARIO.split("    backend")[0] + "    profile: {table: {1: ")
    assert "# doubles" in text
    assert list(home.glob(".*")) == []
    served = scenario.load("scenario.yaml", serving=True)
    assert scenario.build.setup(served).models[1].max_batch == 4


def test_the_only_real_model_needs_no_name(call: Any, home: Path) -> None:
    filled = SCENARIO.replace("slo: 10s", "slo: 10s\n    profile: {table: [1s]}")
    (home / "scenario.yaml").write_text(filled)
    code, out, _ = call("scenario.yaml", "--json")
    assert (code, json.loads(out)["model"]) == (0, "real")


def test_a_profile_in_a_file_of_its_own(call: Any, home: Path) -> None:
    code, _, _ = call("scenario.yaml", "--model", "real", "--out", "real.yaml")
    assert code == 0
    assert (home / "real.yaml").read_text().startswith("# python model real: p95 of 5 runs\ntable:")
    assert (home / "scenario.yaml").read_text() == SCENARIO
    served = scenario.load("scenario.yaml", ["models.real.profile=real.yaml"], serving=True)
    assert served.models["real"].profile.points.keys() == {1, 2, 3, 4}  # type: ignore[attr-defined]


def test_applications_are_measured_apart(call: Any, home: Path) -> None:
    code, _, _ = call("code.py:texts", "--input", "TEXT:BYTES:1", "--out", "texts.yaml")
    assert code == 0
    profile = yaml.safe_load((home / "texts.yaml").read_text())["dynamic"]
    assert {name: len(part["time"]["samples"]) for name, part in profile["applications"].items()} == {
        "short": 5,
        "long": 5,
    }
    models = f"models={{texts: {{slo: 10s, profile: {home}/texts.yaml}}}}"
    assert scenario.load("scenario.yaml", [models], serving=True).dynamic


def test_many_samples_go_into_a_file_beside_the_scenario(call: Any, home: Path) -> None:
    raw = SCENARIO.replace("double", "texts").replace("FP32, shape: [2]", "BYTES, shape: [1]")
    raw = raw.replace("name: X", "name: TEXT")
    (home / "scenario.yaml").write_text(raw)
    code, _, err = call("scenario.yaml", "--model", "real", "--write", "--no-path", "--repeats", "100")
    assert (code, err) == (0, "")
    assert "profile: real.profile.yaml\n" in (home / "scenario.yaml").read_text()
    assert scenario.load("scenario.yaml", serving=True).dynamic


def test_it_stops_at_the_objective(call: Any, home: Path) -> None:
    code, out, _ = call("code.py:double", "--input", "X:FP32:3", "--slo", "1ns", "--json")
    assert (code, list(json.loads(out)["profile"]["table"])) == (0, ["1"])


def test_batches_are_drawn_from_the_inputs_that_are_given(tmp_path: Path) -> None:
    specs = [X, TensorSpec("T", "BYTES", (1,)), TensorSpec("H", "BF16", (2,))]
    halves = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    path = tmp_path / "mine.npz"
    np.savez(path, X=np.arange(6).reshape(3, 2), T=np.array([["a"], ["b"], ["c"]]), H=halves)
    data = own_requests.read(path, specs).arrays
    batch = own_requests.drawn(specs, data, 50, np.random.default_rng(0))
    rows = {(*x, *t, *h) for x, t, h in zip(*map(np.ndarray.tolist, batch.inputs.values()), strict=True)}
    bits = to_bfloat16(halves).tolist()
    assert rows == {(2.0 * row, 2.0 * row + 1, "abc"[row], *bits[row]) for row in range(3)}
    assert batch.inputs["X"].dtype == np.float32


def test_a_model_is_measured_with_the_inputs_that_are_given(stepping: Any) -> None:
    seen: list[Any] = []

    def takes(batch: Batch) -> int:
        seen.extend(batch.inputs["X"].tolist())
        return MS

    model = stepping(takes)
    measuring(model, (X,), Care(0, 5), {"X": np.full((3, 2), 7, np.float32)})(4)
    assert seen == [[7.0, 7.0]] * 20


def test_tokens_that_were_made_up_are_told(call: Any, home: Path) -> None:
    np.savez("mine.npz", X=np.arange(6).reshape(3, 2))
    arguments = ["code.py:double", "--input", "X:INT64:2", "--max-batch", "2"]
    _, made_up, _ = call(*arguments)
    _, with_data, _ = call(*arguments, "--data", "mine.npz")
    assert "measured with zeros and ones" in " ".join(made_up.split())
    assert "zeros and ones" not in " ".join(with_data.split())


WRONG_DATA: list[tuple[dict[str, Any], str]] = [
    ({"Y": [[1.0, 2.0]]}, "with the arrays X (got ['Y'])"),
    ({}, "with the arrays X (got [])"),
    ({"X": np.zeros((0, 2))}, "as many rows of every input, at least one (got {'X': 0})"),
    ({"X": 1.0}, "as many rows of every input, at least one (got {'X': 0})"),
    ({"X": np.zeros((4, 3))}, "--data.X: expected FP32 with rows of the shape [2] (got 'float64 [3]')"),
    ({"X": np.array([["a", "b"]])}, "--data.X: expected FP32 with rows of the shape [2] (got '<U1 [2]')"),
]


@pytest.mark.parametrize(("arrays", "message"), WRONG_DATA, ids=[message for _, message in WRONG_DATA])
def test_inputs_that_do_not_fit_are_refused(
    call: Any, home: Path, arrays: dict[str, Any], message: str
) -> None:
    np.savez("mine.npz", **arrays)
    code, out, err = call("code.py:double", "--input", "X:FP32:2", "--data", "mine.npz")
    assert (code, out) == (2, "")
    assert message in err
    assert "mine.npz" in err


def test_a_file_that_holds_no_arrays_is_refused(call: Any, home: Path) -> None:
    np.save("one.npy", np.zeros((1, 2)))
    np.savez("cut.npz", X=np.zeros((100, 2)))
    (home / "cut.npz").write_bytes((home / "cut.npz").read_bytes()[:300])
    (home / "empty.npz").touch()
    for name in ("none.npz", "code.py", "one.npy", "cut.npz", "empty.npz", "."):
        code, _, err = call("code.py:double", "--input", "X:FP32:2", "--data", name)
        assert code == 2
        assert "--data: expected a file of numpy.savez with the arrays X" in err
        assert f"(got '{name}')" in err
    _, _, err = call("code.py:texts", "--input", "TEXT:BYTES:1", "--data", "one.npy")
    assert "--data: expected to be left out: code makes inputs for each of its applications" in err


BAD: list[tuple[list[str], str]] = [
    (["nothing"], "MODEL: expected a scenario (.yaml), a model (.onnx, .pt2, .pt) or Python code"),
    (["none.onnx"], "MODEL.model: expected a file; there is none at"),
    (["none.yaml"], "a scenario file that can be read"),
    (["code.py:double"], "--input: expected the inputs: this model cannot tell them"),
    (["code.py:nothing", "--input", "X:FP32:1"], "MODEL.model: expected a name that stands in"),
    (["code.py:double", "--input", "X:FP32"], "--input: expected NAME:TYPE:SHAPE"),
    (["code.py:double", "--input", "X:FP3:1"], "--input: expected a type that is one of"),
    (["code.py:double", "--input", "X:FP32:0"], "--input: expected sizes of at least 1"),
    (["code.py:double", "--model", "real"], "--model: expected a scenario file"),
    (["code.py:double", "--input", "X:FP32:1", "--write"], "--write: expected a scenario file"),
    (["code.py:double", "--input", "X:FP32:1", "--quantile", "p42"], "--quantile: expected one of p50, p90"),
    (["code.py:double", "--input", "X:FP32:1", "--slo", "25"], "--slo: expected a duration with its unit"),
    (["code.py:double", "--input", "X:FP32:1", "--device", "tpu"], "--device: expected cpu, auto, or a GPU"),
    (["code.py:double", "--input", "X:FP32:1", "--option", "x"], "--option: expected KEY=VALUE"),
    (["code.py:double", "--input", "X:FP32:1", "--option", "x=1"], "MODEL.x: expected no options but model"),
    (["code.py:double", "--input", "X:FP32:1", "--backend", "pyton"], "--backend: expected a model backend"),
    (
        ["code.py:double", "--input", "X:FP32:1", "--out", "no/where.yaml"],
        "--out: expected the name of a file",
    ),
    (["scenario.yaml", "--model", "rael"], "--model: expected one of"),
    (["scenario.yaml", "--model", "real", "--backend", "onnx"], "--backend: expected to be left out"),
    (["scenario.yaml", "--model", "real", "--input", "Z:FP32:1"], "--input: expected one of X"),
    (
        ["scenario.yaml", "--model", "real", "--input", "X:FP32:1,2"],
        "--input: expected FP32 with the shape [2]",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(bad[0]) for bad in BAD])
def test_nonsense_is_refused_by_name(call: Any, home: Path, arguments: list[str], message: str) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert (home / "scenario.yaml").read_text() == SCENARIO


def test_emulated_models_have_nothing_to_measure(call: Any, home: Path) -> None:
    (home / "scenario.yaml").write_text(SCENARIO.replace("slo: 10s", "slo: 10s\n    profile: {table: [1s]}"))
    code, _, err = call("scenario.yaml", "--model", "emulated")
    assert code == 2
    assert "--model: expected a model with a backend of its own; emulated is emulated" in err
    code, _, err = call("scenario.yaml", "--model", "rael")
    assert "did you mean 'real'?" in err


class Pipeline:
    """A model whose GPU works on its own; it notes what it was asked for."""

    inputs = (X,)
    outputs = (TensorSpec("Y", "FP32", (2,)),)

    def __init__(self) -> None:
        self.asked: list[str] = []

    def launch(self, batch: Batch, not_before: int) -> Pipeline:
        assert batch.inputs["X"].shape == (batch.size, 2)
        self.asked.append("launch")
        return self

    def wait(self, free: int) -> Ran:
        self.asked.append("wait")
        return Ran(Result({"Y": np.zeros((3, 2), np.float32)}), free, free)


def test_a_model_that_launches_is_measured_back_to_back() -> None:
    """The next batch is launched before the one ahead of it has ended, and its answers are written."""
    model: Any = Pipeline()
    measured = measuring(model, model.inputs, Care(1, 30))(3)
    assert len(measured.times) == 6, "each is the mean of five"
    assert model.asked == ["launch", *["launch", "wait"] * 35]
