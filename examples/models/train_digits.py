"""Trains digits.onnx, the small real model of examples/serve.yaml: handwritten digits of 8x8 pixels.

    pip install scikit-learn onnx numpy
    python examples/models/train_digits.py

The data are the 1,797 digits that come with scikit-learn (pixels from 0 to 16). A quarter is held back for
the test and never seen in training; the network has one hidden layer and is trained here, in numpy.
Printed on the held back quarter: 97.8 % right. Beside the model it leaves 50 of those digits as a table
(digits.csv: the label, then 64 pixels) and one as a request (digit.json).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Weights = dict[str, Floats]

HIDDEN = 128
EPOCHS = 120
BATCH = 64
BRIGHTEST = 16.0


def load_digits() -> tuple[Floats, Ints]:
    from sklearn.datasets import load_digits as digits

    images, labels = digits(return_X_y=True)
    return images.astype(np.float32), labels.astype(np.int64)


def shifted(images: Floats, generator: np.random.Generator) -> Floats:
    """Return images of which half are moved by one pixel to some side: more digits than were drawn."""
    squares = images.reshape(-1, 8, 8)
    axis = generator.integers(1, 3)
    step = generator.choice([-1, 1])
    moved = np.roll(squares, step, axis=axis)
    edge: list[Any] = [slice(None)] * 3
    edge[axis] = 0 if step > 0 else -1
    moved[tuple(edge)] = 0
    chosen = generator.random(len(images)) < 0.5
    return np.where(chosen[:, None, None], moved, squares).reshape(-1, 64)


def start(generator: np.random.Generator) -> Weights:
    def layer(inputs: int, outputs: int) -> Floats:
        return (generator.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)).astype(np.float32)

    zeros = {"b1": np.zeros(HIDDEN, np.float32), "b2": np.zeros(10, np.float32)}
    return {"w1": layer(64, HIDDEN), "w2": layer(HIDDEN, 10), **zeros}


def forward(weights: Weights, images: Floats) -> tuple[Floats, Floats]:
    hidden = np.maximum(images / BRIGHTEST @ weights["w1"] + weights["b1"], 0)
    scores = hidden @ weights["w2"] + weights["b2"]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def gradients(weights: Weights, images: Floats, labels: Ints) -> Weights:
    """Return the gradients of the cross entropy, with a little weight decay."""
    hidden, chances = forward(weights, images)
    wrong = chances.copy()
    wrong[np.arange(len(labels)), labels] -= 1
    wrong /= len(labels)
    back = (wrong @ weights["w2"].T) * (hidden > 0)
    gradient = {
        "w1": images.T / BRIGHTEST @ back,
        "b1": back.sum(0),
        "w2": hidden.T @ wrong,
        "b2": wrong.sum(0),
    }
    return {name: value + 1e-4 * weights[name] for name, value in gradient.items()}


def train(images: Floats, labels: Ints, generator: np.random.Generator) -> Weights:
    """Adam, with a learning rate that falls to zero."""
    weights = start(generator)
    mean, square = ({name: np.zeros_like(value) for name, value in weights.items()} for _ in range(2))
    steps = EPOCHS * (len(images) // BATCH)
    for step in range(1, steps + 1):
        rows = generator.integers(len(images), size=BATCH)
        slopes = gradients(weights, shifted(images[rows], generator), labels[rows])
        rate = 2e-3 * (1 - step / (steps + 1))
        for name, slope in slopes.items():
            mean[name] = 0.9 * mean[name] + 0.1 * slope
            square[name] = 0.999 * square[name] + 0.001 * slope**2
            size = np.sqrt(square[name] / (1 - 0.999**step)) + 1e-8
            weights[name] = (weights[name] - rate * mean[name] / (1 - 0.9**step) / size).astype(np.float32)
    return weights


def accuracy(weights: Weights, images: Floats, labels: Ints) -> float:
    return float((forward(weights, images)[1].argmax(axis=1) == labels).mean())


def export(weights: Weights, path: Path) -> None:
    from onnx import TensorProto, checker, helper, numpy_helper, save

    stored = {**weights, "w1": weights["w1"] / np.float32(BRIGHTEST)}
    nodes = [
        helper.make_node("Gemm", ["IMAGE", "w1", "b1"], ["sums"]),
        helper.make_node("Relu", ["sums"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "w2", "b2"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["PROBABILITIES"], axis=1),
    ]
    image = helper.make_tensor_value_info("IMAGE", TensorProto.FLOAT, ["batch", 64])
    chances = helper.make_tensor_value_info("PROBABILITIES", TensorProto.FLOAT, ["batch", 10])
    constants = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    graph = helper.make_graph(nodes, "digits", [image], [chances], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    checker.check_model(model)
    save(model, str(path))


def write_examples(images: Floats, labels: Ints, folder: Path) -> None:
    rows = np.column_stack([labels, images.astype(np.int64)])
    np.savetxt(folder / "digits.csv", rows, fmt="%d", delimiter=",")
    pixels = ", ".join(f"{pixel:.0f}" for pixel in images[0])
    tensor = f'{{"name": "IMAGE", "datatype": "FP32", "shape": [1, 64],\n  "data": [{pixels}]}}'
    (folder / "digit.json").write_text(f'{{"inputs": [{tensor}]}}\n')


def main() -> None:
    generator = np.random.default_rng(1)
    images, labels = load_digits()
    order = generator.permutation(len(images))
    test = order[: len(order) // 4]
    rest = order[len(order) // 4 :]
    weights = train(images[rest], labels[rest], generator)
    print(f"right on the {len(test)} held back: {100 * accuracy(weights, images[test], labels[test]):.1f} %")
    export(weights, Path(__file__).with_name("digits.onnx"))
    write_examples(images[test[:50]], labels[test[:50]], Path(__file__).parent)


if __name__ == "__main__":
    main()
