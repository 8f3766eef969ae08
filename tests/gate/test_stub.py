"""The stub driver keeps what the tests of the gate rely on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.gate.build import Built
from tests.support.gate.remote import Program

pytest_plugins = ("tests.support.gate.fixtures",)

KERNELS = 0
GRAPHS = 1
COPIES = 2
WRITES = 3
NOT_INITIALIZED = 3
NO_CONTEXT = 201
INVALID_HANDLE = 400
NOT_FOUND = 500
NOT_READY = 600
CAPTURE_UNSUPPORTED = 900
CAPTURE_INVALIDATED = 901
CAPTURE_IMPLICIT = 906
RELAXED = 2


@pytest.fixture
def gpu(gate_built: Built) -> Iterator[Program]:
    program = Program(str(gate_built.stub))
    yield program
    program.kill()


def test_functions_are_found_by_name_version_and_default_stream(gpu: Program) -> None:
    def found(symbol: str, version: int, flags: int = 0) -> str:
        code, address, status = gpu.proc(symbol, version, flags)
        assert (code, status) == (0, 0)
        return str(gpu.home(address)[1])

    assert found("cuEventElapsedTime", 12000) == "cuEventElapsedTime"
    assert found("cuEventElapsedTime", 12080) == "cuEventElapsedTime_v2"
    assert found("cuGetProcAddress", 11030) == "cuGetProcAddress"
    assert found("cuGetProcAddress", 12000) == "cuGetProcAddress_v2"
    assert found("cuLaunchKernel", 7000, flags=2) == "cuLaunchKernel_ptsz"
    assert found("cuMemcpyDtoH", 7000, flags=2) == "cuMemcpyDtoH_v2_ptds"
    assert found("cuInit", 12000, flags=2) == "cuInit"  # it has no twin


def test_what_is_not_there_is_said_to_be_missing_or_too_new(gpu: Program) -> None:
    assert gpu.proc("cuNonsense", 13000) == [NOT_FOUND, 0, 1]
    assert gpu.proc("cuLaunchKernelEx", 11050) == [NOT_FOUND, 0, 2]
    assert gpu.proc("cuNonsense", 13000, arguments=4) == [NOT_FOUND, 0, -1]


def test_nothing_works_before_the_driver_is_initialized_and_the_thread_has_a_context(
    gate_built: Built,
) -> None:
    gpu = Program(str(gate_built.stub), start=False)
    kernel = gpu.kernel("k")
    assert gpu.launch(kernel) == NOT_INITIALIZED
    gpu.check("cuInit", 0)
    assert gpu.launch(kernel) == NO_CONTEXT
    gpu.enter()
    assert gpu.launch(kernel) == 0
    gpu.kill()


def test_automatic_work_is_done_at_once_and_takes_its_time_on_the_virtual_clock(gpu: Program) -> None:
    kernel = gpu.kernel("k", duration=5000)
    start = gpu.event()
    end = gpu.event()
    gpu.check("cuEventRecord", start, 0)
    gpu.launch(kernel, count=3)
    gpu.check("cuEventRecord", end, 0)
    assert gpu.stub("kernel_runs", kernel) == 3
    assert gpu.elapsed(start, end) == gpu.elapsed(start, end, "cuEventElapsedTime_v2") == 15000


def test_a_record_can_take_time_too(gpu: Program) -> None:
    gpu.stub("record_cost", 1500)
    start = gpu.event()
    end = gpu.event()
    gpu.check("cuEventRecord", start, 0)
    gpu.check("cuEventRecord", end, 0)
    assert gpu.elapsed(start, end) == 1500


def test_manual_work_is_done_in_order_when_the_test_says_so(gpu: Program) -> None:
    gpu.stub("automatic", 0)
    kernel = gpu.kernel("k", duration=10)
    stream = gpu.stream()
    event = gpu.event()
    word = gpu.buffer("")
    gpu.check("cuMemHostRegister_v2", word, 4, 0)
    gpu.launch(kernel, stream=stream)
    gpu.check("cuStreamWriteValue32_v2", stream, word, 7, 0)
    gpu.launch(kernel, stream=stream)
    gpu.check("cuEventRecord", event, stream)
    assert (gpu.word(word), gpu.call("cuEventQuery", event)) == (0, NOT_READY)
    assert gpu.stub("complete", stream, 1) == 1
    assert (gpu.word(word), gpu.call("cuStreamQuery", stream)) == (7, NOT_READY)
    assert gpu.stub("complete", stream, -1) == 1
    assert (gpu.call("cuEventQuery", event), gpu.call("cuStreamQuery", stream)) == (0, 0)


@pytest.mark.parametrize("how", ["cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"])
def test_to_synchronize_is_to_do_the_work(gpu: Program, how: str) -> None:
    gpu.stub("automatic", 0)
    kernel = gpu.kernel("k")
    stream = gpu.stream()
    event = gpu.event()
    gpu.launch(kernel, stream=stream)
    gpu.check("cuEventRecord", event, stream)
    arguments = {"cuStreamSynchronize": [stream], "cuEventSynchronize": [event], "cuCtxSynchronize": []}
    gpu.check(how, *arguments[how])
    assert gpu.stub("kernel_runs", kernel) == 1


def test_streams_run_beside_each_other_as_time_passes(gpu: Program) -> None:
    gpu.stub("automatic", 0)
    short = gpu.kernel("short", duration=100)
    long = gpu.kernel("long", duration=250)
    gpu.launch(short, stream=gpu.stream(), count=3)
    gpu.launch(long, stream=gpu.stream(), count=3)
    gpu.stub("advance", 260)
    assert (gpu.stub("kernel_runs", short), gpu.stub("kernel_runs", long)) == (2, 1)
    assert gpu.stub("time") == 260


def test_a_stream_waits_for_an_event_of_another(gpu: Program) -> None:
    gpu.stub("automatic", 0)
    first = gpu.stream()
    second = gpu.stream()
    event = gpu.event()
    kernel = gpu.kernel("first", duration=500)
    after = gpu.kernel("after", duration=1)
    gpu.launch(kernel, stream=first)
    gpu.check("cuEventRecord", event, first)
    gpu.check("cuStreamWaitEvent", second, event, 0)
    gpu.launch(after, stream=second)
    assert gpu.stub("complete", second, 1) == 0
    gpu.check("cuStreamSynchronize", second)
    assert (gpu.stub("kernel_runs", kernel), gpu.stub("time")) == (1, 501)


def test_the_threads_own_stream_is_not_the_legacy_one(gpu: Program) -> None:
    gpu.stub("automatic", 0)
    kernel = gpu.kernel("k")
    gpu.launch(kernel, entry="cuLaunchKernel_ptsz")
    gpu.launch(kernel, entry="cuLaunchKernelEx_ptsz")
    assert (gpu.stub("queued", 0, KERNELS), gpu.stub("queued", 2, KERNELS)) == (0, 2)
    assert gpu.on("another", "stub", "queued", 2, KERNELS) == 0
    gpu.check("cuStreamSynchronize_ptsz", 0)
    assert gpu.stub("kernel_runs", kernel) == 2


def test_functions_and_kernels_of_libraries_are_different_handles_and_launch_alike(gpu: Program) -> None:
    function = gpu.kernel("f")
    kernel = gpu.library_kernel("k")
    assert gpu.made("cuFuncGetName", function)
    assert gpu.made("cuKernelGetName", kernel)
    assert gpu.call("cuFuncGetName", gpu.buffer(" " * 8), kernel) == INVALID_HANDLE
    assert gpu.call("cuKernelGetName", gpu.buffer(" " * 8), function) == INVALID_HANDLE
    assert (gpu.launch(function), gpu.launch(kernel)) == (0, 0)
    assert gpu.launched() == ["f", "k"]


@pytest.mark.parametrize(
    ("registers", "shared", "block", "blocks"),
    [(32, 0, 128, 16), (128, 0, 256, 2), (32, 0, 32, 32), (32, 100_000, 128, 2)],
)
def test_occupancy_is_bound_by_threads_registers_shared_memory_and_blocks(
    gpu: Program, registers: int, shared: int, block: int, blocks: int
) -> None:
    kernel = gpu.kernel("k", registers=registers)
    assert gpu.made("cuOccupancyMaxActiveBlocksPerMultiprocessor", kernel, block, shared) == blocks


def test_the_log_knows_every_call_and_its_latest_arguments(gpu: Program) -> None:
    kernel = gpu.kernel("k")
    stream = gpu.stream()
    gpu.launch(kernel, grid=(7, 2, 1), block=(64, 1, 1), shared=48, stream=stream, count=2)
    seen = [gpu.stub("last", "cuLaunchKernel", number) for number in range(9)]
    assert seen == [kernel, 7, 2, 1, 64, 1, 1, 48, stream]
    assert (gpu.stub("calls", "cuLaunchKernel"), gpu.stub("calls", "cuLaunchKernel_ptsz")) == (2, 0)
    assert gpu.launch(kernel, grid=(0, 1, 1)) == 1


def test_what_is_captured_runs_when_the_graph_is_launched(gpu: Program) -> None:
    one = gpu.kernel("one", duration=30)
    other = gpu.kernel("other", duration=40)
    stream = gpu.stream()
    graph = gpu.graph_of([one, other, one], stream)
    assert (gpu.stub("nodes", graph, KERNELS), gpu.stub("did", KERNELS)) == (3, 0)
    gpu.launch(graph, stream=stream, entry="cuGraphLaunch", count=2)
    assert (gpu.stub("did", KERNELS), gpu.stub("did", GRAPHS), gpu.stub("time")) == (6, 2, 200)


def test_a_stream_that_waits_for_one_that_captures_captures_too(gpu: Program) -> None:
    origin = gpu.stream()
    other = gpu.stream()
    event = gpu.event()
    kernel = gpu.kernel("k")
    gpu.begin(origin)
    gpu.check("cuEventRecord", event, origin)
    gpu.check("cuStreamWaitEvent", other, event, 0)
    gpu.launch(kernel, stream=other)
    assert gpu.capture_status(other) == [0, 1]
    code, graph = gpu.end(origin)
    assert (code, gpu.stub("nodes", graph, KERNELS), gpu.capture_status(other)) == (0, 1, [0, 0])


def test_a_capture_is_broken_by_whoever_asks_or_allocates(gpu: Program) -> None:
    stream = gpu.stream()
    event = gpu.event()
    gpu.begin(stream)
    assert gpu.on("another", "call", "cuEventQuery", event) == CAPTURE_UNSUPPORTED
    assert gpu.end(stream) == [CAPTURE_INVALIDATED, 0]
    gpu.on("another", "exchange_mode", RELAXED)
    gpu.begin(stream)
    assert gpu.on("another", "call", "cuEventQuery", event) == 0
    assert gpu.end(stream)[0] == 0


def test_the_legacy_stream_cannot_be_asked_while_one_that_waits_for_it_captures(gpu: Program) -> None:
    blocking = gpu.stream(flags=0)
    gpu.begin(blocking)
    assert gpu.capture_status(0)[0] == CAPTURE_IMPLICIT


def test_copies_move_bytes_when_their_turn_comes(gpu: Program) -> None:
    gpu.stub("automatic", 0)
    stream = gpu.stream()
    device = gpu.made("cuMemAlloc_v2", 6)
    source = gpu.buffer("abcde")
    target = gpu.buffer("-----")
    gpu.check("cuMemcpyHtoDAsync_v2", device, source, 5, stream)
    gpu.check("cuMemcpyDtoHAsync_v2", target, device, 5, stream)
    assert gpu.peek(target, 5) == "-----"
    assert gpu.stub("complete", stream, 2) == 2
    assert gpu.peek(target, 5) == "abcde"
    gpu.check("cuMemcpyDtoH_v2", target, device + 1, 4)
    assert gpu.peek(target, 5) == "bcdee"


def test_only_memory_that_the_device_knows_can_be_written_in_stream_order(gpu: Program) -> None:
    word = gpu.buffer("    ")
    assert gpu.call("cuStreamWriteValue32_v2", 0, word, 1, 0) == 1
    gpu.check("cuMemHostRegister_v2", word, 4, 3)
    assert gpu.made("cuMemHostGetDevicePointer_v2", word, 0) == word
    assert gpu.call("cuStreamWriteValue32_v2", 0, word, 1, 0) == 0
    assert (gpu.word(word), gpu.stub("did", WRITES)) == (1, 1)
    assert gpu.call("cuMemHostRegister_v2", word, 4, 3) == 712


def test_a_green_context_has_a_part_of_the_sms(gpu: Program) -> None:
    whole, part, listed = (gpu.buffer("", 144) for _ in range(3))
    gpu.check("cuDeviceGetDevResource", 0, whole, 1)
    assert gpu.word(whole + 96) == 132
    gpu.check("cuDevSmResourceSplitByCount", part, gpu.buffer("\1", 8), whole, 0, 0, 30)
    assert gpu.word(part + 96) == 32
    gpu.check("cuDevResourceGenerateDesc", listed, part, 1)
    context = gpu.made("cuGreenCtxCreate", gpu.word(listed) + (gpu.word(listed + 4) << 32), 0, 1)
    stream = gpu.made("cuGreenCtxStreamCreate", context, 1, 0)
    assert (gpu.stub("stream_sms", stream), gpu.stub("stream_sms", 0)) == (32, 132)


def test_work_behind_a_fence_waits_until_somebody_opens_it(gpu: Program) -> None:
    word = gpu.buffer("", 8)
    kernel = gpu.kernel("k")
    gpu.check("cuMemHostRegister_v2", word, 8, 0)
    gpu.check("cuStreamWaitValue32_v2", 0, word, 1, 2)
    gpu.launch(kernel)
    assert gpu.stub("kernel_runs", kernel) == 0
    waits = gpu.later("check", "cuStreamSynchronize", 0, thread="waits")
    gpu.check("cuStreamWriteValue32_v2", gpu.stream(), word, 1, 0)
    waits.result(30)
    assert gpu.stub("kernel_runs", kernel) == 1
