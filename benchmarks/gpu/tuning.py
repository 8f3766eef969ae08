"""27 trials of a small CNN on one GPU: packed by Fluid, against one at a time. Some six minutes.

    PYTHONPATH=src python3 benchmarks/gpu/tuning.py --out FILE.json [--repeats 2] [--only NAME ...]

The same candidates with the same seeds each time; all runs are live (`astrarium.tune`). `--pretend` tries the
script out on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import astrarium
from _measure import HEADER, Row, cells
from astrarium.core.quantities import SECOND
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.state import Outcome

BUILD = f"{Path(__file__).resolve().parents[1] / 'tuning' / '_cnn.py'}:build"
TRIALS = 27
ITERATIONS = 6
PACKED = 9
BAR = 2.0
ALONE = "fifo"
LANES = "lanes"
WAYS: dict[str, dict[str, Any]] = {
    ALONE: {"policy": "fifo", "gate": False},
    "processes, gate and MPS": {"policy": "dynamic-fluid", "packing": "processes", "gate": True},
    "processes, no gate": {"policy": "dynamic-fluid", "packing": "processes", "gate": False},
    LANES: {"policy": "dynamic-fluid", "packing": "lanes", "gate": False},
}


def main() -> int:
    options = _options()
    if options.pretend:
        os.environ["TUNING_CNN_TINY"] = "1"
    elif not torch.cuda.is_available():
        sys.exit("no CUDA GPU is here; --pretend tries the script out on the CPU")
    here = [name for name in WAYS if not (options.pretend and name == LANES)]  # which need a GPU
    runs: dict[str, list[TuningRecord]] = {name: [] for name in options.only or here}
    for repeat in range(options.repeats):
        for name, records in runs.items():
            records.append(_run(WAYS[name], options.pretend))
            _say(
                f"{repeat + 1}/{options.repeats} {name}: {_seconds(records[-1]):.1f} s, {_facts(records[-1])}"
            )
    rows = list(_rows({name: records for name, records in runs.items() if all(map(_finished, records))}))
    for row in (HEADER, *(cells(row) for row in rows)):
        print("| " + " | ".join(row) + " |")
    Path(options.out).write_text(json.dumps(_result(rows, runs), indent=1))
    return 0


def _run(way: dict[str, Any], pretend: bool) -> TuningRecord:
    packed = {"packed": PACKED} if way["policy"] != "fifo" else {}
    how = {name: value for name, value in way.items() if name != "policy"}
    sys.path.insert(0, str(Path(BUILD).parent))
    from _cnn import SPACE

    record: TuningRecord = astrarium.tune(
        BUILD,
        SPACE,
        {"name": "random", "candidates": TRIALS, "iterations": 2 if pretend else ITERATIONS},
        {"name": way["policy"], **packed},
        gpus=1,
        emulated=pretend,
        goal="max",
        live={"memory": True, "slots": PACKED, **how},
    ).record
    return record


def _rows(runs: dict[str, list[TuningRecord]]) -> list[Row]:
    rows = [
        Row(f"{name}: makespan", "s", [_seconds(record) for record in records])
        for name, records in runs.items()
    ]
    for name, records in runs.items():
        if name == ALONE or ALONE not in runs:
            continue
        gains = [
            _seconds(alone) / _seconds(record) for alone, record in zip(runs[ALONE], records, strict=True)
        ]
        rows.append(Row(f"{ALONE} over {name}: makespan", "x", gains, BAR))
        apart = [_apart(alone, record) for alone, record in zip(runs[ALONE], records, strict=True)]
        rows.append(Row(f"{name}: accuracy of a trial against {ALONE}, mean difference", "points", apart))
    if ALONE in runs and len(runs[ALONE]) > 1:
        rows.append(Row(f"{ALONE} against itself", "points", [_apart(*runs[ALONE][:2])]))
    return rows


def _seconds(record: TuningRecord) -> float:
    return record.end / SECOND


def _finished(record: TuningRecord) -> bool:
    return all(row.outcome is Outcome.FINISHED for row in record.rows)


def _values(record: TuningRecord) -> dict[int, float]:
    return {
        candidate.number: candidate.value for candidate in record.candidates if candidate.value is not None
    }


def _apart(record: TuningRecord, other: TuningRecord) -> float:
    first = _values(record)
    second = _values(other)
    return 100 * fmean(abs(first[number] - second[number]) for number in first)


def _facts(record: TuningRecord) -> str:
    failed = [row.reason for row in record.rows if row.outcome is not Outcome.FINISHED]
    best = record.best[-1].value if record.best else float("nan")
    outcome = f"{len(failed)} did not finish: {failed[0][:200]}" if failed else f"best {best:.3f}"
    return f"{len(record.rows)} trials, utilization {record.utilization():.2f}, {outcome}"


def _result(rows: list[Row], runs: dict[str, list[TuningRecord]]) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "gpu": gpu,
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "command": "benchmarks/gpu/tuning.py",
        "rows": [asdict(row) | {"median": row.median, "met": row.met} for row in rows],
        "accuracies": {name: [_values(record) for record in records] for name, records in runs.items()},
    }


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", required=True, help="the JSON file")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=WAYS, default=[], metavar="NAME")
    parser.add_argument("--pretend", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
