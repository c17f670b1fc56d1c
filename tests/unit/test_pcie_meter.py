"""The PCIe meter where there is no NVIDIA driver: a clear refusal, nothing left open."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest

from zhcedge.backends.registry import METERS
from zhcedge.core.errors import BackendUnavailableError

if importlib.util.find_spec("pynvml") is None:
    pytest.skip("nvidia-ml-py is not installed", allow_module_level=True)


def test_a_device_that_is_not_on_pcie_has_nothing_to_measure() -> None:
    with pytest.raises(BackendUnavailableError, match="no PCIe address"):
        METERS.get("nvml")(SimpleNamespace())  # type: ignore[arg-type]


def test_a_board_that_is_not_there_is_refused_in_our_words() -> None:
    device = SimpleNamespace(context=SimpleNamespace(pci_bus_id="FFFF:FF:1F.0"))
    with pytest.raises(BackendUnavailableError, match="NVML does not tell"):
        METERS.get("nvml")(device)  # type: ignore[arg-type]
