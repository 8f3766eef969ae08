"""What a scenario says for serving alone: read, checked, written back, ignored by the simulator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml

from astrarium.core.errors import InputError
from astrarium.core.quantities import MILLISECOND as MS
from astrarium.serving import scenario
from astrarium.serving.level import run
from astrarium.serving.live.tensors import DATATYPES, TensorSpec
from astrarium.serving.scenario import build
from astrarium.serving.scenario.model_files import model_files
from astrarium.serving.scenario.server_options import ServerOptions
from astrarium.serving.scenario.tensor_entries import Datatype
from astrarium.serving.scenario.tokenization import TEXT, Tokenization
from tests.serving.scenario.served import SERVED, load, written
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "serve.yaml"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return written(tmp_path)


def test_every_field_arrives(home: Path) -> None:
    served = load(home)
    real = served.models["real"]
    assert real.backend.name == "python"
    assert real.backend.options == {"model": f"{home}/code.py:Model", "factor": 2, "sizes": [1, 2]}
    assert [(spec.name, spec.datatype, spec.shape) for spec in real.inputs] == [
        ("X", "FP32", (-1, 3)),
        ("Z", "BYTES", ()),
    ]
    assert real.preprocess == f"{home}/code.py:prepare"
    assert (real.accepts[0].name, real.accepts[0].finite, real.inputs[0].values) == ("RAW", True, (-1, 0.5))
    assert real.priorities == {1: 5 * MS, 2: 100 * MS}
    assert (real.loaded, served.models["emulated"].loaded) == (True, False)
    assert served.models["short"].backend.options == {"model": f"{home}/net.onnx"}
    server = served.server
    assert (server.http, server.grpc, server.queue, server.log) == (0, None, 5, "json")
    assert (server.payload, server.memory) == (2**20, 2 * 2**20)
    assert server.record == f"{home}/run.trace"


def test_a_tokenizer_takes_a_text_unless_the_file_says_otherwise(home: Path) -> None:
    texts = load(home).models["texts"]
    assert texts.preprocess == Tokenization(f"{home}/tokenizer.json", tokens="IDS", longest=64)
    assert texts.accepts == (TEXT,)
    pair = "[{name: ASKED, datatype: BYTES, shape: [1]}, {name: FOUND, datatype: BYTES, shape: []}]"
    accepts = load(home, f"models.texts.accepts={pair}").models["texts"].accepts
    assert [tensor.name for tensor in accepts] == ["ASKED", "FOUND"]
    third = "{name: MORE, datatype: BYTES, shape: [1]}]"
    with pytest.raises(InputError, match="two that the tokenizer joins to a pair"):
        load(home, f"models.texts.accepts={pair[:-1]}, {third}")


def test_what_is_written_loads_back_equal(home: Path, tmp_path: Path) -> None:
    served = load(home)
    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text(served.to_yaml())
    assert scenario.load(elsewhere) == served


def test_what_is_left_out_has_a_default(tmp_path: Path) -> None:
    plain = {"cluster": {"gpus": 1}, "models": {"m": {"profile": "zoo:A100/VGG16"}}}
    served = scenario.parse(plain, serving=True)
    model = served.models["m"]
    assert (model.backend.name, model.inputs, model.priorities, model.loaded) == ("emulated", (), {}, True)
    assert served.server == ServerOptions()
    assert (served.server.http, served.server.grpc, served.server.host) == (8000, 8001, "127.0.0.1")
    assert set(yaml.safe_load(served.to_yaml())) == {"cluster", "models", "policy", "seed"}
    assert scenario.parse(yaml.safe_load(served.to_yaml()), serving=True) == served


def test_only_serving_does_without_a_workload(home: Path) -> None:
    with pytest.raises(InputError, match=r"workload: expected a value: .*only serving does without"):
        load(home, "workload=")
    served = load(home, "workload=", serving=True)
    assert len(build.setup(served).models) == 5
    with pytest.raises(InputError, match="workload: expected a value: simulating needs this section"):
        run(served)


def test_the_simulator_ignores_all_of_it(home: Path) -> None:
    bare = SERVED.replace("    backend: {python", "    #").replace("priorities", "# priorities")
    (home / "bare.yaml").write_text(bare.replace("preprocess", "# ").replace("accepts", "# "))
    one = run(load(home))
    other = run(scenario.load(home / "bare.yaml"))
    assert one.requests.outcome.tolist() == other.requests.outcome.tolist()


# override, field, what would be right
BAD = [
    ("models.real.backend={pythn: x}", "models.real.backend", "did you mean 'python'?"),
    ("models.real.backend=python", "models.real.backend", "one backend with its model"),
    ("models.real.backend={python: a, onnx: b}", "models.real.backend", "one backend with its model"),
    ("models.real.backend={python: 3}", "models.real.backend.python", "or a mapping of options"),
    ("models.real.backend={python: none.py:f}", "models.real.backend.python.model", "there is none at"),
    ("models.real.backend={python: code.py}", "models.real.backend.python.model", "file.py:NAME"),
    (
        "models.real.backend={onnx: {model: net.onnx, thread: 2}}",
        "models.real.backend.onnx.thread",
        "threads",
    ),
    ("models.short.backend={onnx: none.onnx}", "models.short.backend.onnx.model", "there is none at"),
    ("models.short.backend={emulated: {speed: 2}}", "models.short.backend.emulated.speed", "no options"),
    ("models.short.backend={torch: code.py:make}", "models.short.inputs", "only a .pt2 file can tell"),
    ("models.short.backend={torch: {model: none.pt2}}", "models.short.backend.torch.model", "there is none"),
    ("models.real.inputs=[]", "models.real.inputs", "a Python callable cannot tell"),
    ("models.real.inputs=[{name: X, datatype: FP31, shape: []}]", "models.real.inputs[0].datatype", "FP32"),
    ("models.real.inputs=[{name: X, datatype: FP32}]", "models.real.inputs[0].shape", "required"),
    ("models.real.inputs[0].shape=[-2]", "models.real.inputs[0].shape[0]", "LOWEST..HIGHEST such as 1..512"),
    ("models.real.inputs[0].shape=[0]", "models.real.inputs[0].shape[0]", "a size of at least 1, -1 for any"),
    ("models.real.inputs[0].shape=[8..4]", "models.real.inputs[0].shape[0]", "below HIGHEST"),
    ("models.real.inputs[0].shape=[0..4]", "models.real.inputs[0].shape[0]", "LOWEST at least 1"),
    ("models.real.inputs[0].shape=[all]", "models.real.inputs[0].shape[0]", "LOWEST..HIGHEST"),
    ("models.real.outputs[0].shape=[1..4]", "models.real.outputs[0].shape", "only what clients send"),
    ("models.real.offsets=X", "models.real.pack", "true beside `offsets`"),
    ("models.real.pack=true", "models.real.pack", "`offsets: NAME` beside it"),
    ("models.short.pack=true", "models.short.inputs", "`pack` is of those with an open dimension"),
    ("models.emulated.pack=true", "models.emulated.backend", "(the model is emulated without)"),
    ("models.real.mask=LENGHT", "models.real.mask", "the name of an input"),
    ("models.real.inputs[0].values=[0.5, 0]", "models.real.inputs[0].values", "LOW not above HIGH"),
    ("models.real.inputs[0].values=[0, 1e39]", "models.real.inputs[0].values", r"(FP32)"),
    ("models.real.inputs[0].values=[0, .inf]", "models.real.inputs[0].values[1]", "a finite number"),
    ("models.real.inputs[0].values=[1]", "models.real.inputs[0].values", "[LOW, HIGH], two numbers"),
    ("models.real.inputs[0].values=[true, 1]", "models.real.inputs[0].values", "[LOW, HIGH], two numbers"),
    ("models.real.inputs[0].values=[a, b]", "models.real.inputs[0].values", "[LOW, HIGH], two numbers"),
    ("models.real.inputs[1].values=[0, 1]", "models.real.inputs[1].values", "BYTES has no numbers"),
    ("models.real.inputs[1].finite=true", "models.real.inputs[1].finite", "only floating types have NaN"),
    (
        "models.real.inputs=[{name: X, datatype: INT8, shape: [], values: [0, 128]}]",
        "models.real.inputs[0].values",
        "two whole numbers from -128 to 127 (INT8)",
    ),
    (
        "models.real.inputs=[{name: X, datatype: INT8, shape: [], values: [0, 1.5]}]",
        "models.real.inputs[0].values",
        "two whole numbers from -128 to 127 (INT8)",
    ),
    ("models.real.outputs[0].values=[0, 1]", "models.real.outputs[0].values", "only what clients send"),
    ("models.real.inputs[1].name=X", "models.real.inputs[1].name", "a name of its own"),
    ("models.real.preprocess=none.py:f", "models.real.preprocess", "there is none at"),
    ("models.texts.preprocess={tokens: X}", "models.texts.preprocess.tokenizer", "required"),
    ("models.texts.preprocess.tokenizer=no.json", "models.texts.preprocess.tokenizer", "there is none at"),
    ("models.texts.preprocess.longest=0", "models.texts.preprocess.longest", "a whole number >= 1"),
    ("models.texts.preprocess.token=X", "models.texts.preprocess.token", "did you mean 'tokens'?"),
    ("models.texts.preprocess=[a]", "models.texts.preprocess", "text"),
    (
        "models.texts.accepts=[{name: X, datatype: FP32, shape: [1]}]",
        "models.texts.accepts[0].datatype",
        "BYTES: a tokenizer takes texts",
    ),
    (
        "models.texts.accepts=[{name: X, datatype: BYTES, shape: [2]}]",
        "models.texts.accepts[0].shape",
        "[1]: one text a row",
    ),
    ("models.short.accepts=[{name: X, datatype: FP32, shape: []}]", "models.short.accepts", "preprocess"),
    ("models.real.priorities={0: 5ms}", "models.real.priorities.0", "a whole number >= 1"),
    ("models.real.priorities={1: 5}", "models.real.priorities.1", "a duration with its unit"),
    ("models.real.priorities={3: 0.5ms}", "models.real.priorities.3", "at least 1ms, what one request takes"),
    ("models.real.loaded=maybe", "models.real.loaded", "true or false"),
    ("models.real.profile=none.yaml", "models.real.profile", "a file with a profile; there is none at"),
    ("models.short={slo: 5ms}", "models.short.profile", "`astrarium profile FILE --model NAME --write`"),
    ("server.start_limit=0s", "server.start_limit", "a time above 0"),
    ("server.start_limit=10", "server.start_limit", "a duration with its unit"),
    ("server.http=70000", "server.http", "a whole number <= 65535"),
    ("server.grpc=-1", "server.grpc", "a whole number >= 0"),
    ("server={http: 9000, grpc: 9000}", "server.grpc", "another port"),
    ("server.queue=0", "server.queue", "a whole number >= 1"),
    ("server.payload=0B", "server.payload", "a size above 0"),
    ("server.memory=1KiB", "server.memory", "at least 1MiB, the largest payload"),
    ("server.memory=3", "server.memory", "a size with its unit"),
    ("server.log=xml", "server.log", "one of text, json"),
    ("server.tls={cert: a.pem}", "server.tls.key", "required"),
    ("server.htp=1", "server.htp", "did you mean 'http'?"),
]


@pytest.mark.parametrize(("override", "field", "right"), BAD, ids=[bad[0] for bad in BAD])
def test_bad_fields(home: Path, override: str, field: str, right: str) -> None:
    with pytest.raises(InputError) as caught:
        load(home, override)
    assert caught.value.field == field
    assert right in str(caught.value)


@pytest.mark.parametrize("name", ["org/model", "/", ".", ".."])
def test_a_name_is_one_part_of_a_url(home: Path, name: str) -> None:
    raw = yaml.safe_load(SERVED)
    raw["models"][name] = raw["models"].pop("short")
    with pytest.raises(InputError, match=r"a name without '/' .* one part of a URL") as caught:
        scenario.parse(raw, base=home)
    assert (caught.value.field, caught.value.value) == (f"models.{name}", name)


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("server.api_keys=keys.txt", "server.api_keys"),
        ("server.tls={cert: cert.pem, key: key.pem}", "server.tls.cert"),
    ],
)
def test_the_files_of_a_server_matter_to_who_serves(home: Path, override: str, field: str) -> None:
    load(home, override)
    with pytest.raises(InputError, match="there is none at") as caught:
        load(home, override, serving=True)
    assert caught.value.field == field


def test_workers_are_told_the_speed_of_their_gpu(home: Path) -> None:
    served = load(home)
    tables = {kind: model_files(served, kind)[0].options["table"] for kind in ("A100", "T4")}
    assert tables == {"A100": [0, 2 * MS, 3 * MS], "T4": [0, 4 * MS, 6 * MS]}
    with pytest.raises(InputError, match="kind: expected a kind of GPU in the cluster: one of A100, T4"):
        model_files(served, "H100")


def test_workers_are_told_which_backend_and_tensors(home: Path) -> None:
    real = model_files(load(home), "A100")[1]
    assert (real.name, real.backend, real.max_batch) == ("real", "python", 2)
    assert real.options["factor"] == 2
    assert real.inputs[0] == TensorSpec("X", "FP32", (-1, 3), (-1, 0.5))
    assert real.outputs == (TensorSpec("Y", "INT64", (1,)),)


def test_dynamic_models_are_told_times_to_draw_from(home: Path) -> None:
    served = load(home)
    varied = model_files(served, "A100")[3].options["dynamic"]
    assert (varied["c0"], varied["c1"], varied["seed"]) == (MS, 0.5, 0)
    first, second = varied["applications"]
    assert set(first) == {2 * MS}
    assert sum(second) / len(second) == pytest.approx(9 * MS, rel=0.01)
    again = model_files(served.with_seed(5), "A100")[3].options["dynamic"]["applications"]
    assert again[1] != second


def test_as_many_sizes_as_the_policies_know(home: Path) -> None:
    served = load(home)
    known = [model.max_batch for model in build.setup(served).models]
    assert [files.max_batch for files in model_files(served, "T4")] == known


def test_the_datatypes_are_those_of_the_engine() -> None:
    assert set(get_args(Datatype)) == set(DATATYPES)


def test_the_example_simulates_without_the_packages_it_is_served_with() -> None:
    code = (
        "import sys; sys.modules.update(onnxruntime=None, torch=None, uvicorn=None, grpc=None);"
        "from astrarium.serving.scenario import load; from astrarium.serving.level import run;"
        "print(len(run(load(sys.argv[1])).requests.outcome))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(EXAMPLE)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 1000


def test_the_example_keeps_its_objectives() -> None:
    requests = run(scenario.load(EXAMPLE)).requests
    assert (requests.outcome == 1).mean() > 0.99
