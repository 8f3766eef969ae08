"""What other servers are given is what ours gets: pytest benchmarks/serving/on_gpu"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from peers.apps.graphed_model import GraphedModel, batch_sizes, groups, load, rounded_up

from on_gpu.lengths import WEIGHTS, requests
from on_gpu.table import over_others
from on_gpu.token_models import ENCODER, GROUPED, PADDED, TEXTS

LENGTHS = (32, 64, 128)
SMALL = replace(TEXTS, layers=1)


def test_lengths_are_rounded_up_to_those_with_graphs() -> None:
    assert [rounded_up(length, LENGTHS) for length in (1, 32, 33, 64, 128)] == [32, 32, 64, 64, 128]


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="129 tokens; it may have 128 at most"):
        rounded_up(129, LENGTHS)


def test_a_batch_stays_together_or_each_rounded_length_goes_by_itself() -> None:
    texts = [100, 16, 64, 24, 33]
    assert groups(texts, LENGTHS, grouped=False) == [[0, 1, 2, 3, 4]]
    assert groups(texts, LENGTHS, grouped=True) == [[1, 3], [2, 4], [0]]


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(1, [1]), (16, [1, 2, 4, 6, 8, 12, 16]), (20, [1, 2, 4, 6, 8, 12, 16, 20])],
)
def test_the_largest_batch_has_a_graph(largest: int, sizes: list[int]) -> None:
    assert batch_sizes(largest) == sizes


def test_every_server_is_sent_the_same_texts() -> None:
    in_json = [json.loads(template.body)["tokens"] for template in TEXTS.in_json()]
    assert [len(tokens) for tokens in in_json] == [length for length in WEIGHTS for _ in range(8)]
    for tokens, template in zip(in_json, TEXTS.in_binary(), strict=True):
        assert template.body.endswith(np.array(tokens, dtype=np.int64).tobytes())
    ours = requests("texts", list(WEIGHTS))
    assert TEXTS.in_binary() == ours
    assert [template.weight for template in TEXTS.in_json()] == [template.weight for template in ours]


@pytest.mark.parametrize("mode", [PADDED, GROUPED])
def test_answers_do_not_depend_on_what_shares_the_batch(tmp_path: Path, mode: str) -> None:
    model = loaded(tmp_path, mode)
    texts = [torch.from_numpy(tokens) for tokens, _ in TEXTS.items[:64:7]]
    alone = torch.cat([model([text]) for text in texts])
    assert (alone.diff(dim=0).abs() > 0.01).any(dim=1).all()  # or a mix-up would not be seen
    torch.testing.assert_close(model(texts), alone, atol=2e-3, rtol=0)


def loaded(folder: Path, mode: str) -> GraphedModel:
    SMALL.written(folder, replace(TEXTS.settings["triton"][0], mode=mode))
    return load(folder, "cpu")


def test_the_table_says_our_goodput_over_the_best_other() -> None:
    ours = {"requests": "texts", "goodput": [900.0]}
    others = [{**ours, "server": "some", "goodput": [rate]} for rate in (100.0, 300.0)]
    encoder = {**ours, "requests": ENCODER.name, "server": "some", "goodput": [800.0]}
    assert over_others(ours, [ours, *others, encoder]) == "3.0"
    assert over_others(others[0], others) == over_others(ours, [ours, encoder]) == ""
