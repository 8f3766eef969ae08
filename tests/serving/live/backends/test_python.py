"""Python callables as models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astrarium.core.errors import InputError
from astrarium.serving.live.backends import backends, checked_options
from astrarium.serving.live.backends.contract import Batch, ModelFailed, ModelFiles, Place
from astrarium.serving.live.backends.python import PythonModel
from astrarium.serving.live.tensors import TensorSpec
from tests.support.paths import ROOT

FLOATS = TensorSpec("X", "FP32", (-1,))

MODULE = """\
import numpy as np

def double(X):
    return X * 2

def both(X):
    return X.sum(axis=1), X.max(axis=1)

def by_name(X):
    return {"TOTAL": X.sum(axis=1), "EXTRA": X}

def broken(X):
    values = list(X)
    return values[99]

def deep(X):
    zeros = X * 0
    return np.linalg.inv(zeros)

def scaled_in_place(X):
    X /= 255
    return X

def upper(TEXT):
    return np.array([[text.upper() for text in row] for row in TEXT], object)

class Scaled:
    def __init__(self, factor=1):
        self.factor, self.closed = factor, []

    def __call__(self, X):
        return X * self.factor

    def close(self):
        self.closed.append(True)

number = 3
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "code.py").write_text(MODULE)
    return tmp_path


def python(home: Path, name: str, inputs: Any = FLOATS, outputs: Any = None, **options: Any) -> Any:
    specs = (TensorSpec("Y", "FP32", (-1,)),) if outputs is None else outputs
    files = ModelFiles("m", "python", {"model": f"code.py:{name}", **options}, (inputs,), specs, base=home)
    return backends.get("python")(files, Place())


ROWS = Batch(2, {"X": np.array([[1, 2], [3, 4]], np.float32)})


def test_a_function_runs_a_batch(home: Path) -> None:
    assert python(home, "double").run(ROWS).outputs["Y"].tolist() == [[2, 4], [6, 8]]


@pytest.mark.parametrize("size", [1, 2])
def test_inputs_cannot_be_written_in_whatever_company(home: Path, size: int) -> None:
    rows = Batch(size, {"X": np.ones((size, 2), np.float32)})
    model = python(home, "scaled_in_place")
    with pytest.raises(ModelFailed, match=r"code.py:21: ValueError: output array is read-only"):
        model.run(rows)
    assert rows.inputs["X"].flags.writeable  # only the model's views are not
    with pytest.raises(ModelFailed, match="read-only"):
        model.warm_up([size])  # so it is refused when it is loaded


def test_a_class_is_constructed_once_with_the_options(home: Path) -> None:
    model = python(home, "Scaled", factor=3)
    assert model.run(ROWS).outputs["Y"].tolist() == [[3, 6], [9, 12]]
    model.close()


def test_a_tuple_is_in_the_order_of_the_outputs(home: Path) -> None:
    outputs = (TensorSpec("SUM", "FP32", ()), TensorSpec("MOST", "FP32", ()))
    output = python(home, "both", outputs=outputs).run(ROWS).outputs
    assert (output["SUM"].tolist(), output["MOST"].tolist()) == ([3, 7], [2, 4])


def test_a_dictionary_may_hold_more_than_was_promised(home: Path) -> None:
    outputs = python(home, "by_name", outputs=(TensorSpec("TOTAL", "FP32", ()),)).run(ROWS).outputs
    assert list(outputs) == ["TOTAL"]


def test_texts_arrive_as_bytes(home: Path) -> None:
    text = TensorSpec("TEXT", "BYTES", (1,))
    model = python(home, "upper", text, (TensorSpec("Y", "BYTES", (1,)),))
    outputs = model.run(Batch(1, {"TEXT": np.array([[b"hello"]], object)})).outputs
    assert outputs["Y"].tolist() == [[b"HELLO"]]


def test_an_error_names_the_file_and_line(home: Path) -> None:
    with pytest.raises(ModelFailed, match=r"^code\.py:14: IndexError: list index out of range"):
        python(home, "broken").run(ROWS)


def test_an_error_inside_a_library_names_the_line_that_called_it(home: Path) -> None:
    with pytest.raises(ModelFailed, match=r"^code\.py:18: LinAlgError: Singular matrix"):
        python(home, "deep").run(ROWS)


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("double", TensorSpec("Y", "FP32", (3,)), r"the shape \[2, 2\] instead of \[2, 3\]"),
        ("double", TensorSpec("Y", "INT32", (2,)), "the type float32 instead of INT32"),
        ("by_name", TensorSpec("Y", "FP32", (2,)), "no output Y: the model answered with TOTAL, EXTRA"),
        ("both", TensorSpec("Y", "FP32", ()), "2 outputs instead of 1: Y"),
    ],
)
def test_a_broken_promise_fails_the_batch(home: Path, name: str, spec: TensorSpec, message: str) -> None:
    with pytest.raises(ModelFailed, match=message):
        python(home, name, outputs=(spec,)).run(ROWS)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("code.py:nothing", "a name that stands in"),
        ("code.py", "file.py:NAME or package.module:NAME"),
        ("other.py:f", "a file; there is none at"),
        ("code.py:number", "a function, or a class whose objects can be called"),
        ("no-module:f", "file.py:NAME or package.module:NAME"),
        ("no_such_module:f", "Python code that can be loaded; .*ModuleNotFoundError"),
        ("bad.py:f", r"bad.py:2: NameError: name 'oops' is not defined"),
    ],
)
def test_code_that_is_not_there(home: Path, reference: str, message: str) -> None:
    (home / "bad.py").write_text("import math\noops\n")
    files = ModelFiles("m", "python", {"model": reference}, (FLOATS,), (FLOATS,), base=home)
    with pytest.raises(InputError, match=message):
        backends.get("python")(files, Place())


def test_a_file_that_changed_is_loaded_anew(home: Path) -> None:
    before = python(home, "double")
    assert python(home, "double")._function is before._function, "and one that did not is not"
    (home / "code.py").write_text(MODULE.replace("X * 2", "X * 50"))
    assert python(home, "double").run(ROWS).outputs["Y"][0, 0] == 50
    assert before.run(ROWS).outputs["Y"][0, 0] == 2


def test_options_of_a_function_are_refused(home: Path) -> None:
    with pytest.raises(InputError, match="factor: expected no options but model"):
        python(home, "double", factor=2)


def test_a_module_of_the_path_can_be_named() -> None:
    outputs = (TensorSpec("Y", "FP32", (-1,)),)
    files = ModelFiles("m", "python", {"model": "numpy:negative"}, (FLOATS,), outputs)
    assert checked_options(files) == {"model": "numpy:negative"}


def test_a_callable_cannot_tell_its_tensors(home: Path) -> None:
    with pytest.raises(InputError, match="inputs: expected a list such as"):
        checked_options(ModelFiles("m", "python", {"model": "code.py:double"}, base=home))


def test_warming_up_runs_the_function(home: Path) -> None:
    with pytest.raises(ModelFailed, match="IndexError"):
        python(home, "broken").warm_up([1])
    python(home, "double").warm_up([1, 4])


def test_the_language_model_of_the_examples() -> None:
    code = ROOT / "examples" / "models" / "words.py"
    outputs = (TensorSpec("LANGUAGE", "BYTES", (1,)), TensorSpec("CONFIDENCE", "FP32", (1,)))
    inputs = (TensorSpec("TEXT", "BYTES", (1,)),)
    model = backends.get("python")(
        ModelFiles("words", "python", {"model": f"{code}:detect"}, inputs, outputs), Place()
    )
    texts = [
        "Where did you leave my umbrella?",
        "Wo ist mein Regenschirm geblieben?",
        "Où est mon parapluie ?",
        "¿Dónde está mi paraguas?",
        "Dove hai messo il mio ombrello?",
    ]
    values = np.array([[text.encode()] for text in texts], object)
    output = model.run(Batch(5, {"TEXT": values})).outputs
    assert [row[0] for row in output["LANGUAGE"]] == [b"en", b"de", b"fr", b"es", b"it"]
    assert (np.asarray(output["CONFIDENCE"]) > 0.5).all()


def test_preparing_imports_what_the_code_imports_and_runs_none_of_it(
    home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path_factory.mktemp("packages")
    for name in ("needed_here", "needed_elsewhere"):
        (packages / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(packages)
    (home / "beside.py").write_text("raise RuntimeError\n")
    imports = "import needed_here, no_such_package\nimport beside\n"
    (home / "own.py").write_text(f"{imports}raise RuntimeError\ndef run(X):\n    import needed_elsewhere\n")
    files = ModelFiles("m", "python", {"model": "own.py:run"}, base=home)
    PythonModel.prepare(files, code=False)
    assert "needed_here" not in sys.modules
    PythonModel.prepare(files, code=True)
    assert "needed_here" in sys.modules
    assert not {"needed_elsewhere", "beside"} & sys.modules.keys()
