"""All tables of the GPU benchmarks, part by part, into one folder with date, GPU and versions.

    python benchmarks/gpu/run.py --out benchmarks/results              all parts: some 20 minutes
    python benchmarks/gpu/run.py --parts gate policies --out FOLDER    these

A part that is cut short keeps the pairs that it has measured.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch
from pair import Row, read, settled

HERE = Path(__file__).parent
SOME = ["--hp", "resnet50:4", "--be", "resnet50:32,mobilenet_v2:64", "--arrivals", "poisson"]
ALL_POLICIES = ["streams", "kernel-temporal", "reef-n", "orion", "astrarium"]
LESS = ["--hp", "resnet50:4,mobilenet_v2:4,bert_base:2", "--be", "resnet50:4,bert_base:2"]
BESIDE = ["gate.py", "--experiment"]
TWO = ["--policies", "astrarium", "orion"]
# Training has no latency to keep but a pace: a tenth of it may go.
THROUGHPUT = ["--policies", "streams", "astrarium:search_limit=0.1"]
SHOWN = ("p50_ms", "p95_ms", "p99_ms", "per_second", "mean_ms", "count", "service_ms")

# What each part runs. Those of gate.py take --out for their pairs; the others print their table.
PARTS: dict[str, list[str]] = {
    "gate": ["gate.py", "--policies", "astrarium", "--seconds", "2"],
    "policies": ["gate.py", *SOME, "--policies", *ALL_POLICIES, "--seconds", "2"],
    "inference": [*BESIDE, "inference-inference", *LESS, "--arrivals", "poisson", *TWO],
    "training": [*BESIDE, "training-training", *THROUGHPUT],
    "cost": ["gate_cost.py", "--hp", "resnet50:4,bert_base:2", "--be", "resnet50:32,bert_base:8"],
    "table2": ["table2.py"],
    "lanes": ["lanes.py"],
    "tuning": ["tuning.py"],
}


def about() -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}
    return {"date": date.today().isoformat(), "gpu": gpu, "versions": versions}


def shortened(row: Row) -> dict[str, Any]:
    outcomes = ("hp_alone", "hp_shared", "be_alone", "be_shared")
    facts = {who: {name: getattr(row, who).get(name) for name in SHOWN} for who in outcomes}
    derived = {"hp_cost": row.hp_cost, "be_share": row.be_share, "left": row.left, "total": row.total}
    return {"pair": row.key, **facts, **derived}


def shown(words: list[str]) -> list[str]:
    """Return words with files by their names: where they lay is nobody's business."""
    return [Path(word).name if "/" in word else word for word in words]


def run(part: str, trace: str, scratch: Path) -> dict[str, Any]:
    script, *words = PARTS[part]
    pairs = scratch / f"{part}.jsonl"
    if script == "gate.py":
        words += ["--out", str(pairs), *(["--trace", trace] if part == "gate" and trace else [])]
        words += [] if trace or part != "gate" else ["--arrivals", "poisson"]
    if script in ("lanes.py", "tuning.py"):
        words += ["--out", str(scratch / part)]
    command = [sys.executable, str(HERE / script), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    ended = {"command": ["benchmarks/gpu/" + script, *shown(words)], "ended": done.returncode}
    return {
        **ended,
        "table": done.stdout.splitlines(),
        "pairs": [shortened(row) for row in settled(read(pairs))],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    chosen.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    chosen.add_argument("--trace", default="", help="the Apollo trace; without it: Poisson only")
    chosen.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = chosen.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for part in options.parts:
        with tempfile.TemporaryDirectory() as scratch:
            result = {**about(), **run(part, options.trace, Path(scratch))}
        name = f"{result['date']}-gpu-{part}-{result['gpu'].lower().replace(' ', '-')}.json"
        (options.out / name).write_text(json.dumps(result, indent=1) + "\n")
        failed |= result["ended"]
    return failed


if __name__ == "__main__":
    sys.exit(main())
