"""The line of a kernel in a profile: how it is read, and what is wrong with one that is not."""

from __future__ import annotations

import pytest

from astrarium.core.errors import InputError
from astrarium.gate.kernel_profiles import KernelProfile, read_kernel

LINE = "3\tgemm<128, 64>\t64,2,1\t256,1,1\t49152\t20000\t21000\t30\t128\tcompute"


def test_a_kernel_is_read_as_it_was_written() -> None:
    gemm = KernelProfile(
        "gemm<128, 64>", 20000, 128, "compute", (64, 2, 1), (256, 1, 1), 49152, p95=21000, count=30
    )
    assert read_kernel(LINE.split("\t")) == (3, gemm)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("compute", "math", "kind: expected one of unknown, compute, memory, copy (got 'math')"),
        ("64,2,1", "64,2", "grid: expected three whole numbers such as 32,1,1 (got '64,2')"),
        ("20000", "-2", "duration_ns: expected a whole number of at least 0 (got '-2')"),
        ("\tcompute", "", "expected 10 cells split by tabs: index, name, grid"),
    ],
)
def test_an_error_names_field_value_and_what_would_be_right(old: str, new: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_kernel(LINE.replace(old, new).split("\t"))
    assert words in str(caught.value)
