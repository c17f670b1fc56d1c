"""What the board counts on its PCIe link, by NVML."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from zhcedge.backends.cuda.nvml import _vendor
from zhcedge.core.errors import BackendUnavailableError
from zhcedge.core.ports import LinkRate

T = TypeVar("T")

_KB = 1000  # nvmlDeviceGetPcieThroughput gives KB/s


class PcieMeter:
    """Implements core.ports.LinkMeter. One thread.

    The board counts everything on its link: protocol, commands, other processes. A sample sees 20 ms of each direction,
    one after the other.

    Args:
        device: the cuda device.

    Raises BackendUnavailableError without nvidia-ml-py, without NVML, or on a GPU that is not on PCIe; nothing stays
    open then.
    """

    name = "PCIe, by NVML"

    def __init__(self, device: object) -> None:
        bus_id = getattr(getattr(device, "context", None), "pci_bus_id", "")
        if not bus_id:
            raise BackendUnavailableError("the device has no PCIe address", where="NVML")
        _try(_vendor.start)
        try:
            self._board = _try(lambda: _vendor.board(bus_id))
        except BaseException:
            self._stop()
            raise
        self._is_open = True

    def sample(self) -> LinkRate:
        """Blocks for about 40 ms. Raises BackendUnavailableError where the board does not count."""
        received, sent = _try(lambda: _vendor.pcie_kb_per_s(self._board))
        return LinkRate(to_device=float(received * _KB), to_host=float(sent * _KB))

    def close(self) -> None:
        """Twice is fine. Never raises."""
        if self._is_open:
            self._is_open = False
            self._stop()

    def _stop(self) -> None:
        try:
            _vendor.stop()
        except _vendor.NVML_ERROR:
            return  # a lost board; there is nothing left to give back


def _try(call: Callable[[], T]) -> T:
    try:
        return call()
    except _vendor.NVML_ERROR as error:
        raise BackendUnavailableError(f"NVML does not tell: {error}", where="NVML") from error
