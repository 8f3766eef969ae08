"""Kernel traces: the file that is read, what is wrong with one that is not, and the generated workloads."""

from __future__ import annotations

import numpy as np
import pytest

from astrarium.core.errors import InputError
from astrarium.gate.kernel_profiles import KernelUse
from astrarium_papers import kernels
from astrarium_papers.kernels import v100_like
from astrarium_papers.kernels.trace import KernelTrace, modelled_use, parse_kernels

TEXT = """\
astrarium-kernels 1
# two kernels
device\tNVIDIA H200\t132
kernel\t0\tgemm<128, 64>\t64,2,1\t256,1,1\t49152\t20000\t21000\t30\t128\tcompute
kernel\t1\tvoid add(float*)\t500,1,1\t128,1,1\t0\t5000\t5500\t60\t125\tmemory
launches\t0 1 1 0
phase\t2\tbackward
phase\t3\tupdate
"""


def with_line(number: int, line: str) -> list[str]:
    lines = TEXT.splitlines()
    lines[number - 1] = line
    return lines


def test_a_trace_is_read_as_it_was_written() -> None:
    trace = parse_kernels(TEXT.splitlines())
    assert (trace.device, trace.sms, trace.launches) == ("NVIDIA H200", 132, (0, 1, 1, 0))
    gemm = trace.kernels[0]
    assert (gemm.name, gemm.grid, gemm.block, gemm.shared_bytes) == (
        "gemm<128, 64>",
        (64, 2, 1),
        (256, 1, 1),
        49152,
    )
    assert (gemm.duration, gemm.p95, gemm.count, gemm.sms, gemm.kind) == (20000, 21000, 30, 128, "compute")
    assert trace.phases == ("forward", "forward", "backward", "update")
    assert trace.duration == 50000


def test_numbers_of_kernels_may_have_gaps() -> None:
    lines = [
        line.replace("kernel\t1", "kernel\t7").replace("0 1 1 0", "0 7 7 0") for line in TEXT.splitlines()
    ]
    assert parse_kernels(lines) == parse_kernels(TEXT.splitlines())


def test_phases_without_names_alternate() -> None:
    trace = parse_kernels([*TEXT.splitlines()[:6], "phase\t1", "phase\t3", "phase\t4"])
    assert trace.phases == ("forward", "backward", "backward", "forward")


@pytest.mark.parametrize(
    ("number", "line", "words"),
    [
        (1, "kernels", "line 1: expected astrarium-kernels 1 (got 'kernels')"),
        (3, "device\tH200", "line 3: expected 2 cells split by tabs: name, sms (got 'H200')"),
        (3, "device\tH200\tmany", "line 3: device sms: expected a whole number of at least 1 (got 'many')"),
        (4, "kernal\t0", "line 4: expected one of device, kernel, launches, phase; did you mean 'kernel'?"),
        (5, TEXT.splitlines()[3], "line 5: index: expected a number that no kernel above has (got '0')"),
        (
            4,
            TEXT.splitlines()[3].replace("compute", "math"),
            "line 4: kind: expected one of unknown, compute",
        ),
        (4, TEXT.splitlines()[3].replace("64,2,1", "64,2"), "line 4: grid: expected three whole numbers"),
        (
            4,
            TEXT.splitlines()[3].replace("20000", "-2"),
            "line 4: duration_ns: expected a whole number of at",
        ),
        (
            6,
            "launches\t0 2",
            "line 6: launches: expected numbers of kernels above, at least one (got 2)",
        ),
        (6, "launches\t", "line 6: launches: expected numbers of kernels above"),
        (
            7,
            "phase\t9\tbackward",
            "line 7: position: expected a place in the launches above, 0 to 4 (got '9')",
        ),
        (7, "phase\t2\tsideward", "line 7: phase: expected one of forward, backward, update"),
        (8, "phase\t1\tupdate", "line 8: position: expected a place in the launches above, 2 to 4 (got '1')"),
    ],
)
def test_an_error_names_line_field_value_and_what_would_be_right(number: int, line: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_kernels(with_line(number, line))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "astrarium-kernels 1 before"),
        (TEXT.splitlines()[:5], "launches"),
        (TEXT.splitlines()[:1], "device"),
    ],
)
def test_a_profile_that_ends_too_soon_says_what_is_missing(lines: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_kernels(lines)


def test_use_is_modelled_from_the_kind_and_the_sms() -> None:
    assert modelled_use("compute", 1.0) == KernelUse(0.89, 0.20)
    assert modelled_use("memory", 0.4) == modelled_use("memory", 1.0) == KernelUse(0.14, 0.80)
    assert modelled_use("compute", 0.5).compute == pytest.approx(0.445)
    assert modelled_use("memory", 0.2).memory == pytest.approx(0.40)
    assert modelled_use("copy", 1.0) == KernelUse(0.0, 0.0)
    trace = parse_kernels(TEXT.splitlines())
    assert trace.use(0) == modelled_use("compute", 128 / 132)


def means(trace: KernelTrace) -> list[float]:
    """SMs, arithmetic and bandwidth, in per cent of the time."""
    took = np.array([kernel.duration for kernel in trace.kernels], float)
    uses = [trace.use(place) for place in range(len(trace.kernels))]
    columns = [
        [kernel.sms / trace.sms for kernel in trace.kernels],
        [use.compute for use in uses],
        [use.memory for use in uses],
    ]
    return [100 * float(took @ np.array(column)) / float(took.sum()) for column in columns]


@pytest.mark.parametrize("printed", v100_like.WORKLOADS, ids=lambda printed: str(printed.name))
def test_generated_workloads_have_the_averages_that_the_paper_prints(printed: v100_like.Printed) -> None:
    trace = kernels.kernel_set("v100-like")[printed.name]
    assert len(trace.launches) == printed.kernels
    assert trace.duration == pytest.approx(printed.duration, rel=1e-4)
    assert means(trace) == pytest.approx([printed.sms, printed.compute, printed.memory], abs=0.5)
    assert max(kernel.sms for kernel in trace.kernels) <= v100_like.SMS
    assert set(trace.phases) == ({"forward", "backward", "update"} if printed.training else {"forward"})


def test_the_seed_and_nothing_else_decides() -> None:
    printed = v100_like.WORKLOADS[0]
    assert v100_like.generate(printed) == v100_like.generate(printed)
    assert v100_like.generate(printed) != v100_like.generate(printed, seed=2)


def test_a_workload_is_found_by_model_and_purpose() -> None:
    assert len(kernels.find("v100-like", "bert", "inference").launches) == 572
    assert kernels._fits("mobilenet_v2-training-b64", "mobilenetv2", "training")
    assert not kernels._fits("resnet101-training-b64", "resnet50", "training")
    with pytest.raises(InputError, match="resnet18-inference: expected one workload of the set v100-like"):
        kernels.find("v100-like", "resnet18", "inference")
    with pytest.raises(InputError, match="a set of kernels: one of v100-like"):
        kernels.kernel_set("v100")


def test_recordings_in_the_package_can_be_read() -> None:
    for name in kernels.recordings():
        trace = kernels.kernel_set("recorded")[name]
        assert trace.launches
        assert trace.duration > 0
