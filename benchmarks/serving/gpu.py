"""Real models on a real GPU: ResNet50 on images of 150 kB, and an encoder of the size of BERT-base on 128
tokens (1 kB), both in half precision with CUDA graphs, everything else as a user gets it without tuning.

    python benchmarks/serving/gpu.py --beside litserve triton
    python benchmarks/serving/gpu.py --lengths texts --beside litserve triton
    python benchmarks/serving/gpu.py --models --twelve

For each: what `astrarium profile` measures, the goodput that the simulator promises with that profile,
latency while it is quiet, the goodput over HTTP (SLO 25 ms, 99 % in time), and at that goodput how busy the
GPU is; the share in time at half, .8 and all of it, beside what the simulator says; what is kept of it at two
and three times the rate. Twelve models, six of each kind, share the GPU by Zipf's law. With --lengths an
encoder reads texts of 16 to 512 tokens (SLO 50 ms). LitServe and Triton run beside ours with the encoder, or
with those texts. Weights, tokens and images are random: a GPU is faster at zeros. Needs torch, torchvision
and a GPU.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from _shared import keep, parser
from on_gpu import lengths, recommender
from on_gpu.cases import at_rates, beside, measured, twelve
from on_gpu.models import MODELS, Model
from on_gpu.others import PEERS
from on_gpu.scenario import SLO_MS
from on_gpu.table import show
from on_gpu.token_models import ENCODER, TEXTS, TokenModel
from search import Plan

from run import cpu

Measure = Callable[[Path], dict[str, Any]]  # in a folder of its own


def main() -> None:
    options = arguments()
    plan = Plan(seconds=options.seconds, repeats=options.repeats, slo_ms=SLO_MS, tolerance=0.03)
    results: list[dict[str, Any]] = []
    chosen = [model for model in MODELS if model.name in options.models]
    if options.rates:
        for model in chosen:
            with tempfile.TemporaryDirectory() as folder:
                at_rates(Path(folder), model, options.rates, plan)
        return
    for measure in plans(options, chosen, plan):
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure(Path(folder)))
        path = keep("serving-gpu" + options.suffix, {**circumstances(options.date), "results": results})
    show(results)
    print(path)


def plans(options: argparse.Namespace, chosen: Sequence[Model], plan: Plan) -> list[Measure]:
    texts = replace(plan, slo_ms=lengths.SLO_MS)
    measures: list[Measure] = [
        partial(lengths.by_length, model=model, plan=texts)
        for model in lengths.TEXTS
        if model.name in options.lengths
    ]
    if options.lengths:
        measures += others(options.beside, TEXTS, texts)
    measures += [
        partial(measured, model=model, graphs=graphs == "graphs", policy=policy, plan=plan)
        for model, graphs, policy in product(chosen, options.graphs, options.policies)
    ]
    if ENCODER.name in options.models:
        measures += others(options.beside, ENCODER, plan)
    if options.recommender:
        small = replace(plan, slo_ms=recommender.SLO_MS)
        measures.append(partial(recommender.recommender, plan=small))
    return measures + [partial(twelve, plan=plan)] * options.twelve


def others(names: Sequence[str], model: TokenModel, plan: Plan) -> list[Measure]:
    return [
        partial(beside, plan=plan, peer=PEERS[name], model=model, settings=settings)
        for name in names
        for settings in model.settings[name]
    ]


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=5.0, help="of each run, 5 unless given")
    options.add_argument("--repeats", type=int, default=1, help="of the search for goodput, 1 unless given")
    names = [model.name for model in MODELS]
    options.add_argument(
        "--models", nargs="*", choices=names, help="both unless given, or none where --lengths is"
    )
    texts = [model.name for model in lengths.TEXTS]
    options.add_argument(
        "--lengths",
        nargs="*",
        default=[],
        choices=texts,
        help="texts of unequal length, without or with a mask",
    )
    options.add_argument("--recommender", action="store_true", help="50 us a batch: the path is full first")
    options.add_argument("--rates", nargs="+", type=float, help="only these, without a search")
    options.add_argument("--twelve", action="store_true", help="twelve models on the GPU, too")
    options.add_argument("--suffix", default="", help="of the name of the results")
    options.add_argument(
        "--graphs", nargs="+", default=["graphs"], choices=["graphs", "eager"], help="with or without them"
    )
    options.add_argument("--policies", nargs="+", default=[""], help="the default one unless given")
    options.add_argument("--beside", nargs="+", default=[], choices=PEERS, help="they must be installed")
    given = options.parse_args()
    if given.models is None:
        given.models = [] if given.lengths else names
    return given


def circumstances(day: Any) -> dict[str, Any]:
    import torch

    return {
        "date": day.isoformat(),
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name(0),
    }


if __name__ == "__main__":
    main()
