"""A program that uses the driver as CUDA programs do, and does what a test tells it over a pipe.

    python -m tests.support.gate.program libcuda.so.1

Orders are lines of JSON: {"id": 1, "thread": "main", "do": "launch", "args": [...], "options": {...}}.
Each thread does its orders in turn; answers come as they are ready. What can be ordered is in gpu.py,
the other end in remote.py.
"""

from __future__ import annotations

import json
import sys
import threading
from queue import SimpleQueue
from typing import Any, TypeAlias

from tests.support.gate.gpu import Gpu

Orders: TypeAlias = SimpleQueue[dict[str, Any] | None]


class Answers:
    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, answer: dict[str, Any]) -> None:
        with self._lock:
            print(json.dumps(answer), flush=True)


def done(gpu: Gpu, order: dict[str, Any]) -> dict[str, Any]:
    try:
        result = getattr(gpu, order["do"])(*order["args"], **order["options"])
    except Exception as error:
        return {"id": order["id"], "error": f"{type(error).__name__}: {error}"}
    return {"id": order["id"], "result": result}


def work(gpu: Gpu, orders: Orders, answers: Answers) -> None:
    """Until there are no more."""
    while (order := orders.get()) is not None:
        answers.say(done(gpu, order))


def work_beside(gpu: Gpu, orders: Orders, answers: Answers) -> None:
    if gpu.call("cuCtxSetCurrent", 0) == 0:  # the driver is initialized
        gpu.enter()
    work(gpu, orders, answers)


def hear(gpu: Gpu, threads: dict[str, Orders], answers: Answers) -> None:
    """Orders reach the other threads while the main one is held."""
    for line in sys.stdin:
        order = json.loads(line)
        name = order["thread"]
        if name not in threads:
            threads[name] = SimpleQueue()
            threading.Thread(target=work_beside, args=(gpu, threads[name], answers), daemon=True).start()
        threads[name].put(order)
    threads["main"].put(None)


def main() -> None:
    gpu = Gpu(sys.argv[1])
    answers = Answers()
    threads: dict[str, Orders] = {"main": SimpleQueue()}
    threading.Thread(target=hear, args=(gpu, threads, answers), daemon=True).start()
    work(gpu, threads["main"], answers)


if __name__ == "__main__":
    main()
