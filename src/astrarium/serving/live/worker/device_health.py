"""Whether this process can still use its GPUs.

A CUDA context does not recover from an assert, an illegal address, a failed launch or broken memory: every
later call of the driver returns that error, until the process has ended. What else goes wrong on a GPU, such
as too little memory, concerns one batch.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_DRIVER = "libcuda.so.1"


def lost(library: str = _DRIVER) -> str:
    """Return why a GPU is lost for this process, in the driver's words; empty where none is."""
    try:
        driver = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return ""  # nothing here uses a GPU
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)):
        return ""  # nobody has initialized it
    for device in range(count.value):
        if _is_used(driver, device) and (error := _error_of(driver, device)):
            return _explained(driver, error, device)
    return ""


def _is_used(driver: Any, device: int) -> bool:
    flags = ctypes.c_uint()
    active = ctypes.c_int()
    error = driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
    return not error and bool(active.value)


def _error_of(driver: Any, device: int) -> int:
    """Return what the driver says once all that the GPU was given has ended: 0 where all is well."""
    context = ctypes.c_void_p()
    if error := int(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)):
        return error
    try:
        return int(driver.cuCtxPushCurrent_v2(context)) or _synchronized(driver)
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)


def _synchronized(driver: Any) -> int:
    error = int(driver.cuCtxSynchronize())
    driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    return error


def _explained(driver: Any, error: int, device: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorString(error, ctypes.byref(text))
    words = text.value.decode() if text.value else f"error {error}"
    return f"lost GPU {device}: {words}"
