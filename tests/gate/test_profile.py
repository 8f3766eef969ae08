"""Kernel profiles: what a program's kernels need, written by one run and read by another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.gate.remote import PATIENCE, Gate, Program

pytest_plugins = ("tests.support.gate.fixtures",)

AROUND_NOTHING = 1500  # ns that a pair of events shows on a real GPU


@dataclass(frozen=True)
class Row:
    grid: str
    block: str
    shared: int
    duration: int
    p95: int
    count: int
    sms: int
    kind: str


def read_row(grid: str, block: str, *others: str) -> Row:
    *numbers, kind = others
    shared, duration, p95, count, sms = map(int, numbers)
    return Row(grid, block, shared, duration, p95, count, sms, kind)


def rows(path: Path) -> dict[str, Row]:
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    assert lines[0] == ["astrarium-kernels 1"]
    assert lines[1] == ["device", "Stub GPU", "132"]
    kernels = [line[2:] for line in lines if line[0] == "kernel"]
    return {name: read_row(*fields) for name, *fields in kernels}


@pytest.fixture
def recorder(gate: Gate) -> Program:
    program = gate.program(None, RECORD=str(gate.folder / "out"), board=False)
    program.stub("record_cost", AROUND_NOTHING)
    return program


def recorded(gate: Gate, program: Program) -> dict[str, Row]:
    assert program.leave() == ""
    return rows(gate.folder / "out")


@pytest.mark.parametrize("duration", [1_000, 5_000, 123_456, 3_000_000])
def test_recorded_durations_are_those_of_the_gpu(gate: Gate, recorder: Program, duration: int) -> None:
    kernel = recorder.kernel("gemm", duration=duration)
    recorder.launch(kernel, count=20)
    recorder.check("cuCtxSynchronize")
    row = recorded(gate, recorder)["gemm"]
    assert row.duration == pytest.approx(duration, abs=1)  # events tell milliseconds as floats
    assert (row.p95, row.count) == (row.duration, 20)


def test_also_of_a_kernel_that_is_launched_once(gate: Gate, recorder: Program) -> None:
    recorder.launch(recorder.kernel("once", duration=7_000))
    recorder.check("cuCtxSynchronize")
    assert recorded(gate, recorder)["once"].duration == pytest.approx(7_000, abs=1)


@pytest.mark.parametrize(
    ("registers", "block", "grid", "sms"),
    [
        (32, 128, 1, 1),
        (32, 128, 160, 10),  # 16 blocks of 128 threads fit into an SM
        (32, 128, 161, 11),
        (128, 256, 100, 50),  # registers for 2
        (32, 1024, 10_000, 132),  # more than there are
    ],
)
def test_a_kernel_needs_the_sms_that_its_blocks_fill(
    gate: Gate, recorder: Program, registers: int, block: int, grid: int, sms: int
) -> None:
    recorder.launch(recorder.kernel("k", registers=registers), grid=(grid, 1, 1), block=(block, 1, 1))
    recorder.check("cuCtxSynchronize")
    row = recorded(gate, recorder)["k"]
    assert (row.sms, row.grid, row.block) == (sms, f"{grid},1,1", f"{block},1,1")


def test_kernels_of_libraries_have_names_and_needs_as_well(gate: Gate, recorder: Program) -> None:
    recorder.launch(recorder.library_kernel("of_library"), grid=(64, 1, 1))
    recorder.check("cuCtxSynchronize")
    assert recorded(gate, recorder)["of_library"].sms == 2  # 32 blocks of a warp on each


def test_shapes_are_told_apart_and_kinds_are_known_by_name(gate: Gate, recorder: Program) -> None:
    gemm = recorder.kernel("sm90_gemm_bf16")
    norm = recorder.kernel("batch_norm_backward")
    for grid in (1, 2):
        recorder.launch(gemm, grid=(grid, 1, 1), shared=16)
        recorder.launch(norm, grid=(grid, 1, 1))
    recorder.check("cuCtxSynchronize")
    recorder.leave()
    text = (gate.folder / "out").read_text()
    assert text.count("sm90_gemm_bf16") == text.count("batch_norm_backward") == 2
    kernels = rows(gate.folder / "out")
    assert [kernels[name].kind for name in ("sm90_gemm_bf16", "batch_norm_backward")] == ["compute", "memory"]
    assert kernels["sm90_gemm_bf16"].shared == 16


def test_the_iteration_that_a_program_repeats_is_found(gate: Gate, recorder: Program) -> None:
    kernels = [recorder.kernel(name) for name in ("forward", "backward", "step")]
    for _ in range(6):
        for kernel in kernels:
            recorder.launch(kernel)
        recorder.check("cuCtxSynchronize")
    recorder.leave()
    lines = [line.split("\t") for line in (gate.folder / "out").read_text().splitlines()]
    numbers = {line[2]: line[1] for line in lines if line[0] == "kernel"}
    (launches,) = [line[1] for line in lines if line[0] == "launches"]
    assert launches.split() == [numbers[name] for name in ("forward", "backward", "step")]


def test_what_one_run_recorded_another_knows_from_the_start(gate: Gate, recorder: Program) -> None:
    recorder.launch(recorder.kernel("k", duration=20_000), count=3)
    recorder.check("cuCtxSynchronize")
    recorder.leave()
    gate.open("orion", latency=1_000_000, duration_fraction=0.03)
    best = gate.program("best-effort", PROFILE=str(gate.folder / "out"))
    best.stub("automatic", 0)
    kernel = best.kernel("k", duration=20_000)
    best.launch(kernel, count=2)
    held = best.later("launch", kernel)
    assert gate.await_held("best-effort") == "drain"
    client = gate.clients()["best-effort"]
    assert client["in_flight_ns"] == pytest.approx(40_000, abs=2)
    assert client["counts"]["unknown"] == 0
    best.on("watch", "stub", "complete", 0, -1)
    assert held.result(PATIENCE) == 0


@pytest.mark.parametrize("content", ["", "something else\n", None])
def test_a_file_that_is_no_profile_is_named_and_done_without(gate: Gate, content: str | None) -> None:
    path = gate.folder / "no-profile"
    if content is not None:
        path.write_text(content)
    gate.open("streams")
    program = gate.program("best-effort", PROFILE=str(path))
    assert program.launch(program.kernel("k")) == 0
    assert f"{path} is no kernel profile" in program.leave()


def test_lines_of_a_profile_that_are_no_kernels_are_skipped(gate: Gate) -> None:
    path = Path(gate.profile(k=20_000))
    path.write_text(path.read_text() + "kernel\tbroken\nkernel\t1\tx\t1\n\nlaunches\t0 0\nphase\t1\n")
    gate.open("reef-n")
    program = gate.program("best-effort", PROFILE=str(path))
    assert program.launch(program.kernel("k")) == 0
    assert gate.clients()["best-effort"]["work"] == {"duration": 20_000, "sms": 1, "kind": "compute"}
