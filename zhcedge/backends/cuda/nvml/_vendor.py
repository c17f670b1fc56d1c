"""nvidia-ml-py (BSD-3-Clause), the only module that imports it. The package is Python over libnvidia-ml.so.1.

Without the package this module raises BackendUnavailableError; a missing driver shows at `start`. Nothing here touches
CUDA.
"""

from __future__ import annotations

from typing import Any

from zhcedge.core.errors import BackendUnavailableError

try:
    import pynvml as _nvml
except ImportError as error:
    raise BackendUnavailableError(
        "nvidia-ml-py is not installed", where="NVML", fix="pip install nvidia-ml-py"
    ) from error

NVML_ERROR: type[Exception] = _nvml.NVMLError
"""Base of every error that NVML reports."""


def start() -> None:
    """Raises NVML_ERROR without a driver. Calls are counted: each needs a `stop`."""
    _nvml.nvmlInit()


def stop() -> None:
    _nvml.nvmlShutdown()


def board(pci_bus_id: str) -> Any:
    """The handle of a GPU, "0000:01:00.0"."""
    return _nvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())


def pcie_kb_per_s(handle: Any) -> tuple[int, int]:
    """(to the GPU, from it), in KB/s: two byte counters over 20 ms each, one after the other."""
    received = _nvml.nvmlDeviceGetPcieThroughput(handle, _nvml.NVML_PCIE_UTIL_RX_BYTES)
    sent = _nvml.nvmlDeviceGetPcieThroughput(handle, _nvml.NVML_PCIE_UTIL_TX_BYTES)
    return int(received), int(sent)
