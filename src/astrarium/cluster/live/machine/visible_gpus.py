"""Which GPUs a machine has to give: those of CUDA_VISIBLE_DEVICES, or all that its driver knows."""

from __future__ import annotations

import os

from astrarium.core.errors import InputError


def visible_gpus() -> tuple[int, int]:
    """Return how many GPUs there are, and the number of the first, as CUDA counts them here."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return _all_gpus(), 0
    numbers = [number.strip() for number in named.split(",") if number.strip()]
    first = int(numbers[0]) if numbers and numbers[0].isdecimal() else 0
    if numbers != [str(first + place) for place in range(len(numbers))]:
        expected = "numbers that follow each other, such as 2,3: the GPUs that this machine gives"
        raise InputError("CUDA_VISIBLE_DEVICES", named, expected)
    return len(numbers), first


def _all_gpus() -> int:
    """Return the number of GPUs that the driver has; 0 where there is none."""
    import ctypes

    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0
    count = ctypes.c_uint(0)
    answered = nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    return count.value if answered else 0
