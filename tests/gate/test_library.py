"""The preloaded library takes the place of the driver: every way to its functions, and every launch."""

from __future__ import annotations

import pytest

from tests.support.gate.build import Built
from tests.support.gate.remote import Gate, Program

pytest_plugins = ("tests.support.gate.fixtures",)

OURS = "libastrarium_gate.so"
THEIRS = "libcuda.so.1"
KERNELS = 0
GRAPHS = 1
TWINS = 2  # the flag that asks for functions that use the thread's own stream

# What is asked for, its version, and what it is then called; the first group has twins.
WITH_TWINS = [
    ("cuLaunchKernel", 4000, "cuLaunchKernel"),
    ("cuLaunchKernelEx", 11060, "cuLaunchKernelEx"),
    ("cuLaunchCooperativeKernel", 9000, "cuLaunchCooperativeKernel"),
    ("cuGraphLaunch", 10000, "cuGraphLaunch"),
    ("cuStreamSynchronize", 2000, "cuStreamSynchronize"),
    ("cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2"),
    ("cuStreamEndCapture", 10000, "cuStreamEndCapture"),
    ("cuMemcpyHtoDAsync", 3020, "cuMemcpyHtoDAsync_v2"),
    ("cuMemcpyDtoHAsync", 3020, "cuMemcpyDtoHAsync_v2"),
]
WITHOUT = [
    ("cuEventSynchronize", 2000, "cuEventSynchronize"),
    ("cuCtxSynchronize", 2000, "cuCtxSynchronize"),
    ("cuMemcpyDtoH", 3020, "cuMemcpyDtoH_v2"),
    ("cuLibraryGetKernel", 12000, "cuLibraryGetKernel"),
    ("cuGetProcAddress", 11030, "cuGetProcAddress"),
    ("cuGetProcAddress", 13000, "cuGetProcAddress_v2"),
]
ENTRIES = ["cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel"]
ENTRIES += [f"{entry}_ptsz" for entry in ENTRIES]


@pytest.fixture
def program(gate: Gate) -> Program:
    gate.open("streams")
    return gate.program("latency")


@pytest.mark.parametrize("arguments", [4, 5])
def test_whoever_asks_for_a_function_by_name_and_version_gets_the_gates(
    program: Program, arguments: int
) -> None:
    for symbol, version, name in WITH_TWINS + WITHOUT:
        code, address, _ = program.proc(symbol, version, arguments=arguments)
        assert (code, program.home(address)) == (0, [OURS, name])


@pytest.mark.parametrize("arguments", [4, 5])
def test_and_the_twin_where_the_threads_own_stream_is_meant(program: Program, arguments: int) -> None:
    for symbol, version, name in WITH_TWINS:
        code, address, _ = program.proc(symbol, max(version, 7000), TWINS, arguments=arguments)
        assert (code, program.home(address)) == (0, [OURS, f"{name}_ptsz"])


def test_a_library_that_looks_functions_up_by_itself_gets_the_gates_too(program: Program) -> None:
    for _, _, name in WITH_TWINS:
        assert program.home(program.symbol(name)) == [OURS, name]
        assert program.home(program.symbol(f"{name}_ptsz")) == [OURS, f"{name}_ptsz"]


def test_each_form_of_asking_is_reached_through_the_other(program: Program) -> None:
    """As the runtime does: it asks one form for the other, and then that one for everything else."""
    _, four, _ = program.proc("cuGetProcAddress", 11030, arguments=5)
    _, five, _ = program.proc("cuGetProcAddress", 12000, arguments=4, at=four)
    assert program.home(four) == [OURS, "cuGetProcAddress"]
    assert program.home(five) == [OURS, "cuGetProcAddress_v2"]
    code, launch, status = program.proc("cuLaunchKernel", 4000, at=five)
    assert (code, status, program.home(launch)) == (0, 0, [OURS, "cuLaunchKernel"])
    assert program.launch(program.kernel("k"), at=launch) == 0
    assert program.launched() == ["k"]


def test_what_the_gate_does_not_know_is_the_drivers(program: Program) -> None:
    assert program.home(program.symbol("cuDeviceGetName")) == [THEIRS, "cuDeviceGetName"]
    assert program.home(program.proc("cuEventElapsedTime", 12000)[1]) == [THEIRS, "cuEventElapsedTime"]
    assert program.home(program.proc("cuEventElapsedTime", 13000)[1]) == [THEIRS, "cuEventElapsedTime_v2"]


def test_what_nobody_knows_is_refused_as_the_driver_refuses_it(program: Program) -> None:
    assert program.proc("cuNonsense", 13000) == [500, 0, 1]
    assert program.proc("cuLaunchKernelEx", 11050) == [500, 0, 2]
    assert program.proc("cuNonsense", 13000, arguments=4) == [500, 0, -1]
    with pytest.raises(RuntimeError, match="AttributeError"):
        program.symbol("cuNonsense")


def test_a_program_can_open_the_gate_itself_before_anybody_opens_the_driver(gate_built: Built) -> None:
    program = Program(str(gate_built.gate))
    program.reopen("libcuda.so.1")
    assert program.home(program.symbol("cuLaunchKernel")) == [OURS, "cuLaunchKernel"]
    program.kill()


@pytest.mark.parametrize("kind", ["latency", "best-effort"])
def test_every_launch_is_seen_and_reaches_the_driver_unchanged(gate: Gate, kind: str) -> None:
    gate.open("kernel-temporal")
    program = gate.program(kind)
    stream = program.stream()
    kernel = program.kernel("k")
    for entry in ENTRIES:
        shape = {"grid": (3, 5, 7), "block": (64, 2, 1), "shared": 48, "stream": stream, "entry": entry}
        assert program.launch(kernel, **shape) == 0
        seen = [program.stub("last", entry.removesuffix("_ptsz"), number) for number in range(9)]
        assert seen == [kernel, 3, 5, 7, 64, 2, 1, 48, stream]
    assert gate.counts(kind)["kernels"] == program.stub("did", KERNELS) == len(ENTRIES)


def test_graphs_and_kernels_of_libraries_are_seen_as_well(gate: Gate) -> None:
    gate.open("kernel-temporal")
    program = gate.program("best-effort")
    stream = program.stream()
    kernel = program.library_kernel("of_library")
    program.launch(kernel, stream=stream)
    graph = program.graph_of([kernel, kernel], stream)
    for entry in ("cuGraphLaunch", "cuGraphLaunch_ptsz"):
        assert program.launch(graph, stream=stream, entry=entry) == 0
    counts = gate.counts("best-effort")
    assert (counts["graphs"], counts["kernels"], counts["captured"]) == (2, 1, 2)
    assert (program.stub("did", GRAPHS), program.stub("did", KERNELS)) == (2, 2 * 2 + 1)


@pytest.mark.parametrize("entry", ["cuLaunchKernel_ptsz", "cuLaunchKernelEx_ptsz"])
def test_the_twins_keep_their_meaning_of_no_stream(gate: Gate, entry: str) -> None:
    gate.open("streams")
    program = gate.program("best-effort")
    program.stub("automatic", 0)
    kernel = program.kernel("k")
    program.launch(kernel, entry=entry)
    program.launch(kernel, entry=entry.removesuffix("_ptsz"))
    assert (program.stub("queued", 2, KERNELS), program.stub("queued", 0, KERNELS)) == (1, 1)


def test_an_error_of_the_driver_is_the_programs(gate: Gate) -> None:
    gate.open("astrarium")
    program = gate.program("best-effort")
    kernel = program.kernel("k")
    assert program.launch(kernel, grid=(0, 1, 1)) == 1
    assert program.launch(program.buffer("no kernel", 512)) == 400
    assert program.launch(kernel) == 0


@pytest.mark.parametrize("kind", [None, "latency"])
def test_a_program_without_a_class_or_a_board_passes_untouched(gate: Gate, kind: str | None) -> None:
    gate.open("astrarium")
    program = gate.program(kind, board=kind is None)
    stream = program.stream()
    kernel = program.kernel("k")
    program.launch(kernel, stream=stream, count=10)
    program.launch(program.graph_of([kernel], stream), stream=stream, entry="cuGraphLaunch")
    program.check("cuStreamSynchronize", stream)
    added = ("cuEventCreate", "cuEventRecord", "cuStreamWriteValue32_v2")
    assert [program.stub("calls", call) for call in added] == [0, 0, 0]
    assert program.stub("did", KERNELS) == 11
    assert gate.clients() == {}
