"""Scenario files whose subject is jobs on one GPU: read, overridden, checked in every part.

gpu: {memory: 16GB}
jobs:
  - {name: big, workload: salus:resnet152_75, length: 10min}
  - {name: small, persistent: 100MB, ephemeral: 1GB, iteration: 50ms, iterations: 200, arrival: 30s}
policy: {name: srtf}
"""
