"""Decisions of a live search are recorded step by step, so that those of a killed run remain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from astrarium.core.trace import Step

TRACE = "trace.jsonl"


@contextmanager
def trace_recorder(folder: Path | None) -> Iterator[Callable[[Step], None] | None]:
    """Yield a function that appends a step to the trace; None where no folder is kept."""
    if folder is None:
        yield None
        return
    _keep_earlier(folder / TRACE)
    with (folder / TRACE).open("wb") as file:

        def record(step: Step) -> None:
            file.write(msgspec.json.encode(step) + b"\n")
            file.flush()

        yield record


def _keep_earlier(trace: Path) -> None:
    """Rename the trace of the run that this one resumes: trace.1.jsonl is the first."""
    if trace.exists():
        earlier = len(list(trace.parent.glob(f"{trace.stem}.*{trace.suffix}")))
        trace.rename(trace.with_name(f"{trace.stem}.{earlier + 1}{trace.suffix}"))
