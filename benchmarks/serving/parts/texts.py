"""What tokenizing costs: texts a second of a core, and what the event loop notices of it.

    python benchmarks/serving/parts/texts.py [--seconds 3]

The tokenizer is a WordPiece of up to 30,000 tokens, learnt from the repository's own pages, and texts are
made of their words. Rates are by CPU time, of one thread. The event loop's lag is how late a timer of a
millisecond is: with nothing else to do, with 64 texts always waiting in a `TextQueue`, and with the same
texts tokenized in the loop itself. Last, the CPU time of the whole server for a call whose text it tokenizes,
for one with 16 texts, and for the first with tokens from the client, on 16 connections and with a model that
takes no time.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from _shared import ROOT, Row, caption, circumstances, keep, parser, say, show
from http_features.clients import measure
from http_features.requests import Feature, body, http, json_input
from http_features.server import tensor
from load import Template
from peers.ours import COMMAND
from peers.peer import Peer, Place, Settings

from astrarium.core.optional import extension
from astrarium.core.quantities import SECOND
from astrarium.server.contract import InferCall, Refused
from astrarium.server.control.calls.tensor_store import TensorStore
from astrarium.server.control.calls.ticket import Tensors, Ticket
from astrarium.server.control.texts.text_queue import TextQueue
from astrarium.server.control.texts.token_inputs import token_inputs
from astrarium.server.control.texts.tokenizer import Tokenizer
from astrarium.serving.live.shared_memory import SharedMemory
from astrarium.serving.live.tensors import Tensor, TensorSpec, pack_bytes
from astrarium.serving.scenario.tokenization import Tokenization

LENGTHS = (16, 64, 128, 512)  # tokens
LONGEST = 512
TEXTS = 256  # different ones of a length
WAITING = 64
TOGETHER = 16  # texts of a call
FIELD = "preprocess"
MODEL = Tensors((TensorSpec("input_ids", "INT64", (-1,)), TensorSpec("attention_mask", "INT64", (-1,))), ())


def main() -> None:
    flags = parser(__doc__.splitlines()[0] if __doc__ else None)
    flags.add_argument("--seconds", type=float, default=3.0, help="of each measurement, 3 unless given")
    options = flags.parse_args()
    load_before = circumstances(options.date, 0.0)["load_after"]
    words = pages().split()
    with tempfile.TemporaryDirectory() as folder:
        file = learned(pages(), Path(folder))
        texts = {length: [made(words, length) for _ in range(TEXTS)] for length in LENGTHS}
        rows = [*rates(file, texts, options.seconds), *lags(file, texts, options.seconds)]
        rows += calls(file, texts[64][0], options.seconds)
    facts = circumstances(options.date, load_before)
    keep("texts", {**facts, "rows": [asdict(row) for row in rows]})
    show(rows)
    print(caption(facts))


def pages() -> str:
    files = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def learned(text: str, folder: Path) -> str:
    """Save a tokenizer such as BERT's and return its file."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    library.train_from_iterator(text.splitlines(), trainers.WordPieceTrainer(special_tokens=special))
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    library.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    library.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


def made(words: list[str], tokens: int) -> bytes:
    """Return a text of about so many tokens: a word of these pages is two."""
    return " ".join(random.choices(words, k=max(1, tokens // 2))).encode()


def fitted(file: str) -> Tokenizer:
    return Tokenizer(file, token_inputs(Tokenization(file, longest=LONGEST), MODEL.inputs, FIELD), FIELD)


def rates(file: str, texts: dict[int, list[bytes]], seconds: float) -> list[Row]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = fitted(file)
    rows = []
    for length, some in texts.items():
        say(f"texts of about {length} tokens ...")
        mean = np.mean([len(one.ids) for one in tokenizer.encode([(text,) for text in some])])
        values = [rate(tokenizer, some, seconds / 3) for _ in range(3)]
        rows.append(
            row(f"texts of {mean:.0f} tokens, {np.mean([*map(len, some)]):.0f} bytes: a core", values)
        )
    del os.environ["TOKENIZERS_PARALLELISM"]
    return rows


def rate(tokenizer: Tokenizer, texts: list[bytes], seconds: float) -> float:
    """Return texts a second of CPU time, until they are the model's inputs."""
    start = time.process_time()
    done = 0
    while time.process_time() - start < seconds:
        for encoding in tokenizer.encode([(text,) for text in texts[:WAITING]]):
            inputs_of(tokenizer, encoding)
        done += WAITING
    return done / (time.process_time() - start)


def inputs_of(tokenizer: Tokenizer, encoding: Any) -> list[Tensor]:
    numbers = tokenizer.inputs.numbers(encoding)
    assert not isinstance(numbers, Refused)
    return tokenizer.inputs.tensors(numbers)


def lags(file: str, texts: dict[int, list[bytes]], seconds: float) -> list[Row]:
    mixed = [text for some in texts.values() for text in some]
    random.shuffle(mixed)
    rows = []
    for what, load in (("nothing else", None), ("a text queue", queued), ("tokenizing in the loop", in_loop)):
        say(f"the loop with {what} ...")
        late = asyncio.run(lag(None if load is None else partial(load, file, mixed), seconds))
        for share in (50, 99):
            rows.append(
                row(f"event loop with {what}: p{share} of its lag", [np.percentile(late, share)], "ms")
            )
    return rows


async def lag(load: Callable[[], Any] | None, seconds: float) -> list[float]:
    """Return by how many milliseconds a timer of one was late, each time."""
    work = None if load is None else asyncio.ensure_future(load())
    late = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = time.monotonic()
        await asyncio.sleep(0.001)
        late.append((time.monotonic() - before) * 1e3 - 1)
    if work is not None:
        work.cancel()
    return late


async def queued(file: str, texts: list[bytes]) -> None:
    """Keep so many texts waiting; each that has its tokens is followed by another."""
    front: Any = extension("_front")
    memory = SharedMemory.create(1 << 26)
    store = TensorStore(memory, front.Arena(1 << 26))
    open_: list[Ticket] = []

    def next_ones() -> None:
        for ticket in [one for one in open_ if one.inputs_ready]:
            open_.remove(ticket)
            ticket.released = True
            store.settle(ticket)
        while len(open_) < WAITING:
            ticket = ticket_of(random.choice(texts))
            with suppress(Refused):  # the measurement ends
                queue.take(ticket)
            open_.append(ticket)

    queue = TextQueue(front.TextQueue(1, 1 << 26), store, next_ones, time.monotonic_ns, lambda _: 0)
    queue.add(0, Tokenization(file, longest=LONGEST), FIELD)
    queue.start()
    try:
        next_ones()
        await asyncio.Event().wait()
    finally:
        queue.close()


def ticket_of(text: bytes) -> Ticket:
    now = time.monotonic_ns()
    call = InferCall("m", [Tensor("TEXT", "BYTES", (1, 1), pack_bytes([text]))], 1, now)
    return Ticket(call, 0, MODEL, 0, now + 60 * SECOND, asyncio.get_running_loop().create_future())


async def in_loop(file: str, texts: list[bytes]) -> None:
    tokenizer = fitted(file)
    while True:
        for encoding in tokenizer.encode([(random.choice(texts),) for _ in range(WAITING)]):
            inputs_of(tokenizer, encoding)
        await asyncio.sleep(0)


class Server(Peer):
    """Our server with two models that take no time: one takes texts, the other tokens."""

    name = "astrarium"

    def __init__(self, file: str) -> None:
        self._file = file

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        path = place.folder / "scenario.yaml"
        tensors = {"inputs": [tensor("input_ids", "INT64", -1)], "outputs": [tensor("OUT", "FP32", 1)]}
        tokens = {"profile": {"alpha": "0.001ms", "beta": "0.001ms"}, "slo": "10s", "max_batch": 16} | tensors
        texts = tokens | {"preprocess": {"tokenizer": self._file, "longest": LONGEST}}
        models = {"tokens": tokens, "texts": texts}
        document = {"cluster": {"gpus": gpus}, "models": models, "policy": {"name": "eager"}}
        path.write_bytes(msgspec.yaml.encode(document))
        return [*COMMAND, "serve", str(path), "--http", str(place.port), "--grpc", str(place.grpc_port)]

    def template(self) -> Template:
        return Template("/v2/models/tokens/infer", body([json_input("input_ids", "INT64", [2, 3])]), {})


def calls(file: str, text: bytes, seconds: float) -> list[Row]:
    say("calls to a server ...")
    [encoding] = fitted(file).encode([(text,)])
    sent = {
        "a text": ("texts", [texts_input([text])]),
        f"{TOGETHER} texts": ("texts", [texts_input([text] * TOGETHER)]),
        "tokens": ("tokens", [json_input("input_ids", "INT64", encoding.ids)]),
    }
    costs: dict[str, list[float]] = {name: [] for name in sent}
    with Server(file).running(1, Settings()) as server:
        for turn in range(4):
            for name, (model, inputs) in sent.items():
                cost = measure(Feature(name, http(body(inputs), path=model)), server, seconds / 3)
                if turn:  # everything has been touched once
                    costs[name].append(cost.cpu_s * 1e6)
    size = len(encoding.ids)
    return [row(f"a call with {name} of {size}: CPU", costs[name], "us") for name in sent]


def texts_input(texts: list[bytes]) -> dict[str, Any]:
    data = [text.decode() for text in texts]
    return {"name": "TEXT", "datatype": "BYTES", "shape": [len(texts), 1], "data": data}


def row(what: str, values: list[Any], unit: str = "texts/s") -> Row:
    return Row(what, unit, [float(value) for value in values])


if __name__ == "__main__":
    main()
