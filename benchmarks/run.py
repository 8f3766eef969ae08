"""Run the benchmarks (all, or those named), print one table; of all, keep the numbers in results/."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import asdict
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from _measure import ROOT, Row, markdown, show

HERE = Path(__file__).resolve().parent
NAMES = (
    "scheduler",
    "hull_queue",
    "decisions",
    "simulate_zoo",
    "reference_speed",
    "own_policy",
    "placement",
    "planner",
    "subclusters",
    "cluster/auction",
    "cluster/simulate",
    "arrivals",
    "memory",
    "startup",
)
BEGIN = "<!-- results: written by run.py --write -->"
END = "<!-- end of results -->"


def main() -> None:
    options = arguments()
    load_before = os.getloadavg()[0]
    rows = [row for name in options.names or NAMES for row in measured(name, options.repeats)]
    result = {**circumstances(options.date, load_before), "rows": [plain(row) for row in rows]}
    if not options.names:
        keep(result, HERE / "results")
    if options.write:
        write_readme(HERE / "README.md", result, rows)
    if options.json:
        print(json.dumps(result))
    else:
        show(rows)
        print(caption(result))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all unless given")
    parser.add_argument("--repeats", type=int, help="for all; each has its own number unless given")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    parser.add_argument("--date", type=date.fromisoformat, default=date.today(), help="today unless given")
    options = parser.parse_args()
    for name in options.names:
        if name not in NAMES:
            parser.error(f"there is no benchmark {name!r}; there are {', '.join(NAMES)}")
    if options.write and options.names:
        parser.error("--write needs all benchmarks, so name none")
    if options.repeats is not None and options.repeats < 1:
        parser.error("--repeats must be at least 1")
    return options


def measured(name: str, repeats: int | None) -> list[Row]:
    """In a process of its own: what one benchmark holds in memory does not weigh on the next."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    command = [sys.executable, str(HERE / f"{name}.py"), "--json"]
    if repeats is not None:
        command += ["--repeats", str(repeats)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return [Row(**row) for row in json.loads(done.stdout)]


def plain(row: Row) -> dict[str, Any]:
    return {**asdict(row), "median": row.median, "met": row.met, "times_the_bar": row.ratio}


def circumstances(day: date, load_before: float) -> dict[str, Any]:
    return {
        "date": day.isoformat(),
        "cpu": cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(load_before, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "versions": {name: installed(name) for name in ("astrarium", "numpy", "msgspec", "matplotlib")}
        | {"python": platform.python_version()},
    }


def installed(name: str) -> str:
    """Return the version of a package; a machine may have it on its path only."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "from its path"


def cpu() -> str:
    """Return the processor with its family and model numbers: virtual machines often give no better name."""
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    numbers = f"family {facts.get('cpu family', '?')} model {facts.get('model', '?')}"
    return f"{facts.get('model name', platform.machine())} {numbers}"


def keep(result: dict[str, Any], folder: Path) -> None:
    name = re.sub(r"\W+", "-", result["cpu"].replace("(R)", "")).strip("-").lower()
    folder.mkdir(exist_ok=True)
    path = folder / f"{result['date']}-{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def write_readme(path: Path, result: dict[str, Any], rows: list[Row]) -> None:
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{path} has no section between {BEGIN!r} and {END!r}")
    section = f"{BEGIN}\n{caption(result)}\n\n{markdown(rows)}\n{END}"
    path.write_text(before + section + after, encoding="utf-8")


def caption(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return (
        f"{result['date']}, {result['cpu']}, {result['cores']} cores, load average "
        f"{result['load_before']} before and {result['load_after']} after; {versions}."
    )


if __name__ == "__main__":
    main()
