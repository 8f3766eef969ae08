"""`astrarium gate top`, `policy` and `policies`: what a board shows, and the tables of a profile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from astrarium.cli.gate.profile import tables
from astrarium.cli.gate.top import clients_table
from tests.support.gate.boards import Board
from tests.support.gate.fakes import Call, calling, fresh_user


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fresh_user(tmp_path, monkeypatch)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return calling(capsys, monkeypatch)


def test_top_says_so_when_there_is_no_board(call: Call, place: Path) -> None:
    code, out, err = call("top", "--once")
    assert (code, out) == (1, "")
    assert f"no board at {place / 'board'}" in err
    assert json.loads(call("top", "--once", "--json")[1])["clients"] == []
    assert f"no board at {place / 'board'}" in call("policy", "orion")[2]
    assert not Path("board").exists()


def test_top_shows_the_board(call: Call) -> None:
    board = Board(Path("board"), "orion", 132)
    board.join("latency", "serve")
    code, out, _ = call("top", "--once")
    assert code == 0
    assert "policy orion, 1 client" in out
    assert "duration_fraction=0.025" in out
    assert "serve" in out
    shown = json.loads(call("top", "--once", "--json")[1])
    assert shown["board"] == "board" or shown["board"] == str(Path("board").absolute())
    assert [client["coverage"] for client in shown["clients"]] == [None]


def cells(table: Any) -> dict[str, str]:
    return {str(column.header): next(iter(column.cells)) for column in table.columns}


def test_a_row_tells_what_happened_since_the_last_look() -> None:
    from msgspec.structs import replace

    board = Board(Path("board"))
    board.join("best-effort", "train")
    before = board.view()
    client = before.clients[0]
    counts = replace(
        client.counts, kernels=900, copies=100, held=250, held_ns=1_500_000_000, beside=20, ran=1000
    )
    changed = replace(
        client,
        counts=counts,
        waiting="drain",
        in_flight=3,
        in_flight_ns=120_000,
        last=3_000_000,
        alone=2_000_000,
    )
    row = cells(clients_table(replace(before, now=before.now + 2_000_000_000, clients=[changed]), before))
    assert row == {
        "client": "train", "pid": str(os.getpid()), "class": "best-effort", "launches": "1,000",
        "per s": "500", "held": "250 (25%)", "time held": "1.5 s", "fences": "-", "busy": "-",
        "free": "25%", "beside": "20 (2%)",
        "coverage": "90.0%", "in flight": "3 (120 us)", "waits for": "work in flight",
        "last request": "3 ms (1.50x)", "alone": "2 ms",
    }  # fmt: skip
    first = cells(clients_table(before, None))
    assert (first["per s"], first["free"], first["held"], first["last request"]) == ("-", "-", "0", "-")


def test_who_stops_at_fences_is_free_where_no_request_runs() -> None:
    from msgspec.structs import replace

    board = Board(Path("board"))
    for kind, name in (("latency", "serve"), ("best-effort", "train")):
        board.join(kind, name)
    before = board.view()
    serve, train = before.clients
    served = replace(serve, counts=replace(serve.counts, busy_ns=500_000_000))
    stopped = replace(train, counts=replace(train.counts, fences=40, held_ns=200_000_000))
    after = replace(before, now=before.now + 2_000_000_000, clients=[served, stopped])
    table = clients_table(after, before)
    columns = {column.header: list(column.cells) for column in table.columns}
    assert columns["fences"] == ["-", "40"]
    assert columns["busy"] == ["25%", "-"]
    assert columns["free"] == ["-", "65%"]


def test_the_policy_is_shown_and_changed(call: Call) -> None:
    board = Board(Path("board"))
    assert call("policy", "orion", "--set", "duration_fraction=0.05")[0] == 0
    assert board.view().policy == "orion"
    out = call("policy")[1]
    assert "orion: best-effort kernels beside" in out
    assert "duration_fraction  0.05 " in out
    assert "did you mean 'orion'" in call("policy", "orian")[2]
    assert "a duration with its unit" in call("policy", "--set", "window=1")[2]
    assert board.view().policy == "orion"


def test_policies_are_listed_with_those_of_the_other_levels(call: Call) -> None:
    assert "reef-n" in call("policies")[1]
    own = json.loads(call("policies", "orion", "--json")[1])["settings"].keys()
    assert own == {"duration_fraction", "sm_threshold"}
    assert "did you mean 'orion'" in call("policies", "orien")[2]
    every = subprocess.run([sys.executable, "-m", "astrarium", "policies"], capture_output=True, text=True)
    assert "kernel-temporal" in every.stdout
    assert "deferred" in every.stdout


def test_the_table_of_a_profile_begins_with_what_takes_longest() -> None:
    from astrarium.gate.kernel_profiles import KernelProfile

    kernels = [
        KernelProfile("short", 1_000, 4, "memory", count=10),
        KernelProfile("n" * 100, 50_000, 132, "compute", p95=60_000, count=3),
        KernelProfile("unmeasured", 0, 1, "unknown"),
    ]
    by_kernel, by_kind = tables(kernels, 1)
    rows = list(zip(*(column.cells for column in by_kernel.columns), strict=True))
    assert [row[0] for row in rows] == ["n" * 57 + "...", "2 others"]
    assert rows[0][4:] == ("132", "3", "50.0", "60.0", "0.15", "93.8%")
    assert rows[1][5:] == ("11", "", "", "0.01", "6.2%")
    kinds = list(zip(*(column.cells for column in by_kind.columns), strict=True))
    assert [(row[0], row[-1]) for row in kinds] == [
        ("compute", "93.8%"),
        ("memory", "6.2%"),
        ("unknown", "0.0%"),
    ]
