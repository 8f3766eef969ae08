"""The results as a table in Markdown, a row for each case."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from on_gpu.load_on_server import SHARES


def show(results: list[dict[str, Any]]) -> None:
    columns = (
        "l(1), l(64)",
        "promised/s",
        "goodput/s",
        "GPU busy",
        "p50 at 200/s",
        "p99 at half",
        "kept at 2x, 3x",
        "in time at .5, .8, 1: live",
        "simulated",
        "CPU us",
        "over the best other",
    )
    print(f"| | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}")
    for result in results:
        print(f"| {title(result)} | {' | '.join([*cells(result), over_others(result, results)])} |")


def cells(result: dict[str, Any]) -> list[str]:
    runs = result["runs"]
    simulated = result["simulated"]
    profile = result.get("profile")
    alone = result.get("alone", {})
    texts = ", ".join(f"{length}: {run['p50']:.2f}" for length, run in alone.items())
    return [
        f"{profile[1]}, {profile[64]}" if profile else texts,
        f"{result['promised']:.0f}" if "promised" in result else "",
        " ".join(f"{rate:.0f}" for rate in result["goodput"]),
        f"{runs[1.0]['gpu_busy']:.2f}",
        f"{result['quiet']['p50']:.2f} ms",
        f"{runs[0.5]['p99']:.2f} ms",
        ", ".join(f"{kept:.2f}" for kept in result["kept"].values()),
        ", ".join(f"{runs[share]['in_time']:.3f}" for share in SHARES),
        ", ".join(f"{simulated[share]:.3f}" for share in SHARES if share in simulated),
        f"{runs[1.0]['cpu_us']:.0f}",
    ]


def title(result: dict[str, Any]) -> str:
    if "server" in result:
        return f"{result['model']}, {result['server']}"
    graphs = "" if result["graphs"] else ", no graphs"
    policy = "" if result["policy"] == "default" else f", {result['policy']}"
    return f"{result['model']}{graphs}{policy}"


def over_others(result: dict[str, Any], results: Sequence[dict[str, Any]]) -> str:
    """Return our goodput over the best of other servers, for the same requests in this run."""
    others = [
        median(each["goodput"])
        for each in results
        if "server" in each and each["requests"] == result.get("requests")
    ]
    if "server" in result or not others:
        return ""
    return f"{median(result['goodput']) / max(others):.1f}" if max(others) else "nothing in time there"
