"""A scenario of serving that says all that a server alone reads."""

from __future__ import annotations

from pathlib import Path

from astrarium.serving import scenario
from astrarium.serving.scenario import Scenario

SERVED = """\
cluster: {gpus: [{kind: A100, count: 1}, {kind: T4, count: 1}]}
models:
  emulated: {profile: {kinds: {A100: {table: [2ms, 3ms]}, T4: {table: [4ms, 6ms]}}}, slo: 20ms, loaded: false}
  real:
    profile: {table: [1ms, 2ms]}
    slo: 20ms
    backend: {python: {model: code.py:Model, factor: 2, sizes: [1, 2]}}
    inputs:
      - {name: X, datatype: FP32, shape: [-1, 3], values: [-1, 0.5]}
      - {name: Z, datatype: BYTES, shape: []}
    outputs: [{name: Y, datatype: INT64, shape: [1]}]
    preprocess: code.py:prepare
    accepts: [{name: RAW, datatype: FP16, shape: [-1], finite: true}]
    priorities: {1: 5ms, 2: 100ms}
  short: {profile: {table: [1ms]}, slo: 5ms, backend: {onnx: net.onnx}}
  varied:
    slo: 100ms
    profile:
      dynamic:
        c0: 1ms
        c1: 0.5
        applications: {a: {time: {constant: 2ms}}, b: {time: {normal: {mean: 9ms, std: 1ms}}}}
  texts:
    profile: {table: [1ms]}
    slo: 5ms
    preprocess: {tokenizer: tokenizer.json, tokens: IDS, longest: 64}
server:
  {http: 0, grpc: null, host: 0.0.0.0, queue: 5, payload: 1MiB, memory: 2MiB, log: json, record: run.trace}
workload: {arrivals: poisson, rate: 100/s, duration: 1s}
"""


def written(home: Path) -> Path:
    (home / "code.py").write_text("class Model: ...\n")
    (home / "net.onnx").write_bytes(b"")
    (home / "tokenizer.json").write_text("{}")
    (home / "scenario.yaml").write_text(SERVED)
    return home


def load(home: Path, *overrides: str, serving: bool = False) -> Scenario:
    return scenario.load(home / "scenario.yaml", overrides, serving)
