"""The NVDEC source on a live stream: it comes back after a loss, in the opened format, whatever the stream is then."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.gpu import support_codec as support
from tests.gpu.support_live import LiveServer
from tests.system.rtsp import numbered_stream
from zhcedge.core.ports import EndOfStream, Idle, SourceStatus
from zhcedge.core.requests import SourceOptions

if TYPE_CHECKING:
    from zhcedge.backends.cuda.context import CudaContext
    from zhcedge.backends.nvcodec.source import NvCodecSource
    from zhcedge.core.types import FrameInfo

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def context() -> Iterator[CudaContext]:
    opened = support.open_context()
    yield opened
    opened.close()


def source_of(context: CudaContext, address: str) -> NvCodecSource:
    from zhcedge.backends.nvcodec.source import NvCodecSource

    request = dataclasses.replace(support.request(address), options=SourceOptions(read_timeout_s=2.0))
    return NvCodecSource(request, support.GpuDevice(context))


def frames(source: NvCodecSource, count: int, within_s: float = 30.0) -> list[FrameInfo]:
    deadline_s = time.monotonic() + within_s
    infos: list[FrameInfo] = []
    while len(infos) < count:
        assert time.monotonic() < deadline_s, source.status
        lease = source.read(0.1)
        assert not isinstance(lease, EndOfStream)
        if not isinstance(lease, Idle):
            assert (lease.surface.format.width_px, lease.surface.format.height_px) == (320, 192)
            infos.append(lease.info)
            lease.release(lease.ready)
    return infos


def test_a_lost_stream_gives_idle_and_comes_back(context: CudaContext, tmp_path: Path) -> None:
    stream = numbered_stream(tmp_path / "live.ts", 20, sizes=((320, 192),))
    with LiveServer(stream, 20) as server:
        source = source_of(context, server.address)
        facts = source.open()
        source.rewind()
        infos = frames(source, 50)
        server.is_cut.set()
        deadline_s = time.monotonic() + 10
        while source.status.is_up and time.monotonic() < deadline_s:
            lease = source.read(0.1)
            if not isinstance(lease, Idle | EndOfStream):
                infos.append(lease.info)
                lease.release(lease.ready)
        assert source.status.reason
        server.is_cut.clear()
        infos += frames(source, 50)
        assert source.status == SourceStatus(is_up=True, reconnects=1)
        source.close()
    assert facts.is_live
    assert [info.sequence for info in infos] == list(range(len(infos)))
    times = [info.media_time_s for info in infos]
    assert times == sorted(set(times))


def test_a_change_of_size_on_the_way_is_scaled_to_the_opened_size(context: CudaContext, tmp_path: Path) -> None:
    stream = numbered_stream(tmp_path / "sizes.ts", 12, sizes=((320, 192), (640, 384)))
    with LiveServer(stream, 12) as server:
        source = source_of(context, server.address)
        source.open()
        frames(source, 250)
        source.close()
