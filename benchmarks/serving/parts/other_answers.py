"""Do LitServe and Triton answer as the model itself does, whatever a text shares its batch with?

    python benchmarks/serving/parts/other_answers.py litserve triton

The encoder and the texts of gpu.py, with each of their settings. Every request is sent several times, many at
once, so that batches are of unequal lengths; each answer is held against that of the model alone, without
padding, in single precision. Without a GPU one layer is enough. They must be installed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import numpy as np
import numpy.typing as npt
import torch
from load import Template
from on_gpu.others import PEERS
from on_gpu.token_models import ENCODER, TEXTS, TokenModel
from peers.peer import Answer, Running, Settings, ask

AT_ONCE = 48
TIMES = 2
ROUNDING = 0.02  # of half precision, in answers of about one

Answers = npt.NDArray[np.floating]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="+", choices=PEERS)
    parser.add_argument("--layers", type=int, help="12 on a GPU and 1 without, unless given")
    options = parser.parse_args()
    layers = options.layers or (12 if torch.cuda.is_available() else 1)
    differences = dict(measured(options.peers, layers))
    for what, difference in differences.items():
        print(f"{what}: answers differ by {difference:.4f} at most")
    if wrong := [what for what, difference in differences.items() if not difference <= ROUNDING]:
        sys.exit(f"beyond rounding ({ROUNDING}): {'; '.join(wrong)}")


def measured(peers: list[str], layers: int) -> Iterator[tuple[str, float]]:
    for model in (replace(ENCODER, layers=layers), replace(TEXTS, layers=layers)):
        expected = alone(model)
        for peer in peers:
            for settings in model.settings[peer]:
                yield f"{peer}, {model.name}, {settings}", difference(peer, model, settings, expected)


def alone(model: TokenModel) -> Answers:
    """Return the answer to each item by itself."""
    space: dict[str, Any] = {}
    exec(model.code[1], space)
    net = space[model.name](layers=model.layers)
    with torch.inference_mode():
        return torch.cat([net(torch.from_numpy(tokens)[None]) for tokens, _ in model.items]).numpy()


def difference(peer: str, model: TokenModel, settings: Settings, expected: Answers) -> float:
    """Return by how much the answers of a server differ from these at most."""
    which = random.Random(1).sample(list(range(len(expected))) * TIMES, k=TIMES * len(expected))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(PEERS[peer](folder, model).running(1, settings))
        threads = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        answers = threads.map(lambda one: answer(server, server.templates[one]), which)
        return float(np.abs(np.stack(list(answers)) - expected[which]).max())


def answer(server: Running, template: Template) -> Answers:
    reply = ask(server.url, template, patience_s=60.0)
    if reply.status != 200:
        raise RuntimeError(
            f"{reply.status}: {reply.body.decode(errors='replace')}\n{server.tree.log[-3000:]}"
        )
    return of_litserve(reply) if template.path == "/predict" else of_triton(reply)


def of_litserve(reply: Answer) -> Answers:
    return np.array(json.loads(reply.body)["output"], dtype=np.float32)


def of_triton(reply: Answer) -> Answers:
    """Return the output, whose binary data are the end of the body."""
    return np.frombuffer(reply.body[-4:], dtype=np.float16).astype(np.float32)


if __name__ == "__main__":
    main()
