"""The mp4 sink of the rtx profile on this GPU: NVENC where it is, nvJPEG where it is not, and both say which."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import av
import pytest

from tests.gpu import support_codec as support
from tests.gpu.test_nvjpeg import Picture, facts
from zhcedge.core.errors import BackendUnavailableError
from zhcedge.core.ports import FrameSlot
from zhcedge.core.requests import SinkRequest
from zhcedge.core.types import Agent, ImageFormat, Payload
from zhcedge.pipeline.fallback import FallbackSink

if TYPE_CHECKING:
    from zhcedge.backends.cuda.context import CudaContext

pytestmark = pytest.mark.gpu

FRAMES = 30


@pytest.fixture(scope="module")
def context() -> Iterator[CudaContext]:
    opened = support.open_context()
    yield opened
    opened.close()


def has_nvenc(context: CudaContext, folder: Path) -> bool:
    from zhcedge.backends.nvcodec.sink import NvencSink

    sink = NvencSink(SinkRequest("cam", folder / "probe.mp4"), support.GpuDevice(context))
    try:
        sink.open(facts(ImageFormat(640, 360)))
    except BackendUnavailableError as error:
        print(error)
        return False
    sink.close(complete=False)
    return True


def test_the_choice_fits_the_gpu_and_is_told(
    context: CudaContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from zhcedge.backends.cuda.nvjpeg.sink import JpegSink
    from zhcedge.backends.nvcodec.sink import NvencSink

    expects_nvenc = has_nvenc(context, tmp_path)
    assert list(tmp_path.iterdir()) == []
    request, device = SinkRequest("cam", tmp_path / "out.mp4"), support.GpuDevice(context)
    sink: FallbackSink[int] = FallbackSink(
        "cam", ("nvenc", lambda: NvencSink(request, device)), ("nvjpeg", lambda: JpegSink(request, device))
    )
    picture = Picture(context, ImageFormat(640, 360))
    back: list[FrameSlot[int]] = []
    with caplog.at_level(logging.INFO):
        sink.open(facts(picture.surface.format))
    for sequence in range(FRAMES):
        while not sink.submit(picture.slot(sequence), back.append):
            pass
    sink.close(complete=True)
    assert len(back) == FRAMES
    pixels = [hop for hop in sink.hops if hop.payload is Payload.PIXELS]
    with av.open(str(tmp_path / "out.mp4")) as container:
        codec = container.streams.video[0].codec_context.name
        frames = list(container.decode(video=0))
    assert len(frames) == FRAMES
    luma = frames[-1].to_ndarray(format="gray")
    assert abs(float(luma.mean()) - float(picture.luma.mean())) < 20
    if expects_nvenc:
        assert codec == "h264"
        assert Agent.NVENC in {hop.agent for hop in pixels}
    else:
        assert codec == "mjpeg"
        assert all("nvjpeg in place of nvenc" in hop.reason for hop in pixels)
        assert any("nvjpeg in place of nvenc" in text for text in caplog.messages)
