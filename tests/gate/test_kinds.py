"""What the gate guesses of kernels, and how the guess is held against a profiler's counters."""

from __future__ import annotations

import sys

import pytest

from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks" / "gpu"))

from kinds import COMPUTE, MEMORY, TIME, Counted, compared, parsed

from astrarium._gate import kind_of

TABLE = f'''what the program prints
"ID","Kernel Name","{COMPUTE}","{MEMORY}","{TIME}"
"","","%","%","ns"
"0","ampere_sgemm_128x64_tn","81.5","30.1","12,000"
"1","void at::native::vectorized_elementwise_kernel","12.0","88.0","4,000"
"2","void at::native::vectorized_elementwise_kernel","12.0","20.0","1,000"
'''


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nchw", "compute"),
        ("nvjet_tst_128x64_64x6_2x1_v_bz_bias_TNN", "compute"),
        ("void cudnn::batchnorm_bwtr_nhwc_semiPersist", "memory"),
        ("cudnn::ops::nchwToNhwcKernel", "memory"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel", "memory"),
        ("triton_poi_fused_gelu_0", "memory"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "unknown"),
        ("something_else", "unknown"),
    ],
)
def test_kinds_are_guessed_from_names(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_counters_are_read_and_held_against_the_guess() -> None:
    kernels = list(parsed(TABLE))
    assert kernels[0] == Counted("ampere_sgemm_128x64_tn", 81.5, 30.1, 12000.0)
    assert [kernel.kind for kernel in kernels] == ["compute", "memory", "unknown"]
    assert compared("some", kernels) == ("some", "3", "2", "0", "1", "100%")
    wrong = [*kernels, Counted("ampere_sgemm_32x32_nn", 10.0, 90.0, 16000.0)]
    assert compared("some", wrong) == ("some", "4", "2", "1", "1", "50%")
