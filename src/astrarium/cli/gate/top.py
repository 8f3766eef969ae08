"""astrarium gate top"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from astrarium.cli.gate.options import Gpu, board_of, no_board
from astrarium.cli.options import Json
from astrarium.cli.output import emit
from astrarium.core.quantities import SECOND, counted

if TYPE_CHECKING:
    from astrarium.gate.board import Board, BoardView, ClientView

COLUMNS = ("client", "pid", "class", "launches", "per s", "held", "time held", "fences", "busy", "free",
           "beside", "coverage", "in flight", "waits for", "last request", "alone")  # fmt: skip
WORDS = {
    "latency": "latency work",
    "drain": "work in flight",
    "unknown": "idle GPU (new)",
    "turn": "its turn",
}

Once = Annotated[bool, typer.Option("--once", help="One look, then end.")]
Interval = Annotated[
    float, typer.Option("--interval", min=0.05, metavar="SECONDS", help="Between two looks.")
]


def top(once: Once = False, json: Json = False, interval: Interval = 1.0, gpu: Gpu = 0) -> None:
    """Show who shares a GPU: launches seen and held, what they wait for, how requests fare."""
    board = board_of(gpu)
    if board is None:
        _absent(gpu, json)
        return
    if json or once or not sys.stdout.isatty():
        _once(board, json)
        return
    _watch(board, interval)


def _absent(gpu: int, json: bool) -> None:
    if json:
        emit(True, {"board": None, "clients": []}, [], None)
        return
    print(no_board(gpu), file=sys.stderr)
    raise typer.Exit(1)


def _once(board: Board, json: bool) -> None:
    view = board.view()
    emit(json, shown(view), [clients_table(view, None)], None)


def _watch(board: Board, interval: float) -> None:
    import time

    from rich.live import Live

    before = board.view()
    with Live(clients_table(before, None), auto_refresh=False) as live:
        try:
            while True:
                time.sleep(interval)
                board.sweep()
                now = board.view()
                live.update(clients_table(now, before), refresh=True)
                before = now
        except KeyboardInterrupt:
            return


def shown(view: BoardView) -> dict[str, Any]:
    """Return what --json prints: the look itself, and what follows from it."""
    from astrarium.run.report import struct_as_dict

    board = struct_as_dict(view)
    board["board"] = board.pop("path")
    for row, client in zip(board["clients"], view.clients, strict=True):
        row |= {"launches": client.launches, "coverage": client.coverage, "slowdown": client.slowdown}
    return board


def clients_table(view: BoardView, before: BoardView | None) -> Any:
    """*before*: an earlier look, for what happened since."""
    from rich.table import Table

    table = Table(*COLUMNS, title=_title(view), title_justify="left", box=None, pad_edge=False)
    earlier = {(client.place, client.pid): client for client in before.clients} if before else {}
    passed = view.now - before.now if before else 0
    pasts = [earlier.get((client.place, client.pid)) for client in view.clients]
    busy = sum(_busy(client, past) for client, past in zip(view.clients, pasts, strict=True))
    for client, past in zip(view.clients, pasts, strict=True):
        table.add_row(*_row(client, past, Since(passed, busy)))
    return table


class Since(NamedTuple):
    """An interval, and how much of it latency requests took."""

    passed: int
    busy: int


def _busy(client: ClientView, past: ClientView | None) -> int:
    return client.counts.busy_ns - past.counts.busy_ns if past else 0


def _title(view: BoardView) -> str:
    """The policy with its own settings; others have no say in it."""
    from astrarium.gate.board_settings import settings_table, write_setting

    own = [name for name, setting in settings_table().items() if setting.about.startswith(f"{view.policy}:")]
    settings = [f"{name}={write_setting(name, view.settings[name])}" for name in own]
    return f"policy {view.policy}, {counted(len(view.clients), 'client')}\n{'  '.join(settings)}".rstrip()


def _row(client: ClientView, past: ClientView | None, since: Since) -> list[str]:
    counts = client.counts
    rate, busy, free = _since(client, past, since) if past and since.passed > 0 else ("-", "-", "-")
    return [
        client.name or "-",
        str(client.pid),
        client.kind,
        f"{client.launches:,}",
        rate,
        _share(counts.held, client.launches),
        _time(counts.held_ns),
        f"{counts.fences:,}" if counts.fences else "-",
        busy,
        free,
        _share(counts.beside, client.launches),
        "-" if client.coverage is None else f"{client.coverage:.1%}",
        f"{client.in_flight} ({_time(client.in_flight_ns)})" if client.in_flight else "-",
        WORDS.get(client.waiting, client.waiting) if client.waiting else "-",
        _last(client),
        _time(client.alone) if client.alone else "-",
    ]


def _since(client: ClientView, past: ClientView, since: Since) -> tuple[str, str, str]:
    """Return launches a second; the share of the last interval that requests took; and, of others, the share
    in which they were not held, nor stopped by requests at their fences."""
    rate = f"{(client.launches - past.launches) * SECOND / since.passed:,.0f}"
    if client.kind == "latency":
        return rate, f"{_busy(client, past) / since.passed:.0%}", "-"
    stopped = since.busy if client.counts.fences > past.counts.fences else 0
    held = client.counts.held_ns - past.counts.held_ns
    return rate, "-", f"{max(0.0, 1.0 - (held + stopped) / since.passed):.0%}"


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.0%})" if part and whole else "0"


def _last(client: ClientView) -> str:
    if not client.last:
        return "-"
    times = "" if client.slowdown is None else f" ({client.slowdown:.2f}x)"
    return _time(client.last) + times


def _time(duration: int) -> str:
    """Three digits are enough here."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if duration >= size:
            return (
                f"{duration / size:.3g} {unit}"
                if duration < 1000 * size
                else f"{duration / size:,.0f} {unit}"
            )
    return f"{duration} ns" if duration else "0"
