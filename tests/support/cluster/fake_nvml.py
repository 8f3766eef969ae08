"""NVML without GPUs: as much of pynvml as is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({15: "GPU is lost", 3: "Not Supported"}.get(value, str(value)))
        self.value = value


class FakeNvml:
    """As much of pynvml as is asked for; *broken* GPUs raise the error of this number."""

    NVMLError = NvmlError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_TIMEOUT = 10
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_RESET_REQUIRED = 16
    NVML_ERROR_GPU_NOT_FOUND = 28
    NVML_SUCCESS = 0
    NVML_FEATURE_ENABLED = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_TEMPERATURE_THRESHOLD_SHUTDOWN = 0
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    nvmlEventTypeXidCriticalError = 8  # noqa: N815
    NVML_GPU_RECOVERY_ACTION_GPU_RESET = 1
    NVML_GPU_RECOVERY_ACTION_NODE_REBOOT = 2
    NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET = 4

    def __init__(self, gpus: int = 2) -> None:
        self.gpus = gpus
        self.temperature = 50
        self.broken = dict[int, int]()
        self.xids: dict[int, list[int]] = {gpu: [] for gpu in range(gpus)}
        self.recovery = 0
        self._sets: list[int] = []

    def nvmlInit(self) -> None: ...  # noqa: N802 (as NVML has it)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, gpu: int) -> int:  # noqa: N802
        return gpu

    def nvmlEventSetCreate(self) -> int:  # noqa: N802
        return len(self._sets)

    def nvmlDeviceRegisterEvents(self, gpu: int, kinds: int, events: int) -> None:  # noqa: N802
        self._sets.append(gpu)

    def nvmlEventSetWait_v2(self, events: int, timeout: int) -> Any:  # noqa: N802
        if not self.xids[self._sets[events]]:
            raise NvmlError(10)
        return SimpleNamespace(eventData=self.xids[self._sets[events]].pop(0))

    def nvmlDeviceGetTemperature(self, gpu: int, sensor: int) -> int:  # noqa: N802
        if gpu in self.broken:
            raise NvmlError(self.broken[gpu])
        return self.temperature

    def nvmlDeviceGetTemperatureThreshold(self, gpu: int, kind: int) -> int:  # noqa: N802
        return 87 if kind else 92

    def nvmlDeviceGetTotalEccErrors(self, gpu: int, kind: int, counter: int) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetRemappedRows(self, gpu: int) -> tuple[int, int, int, int]:  # noqa: N802
        return 0, 1, 0, 0

    def nvmlDeviceGetRetiredPagesPendingStatus(self, gpu: int) -> int:  # noqa: N802
        raise NvmlError(3)

    def nvmlDeviceGetFieldValues(self, gpu: int, fields: list[int]) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=self.recovery))]


class FileNvml(FakeNvml):
    """One whose GPUs are as a file says: {"broken": {"1": 15}}."""

    def __init__(self, gpus: int, file: Path) -> None:
        super().__init__(gpus)
        self._file = file

    def nvmlDeviceGetTemperature(self, gpu: int, sensor: int) -> int:  # noqa: N802
        faults = json.loads(self._file.read_text()) if self._file.exists() else {}
        self.broken = {int(gpu): error for gpu, error in faults.get("broken", {}).items()}
        return super().nvmlDeviceGetTemperature(gpu, sensor)
