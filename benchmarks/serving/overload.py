"""What a refusal costs, beside an answer: CPU time of all of the server's processes, 64 clients all out.

    python benchmarks/serving/overload.py

Both servers have one emulated GPU and take the same request. One answers everybody (its model takes no time);
the other's model is always full, so that nearly everybody is refused before any work is done.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict

from _shared import Row, caption, circumstances, keep, parser, say, show
from load import Limits, offer
from peers import Ours, Running, Settings
from peers.peer import Place

ALL_OUT = Limits(outstanding=64, lag_p99_ms=100.0, lag_max_ms=1000.0)
RATE = 50_000.0  # requests/s: more than either can take
ANSWERS = {"policy": "eager", "alpha": "0.001ms", "beta": "0.001ms", "slo": "1000ms"}
REFUSES = {"policy": "eager", "alpha": "0.001ms", "beta": "20ms", "slo": "25ms", "max_batch": 1}


class Here(Ours):
    def variables(self, place: Place) -> dict[str, str]:
        """A machine may have our packages on its path only, not installed."""
        return {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}


def costs(server: Running, seconds: float, seed: int, refused: bool) -> tuple[float, float]:
    """CPU time of a request in microseconds, and requests a second; of refusals alone where meant."""
    before = server.tree.cpu_s()
    run = offer(server.url, server.templates, RATE, seconds, 1000.0, seed, warmup=0.0, limits=ALL_OUT)
    time.sleep(0.1)
    cpu = server.tree.cpu_s() - before
    counted = run.refused if refused else run.in_time + run.late
    if counted < 0.9 * sum(run.codes.values()):
        raise RuntimeError(f"not what was to be measured: {run.codes}")
    return 1e6 * cpu / counted, counted / run.wall_s


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--repeats", type=int, default=3, help="3 unless given")
    flags.add_argument("--seconds", type=float, default=4.0, help="of each run, 4 unless given")
    options = flags.parse_args()
    load_before = circumstances(options.date, 0.0)["load_after"]
    rows: dict[str, list[float]] = {}
    for name, settings in (("an answer", ANSWERS), ("a refusal", REFUSES)):
        with Here(models=1, **settings).running(1, Settings()) as server:
            offer(server.url, server.templates, 500.0, 2.0, 1000.0)  # everything has been touched once
            for seed in range(1, options.repeats + 1):
                say(f"{name}, repetition {seed} ...")
                cpu, rate = costs(server, options.seconds, seed, refused=settings is REFUSES)
                rows.setdefault(f"CPU of {name}", []).append(cpu)
                rows.setdefault(f"{name}: all out", []).append(rate)
    pairs = zip(rows["CPU of a refusal"], rows["CPU of an answer"], strict=True)
    shown = [Row(name, "us" if "CPU" in name else "1/s", values) for name, values in rows.items()]
    shown.append(Row("refusal over answer", "x", [a / b for a, b in pairs], bar=0.2, less_is_better=True))
    facts = circumstances(options.date, load_before)
    keep("overload", {**facts, "rows": [asdict(row) for row in shown]})
    show(shown)
    print(caption(facts))


if __name__ == "__main__":
    main()
