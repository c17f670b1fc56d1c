"""The folder of JPEG pictures from device memory: names, content, and that it leaves nothing half written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import av
import numpy as np
import pytest

from tests.gpu import support_codec as support
from tests.gpu.test_nvjpeg import Picture, facts
from zhcedge.core.requests import SinkRequest
from zhcedge.core.types import ColorMatrix, ImageFormat

if TYPE_CHECKING:
    from zhcedge.backends.cuda.context import CudaContext

pytestmark = pytest.mark.gpu


class _Device:
    def __init__(self, context: CudaContext) -> None:
        self.context = context


@pytest.fixture(scope="module")
def context() -> Iterator[CudaContext]:
    opened = support.open_context()
    yield opened
    opened.close()


def test_each_frame_is_one_picture_of_its_content(context: CudaContext, tmp_path: Path) -> None:
    from zhcedge.backends.cuda.nvjpeg.folder_sink import JpegFolderSink

    format = ImageFormat(320, 240, matrix=ColorMatrix.BT601, is_full_range=True)
    picture = Picture(context, format)
    sink = JpegFolderSink(SinkRequest("gate", tmp_path / "out", quality=95), _Device(context))
    sink.open(facts(format))
    returned: list[object] = []
    for number in range(5):
        while not sink.submit(picture.slot(number), returned.append):
            pass
    sink.close(complete=True)
    assert len(returned) == 5
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [f"{number:08}.jpg" for number in range(5)]
    with av.open(str(tmp_path / "out" / "00000004.jpg")) as container:
        (frame,) = container.decode(video=0)
    luma = frame.to_ndarray()[:240, :320].astype(int)
    assert np.abs(luma - picture.luma).max() <= 6


def test_a_folder_that_can_not_be_made_leaves_nothing_open(context: CudaContext, tmp_path: Path) -> None:
    from zhcedge.backends.cuda.nvjpeg.folder_sink import JpegFolderSink
    from zhcedge.core.errors import OutputError

    (tmp_path / "file").write_bytes(b"kept")
    sink = JpegFolderSink(SinkRequest("gate", tmp_path / "file"), _Device(context))
    with pytest.raises(OutputError):
        sink.open(facts(ImageFormat(64, 48)))
    sink.close(complete=True)
    assert (tmp_path / "file").read_bytes() == b"kept"
