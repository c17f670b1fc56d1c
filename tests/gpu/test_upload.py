"""Pictures made on the host, copied to the GPU: the same bytes, in order, whoever still reads the last ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.gpu import support_cuda as support
from tests.gpu.support_codec import SystemClock
from zhcedge.backends.cpu.pattern_source import PatternSource
from zhcedge.backends.cpu.source import PyAvSource
from zhcedge.backends.registry import source_factory
from zhcedge.core.errors import PhaseError, SourceMissingError
from zhcedge.core.lending import SurfaceLease
from zhcedge.core.ports import EndOfStream, Idle, Source
from zhcedge.core.requests import SourceRequest
from zhcedge.core.types import Agent, ImageFormat, MemoryDomain, PixelFormat
from zhcedge.media.pattern import read_stamp

if TYPE_CHECKING:
    from zhcedge.backends.cuda.device import CudaDevice

pytestmark = pytest.mark.gpu

WALKERS = Path(__file__).resolve().parents[2] / "zhcedge" / "data" / "walkers.mp4"
PATTERN = "pattern:boxes?size=642x362&frames=12"


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    with support.open_device() as opened:
        yield opened


def request(uri: str | Path, channel: int = 3) -> SourceRequest:
    return SourceRequest(channel, "gate", str(uri), False, False, SystemClock())


def lease_of(source: Source[int]) -> SurfaceLease[int]:
    lease = source.read(1.0)
    assert not isinstance(lease, Idle | EndOfStream)
    return lease  # type: ignore[return-value]


@pytest.mark.parametrize(("name", "uri"), [("pattern", PATTERN), ("pyav", WALKERS)])
def test_the_pictures_arrive_byte_for_byte(device: CudaDevice, name: str, uri: str | Path) -> None:
    uploaded = source_factory(f"{name}|cuda-upload")(request(uri), device)
    inner = {"pattern": PatternSource, "pyav": PyAvSource}[name](request(uri), None)
    try:
        facts, host_facts = uploaded.open(), inner.open()
        assert facts.format == host_facts.format
        assert facts.domain in (MemoryDomain.DEVICE, MemoryDomain.UNIFIED)
        entries = [hop for hop in facts.hops if hop.agent is Agent.COPY_ENGINE]
        assert [(hop.name, hop.source) for hop in entries] == [("host picture to the GPU", MemoryDomain.PINNED)]
        for _ in range(12):
            lease, expected = lease_of(uploaded), inner.read(1.0)
            assert not isinstance(expected, Idle | EndOfStream)
            assert lease.ready is not None
            assert lease.ready.wait(support.PATIENCE_S)
            assert lease.info.sequence == expected.info.sequence
            for found, wanted in zip(
                support.read_surface(device, lease.surface), support.pixels_of(expected.surface), strict=True
            ):
                assert np.array_equal(found, wanted)
            lease.release()
            expected.release()
    finally:
        uploaded.close()
        inner.close()


def test_pictures_in_flight_to_slots_never_mix(device: CudaDevice) -> None:
    """Sixteen channels by turns, nobody waiting in between: every slot holds the picture that it was given."""
    sources = [source_factory("pattern|cuda-upload")(request(PATTERN, channel), device) for channel in range(16)]
    slots = []
    try:
        for source in sources:
            source.open()
        block_px = 3 * 3
        for number in range(12):
            for channel, source in enumerate(sources):
                lease = lease_of(source)
                slot = support.make_slot(device, ImageFormat(642, 362, PixelFormat.NV12), number)
                slot.channel = channel
                fence = device.ingest(lease.surface, slot, lease.ready)
                lease.release(after=fence)
                slots.append((slot, channel, number, fence))
        for slot, channel, number, fence in slots:
            assert fence.wait(support.PATIENCE_S)
            assert read_stamp(support.read_surface(device, slot.surface)[0], block_px) == (channel, number)
    finally:
        for source in sources:
            source.close()


def test_the_end_is_passed_on_and_rewind_starts_again(device: CudaDevice) -> None:
    source = source_factory("pattern|cuda-upload")(request(PATTERN), device)
    try:
        source.open()
        for _ in range(12):
            lease_of(source).release()
        assert isinstance(source.read(0.0), EndOfStream)
        source.rewind()
        lease = lease_of(source)
        assert lease.info.sequence == 0
        with pytest.raises(PhaseError):
            source.read(0.0)
        lease.release()
        lease.release()
        with pytest.raises(PhaseError):
            _ = lease.surface
    finally:
        source.close()


def test_opening_and_closing_takes_memory_once(device: CudaDevice) -> None:
    totals = []
    for _ in range(4):
        source = source_factory("pattern|cuda-upload")(request(PATTERN), device)
        source.open()
        lease_of(source).release()
        source.close()
        totals.append(device.arena.total_bytes)
    assert len(set(totals[1:])) == 1


def test_what_can_not_be_opened_leaves_no_memory_behind(device: CudaDevice, tmp_path: Path) -> None:
    before = device.arena.total_bytes
    with pytest.raises(SourceMissingError):
        source_factory("image|cuda-upload")(request(tmp_path / "none.png"), device).open()
    assert device.arena.total_bytes == before
