"""What it costs to ask for help."""

from __future__ import annotations

from _measure import Row, astrarium, main


def measure(repeats: int) -> list[Row]:
    costs = [astrarium("--help").cpu_s for _ in range(repeats)]
    return [Row("astrarium --help", "CPU-s", costs, bar=0.3, less_is_better=True)]


if __name__ == "__main__":
    main(measure, repeats=9)
