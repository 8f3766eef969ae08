"""NVML is read for the health of GPUs, where there is one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from astrarium.cluster.live.machine.health.judge import GpuReading


class GpuReader(Protocol):
    """Reads the GPUs of this machine, numbered in the order of the PCI bus. Any call may hang."""

    def count(self) -> int: ...
    def read(self, gpu: int) -> GpuReading: ...


class NvmlReader:
    """NVML, by the module `pynvml` of the package nvidia-ml-py. What a GPU does not support is None; an error
    that says nothing about the GPU (a driver that is being exchanged) is raised."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(gpu) for gpu in range(nvml.nvmlDeviceGetCount())]
        self._events = [self._event_set(handle) for handle in self._handles]

    def count(self) -> int:
        return len(self._handles)

    def read(self, gpu: int) -> GpuReading:
        nvml = self._nvml
        try:
            return self._read(self._handles[gpu], self._events[gpu])
        except nvml.NVMLError as error:
            lost = nvml.NVML_ERROR_GPU_IS_LOST
            not_found = nvml.NVML_ERROR_GPU_NOT_FOUND
            if error.value in (lost, not_found, nvml.NVML_ERROR_RESET_REQUIRED):
                return GpuReading(lost=f"NVML: {error}")
            raise

    def _read(self, handle: Any, events: Any) -> GpuReading:
        nvml = self._nvml
        tell = self._tell
        remapped = tell(nvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, 0, 0)
        retired = tell(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
        errors = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        slows = nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        stops = nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
        return GpuReading(
            xids=tuple(self._xids(events)),
            uncorrected=tell(nvml.nvmlDeviceGetTotalEccErrors, handle, *errors),
            pending=bool(remapped[2]) or retired == nvml.NVML_FEATURE_ENABLED,
            exhausted=bool(remapped[3]),
            temperature=tell(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            slows_at=tell(nvml.nvmlDeviceGetTemperatureThreshold, handle, slows),
            stops_at=tell(nvml.nvmlDeviceGetTemperatureThreshold, handle, stops),
            recovery=self._recovery(handle),
        )

    def _recovery(self, handle: Any) -> str:
        nvml = self._nvml
        fields = self._tell(nvml.nvmlDeviceGetFieldValues, handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if not fields or fields[0].nvmlReturn != nvml.NVML_SUCCESS:
            return ""
        action = fields[0].value.uiVal
        reset = nvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET, nvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET
        known = {**dict.fromkeys(reset, "a reset"), nvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "a reboot"}
        return known.get(action, "")

    def _event_set(self, handle: Any) -> Any:
        """Return a set of events of one GPU: so nobody must ask a GPU that is gone who it is."""
        events = self._tell(self._nvml.nvmlEventSetCreate)
        if events is not None:
            self._tell(
                self._nvml.nvmlDeviceRegisterEvents, handle, self._nvml.nvmlEventTypeXidCriticalError, events
            )
        return events

    def _xids(self, events: Any) -> Iterator[int]:
        while events is not None and (event := self._tell(self._nvml.nvmlEventSetWait_v2, events, 0)):
            yield int(event.eventData)

    def _tell(self, ask: Callable[..., Any], *about: Any) -> Any:
        """Return an answer, or None where there is none."""
        nvml = self._nvml
        nothing = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_TIMEOUT,
                   nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT)  # fmt: skip
        try:
            return ask(*about)
        except nvml.NVMLError as error:
            if error.value in nothing:
                return None
            raise


def nvml_reader() -> GpuReader | None:
    """Return a reader of this machine's GPUs; None where there is no NVML, or it does not work."""
    try:
        nvml = importlib.import_module("pynvml")
        return NvmlReader(nvml)
    except Exception:  # no package, no library, no driver, no permission: all say the same
        return None
