"""The PCIe meter on this board: it counts a copy of known size, or says that it can't."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.gpu.support_cuda import open_device
from zhcedge.backends.registry import METERS
from zhcedge.core.errors import BackendUnavailableError

if TYPE_CHECKING:
    from zhcedge.backends.cuda.device import CudaDevice

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    with open_device() as opened:
        yield opened


def test_it_counts_what_crosses(device: CudaDevice) -> None:
    from zhcedge.backends.cuda._vendor import pycuda

    try:
        meter = METERS.get("nvml")(device)  # type: ignore[arg-type]
        quiet = [meter.sample().to_device for _ in range(3)]
    except BackendUnavailableError as error:
        pytest.skip(f"cannot run here: {error}")
    stopping, block = threading.Event(), np.ones(32 << 20, np.uint8)
    address = device.arena.memory(block.nbytes, "test")

    def copy() -> None:
        device.context.attach()
        while not stopping.is_set():
            pycuda.memcpy_htod(address, block)

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        busy = [meter.sample().to_device for _ in range(5)]
    finally:
        stopping.set()
        thread.join()
        meter.close()
        meter.close()
    assert max(busy) > 100e6  # pageable memory crosses at gigabytes a second
    assert max(busy) > 10 * min(quiet)
