"""System metrics during a run, in ``system.jsonl``; they do not affect results.

The names are those of MLflow's own system metrics, for which its pages have a tab.
"""

from __future__ import annotations

import logging
import threading
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ratchet.tracking.files import JsonLines

SYSTEM_FILE = "system.jsonl"
TIME = "time"
_MEGABYTE = 1e6
_FIRST_SECONDS = 0.1

logger = logging.getLogger(__name__)


class SystemSampler:
    """Record the load of processors, memory, disk and network in a thread.

    GPUs too if NVIDIA's ``nvidia-ml-py`` is installed. Samples are ``seconds`` apart. Packages are
    imported for the first sample, so that short runs don't import them.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="system metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop recording."""
        self._closed.set()
        self._thread.join()

    def _go_on(self) -> None:
        file = JsonLines(self._folder / SYSTEM_FILE)
        machine: _Machine | None = None
        while not self._closed.wait(self._seconds):
            machine = machine or _Machine(self._folder)
            try:
                file.append([{TIME: time.time(), **machine.measure()}])
            except OSError as error:  # a full disk does not end the run
                logger.debug("system metrics: %s", error)


def read_system_metrics(folder: Path) -> list[tuple[float, dict[str, float]]]:
    """Return the time (seconds since 1970) and the values of each sample."""
    noted, _ = JsonLines(folder / SYSTEM_FILE).read()
    return [(values.pop(TIME), values) for values in noted]


class _Machine:
    """Measure this machine: network traffic since the start, load since the last sample."""

    def __init__(self, folder: Path) -> None:
        import psutil

        self._folder = str(folder)
        self._process = psutil.Process()
        self._begin = psutil.net_io_counters()
        self._nvml, self._gpus = _find_gpus()
        psutil.cpu_percent()  # returns the load since the previous call
        time.sleep(_FIRST_SECONDS)

    def measure(self) -> dict[str, float]:
        """Return the current values by MLflow's names."""
        import psutil

        memory, disk = psutil.virtual_memory(), psutil.disk_usage(self._folder)
        measurements = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / _MEGABYTE,
            "system_memory_usage_percentage": memory.used / memory.total * 100,
            "process_memory_usage_megabytes": self._process.memory_info().rss / _MEGABYTE,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / _MEGABYTE,
            "disk_available_megabytes": disk.free / _MEGABYTE,
        }
        traffic = psutil.net_io_counters()
        if traffic and self._begin:  # a container may have no network
            received = traffic.bytes_recv - self._begin.bytes_recv
            sent = traffic.bytes_sent - self._begin.bytes_sent
            measurements["network_receive_megabytes"] = received / _MEGABYTE
            measurements["network_transmit_megabytes"] = sent / _MEGABYTE
        for gpu_index in range(self._gpus):
            measurements |= self._measure_gpu(gpu_index)
        return {name: round(value, 1) for name, value in measurements.items()}

    def _measure_gpu(self, gpu_index: int) -> dict[str, float]:
        nvml = self._nvml
        assert nvml is not None  # it has counted the GPUs
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(gpu_index)
            memory = nvml.nvmlDeviceGetMemoryInfo(device)
            return {
                f"gpu_{gpu_index}_memory_usage_percentage": memory.used / memory.total * 100,
                f"gpu_{gpu_index}_memory_usage_megabytes": memory.used / _MEGABYTE,
                f"gpu_{gpu_index}_utilization_percentage": float(
                    nvml.nvmlDeviceGetUtilizationRates(device).gpu
                ),
                f"gpu_{gpu_index}_power_usage_watts": nvml.nvmlDeviceGetPowerUsage(device) / 1000,
            }
        except nvml.NVMLError as error:  # partitions of a GPU report less
            logger.debug("system metrics of GPU %d: %s", gpu_index, error)
            return {}


def _find_gpus() -> tuple[ModuleType | None, int]:
    """Return NVIDIA's library and the number of GPUs that it finds; none without it."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return None, 0
    try:
        nvml.nvmlInit()
        return nvml, int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError:
        return None, 0
