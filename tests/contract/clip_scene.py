"""A source that plays a file into a packet ring beside a clip recorder, for tests of clips."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av

from tests.contract.clips import numbered_frame
from zhcedge.backends.cpu.source import PyAvSource
from zhcedge.core.lending import SurfaceLease
from zhcedge.core.ports import EndOfStream
from zhcedge.core.requests import SourceRequest
from zhcedge.media.clip_channel import Clip, ClipSettings
from zhcedge.media.clip_recorder import ClipRecorder
from zhcedge.media.fragments import whole_part
from zhcedge.media.packets import PacketRing
from zhcedge.service.clock import SystemClock

S = 1_000_000_000
PATIENCE_S = 30.0


def make_video(
    path: Path,
    seconds: int,
    *,
    fps: int = 10,
    gop: int = 10,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    b_frames: int = 0,
    shift: Callable[[int], int] = lambda index: 0,
    size: tuple[int, int] = (64, 48),
) -> Path:
    """A video of numbered pictures.

    Args:
        shift: by how many frames the timestamps of packet `index`, in decoding order, are moved.
    """
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=fps, options=options or {})
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        context = stream.codec_context
        context.gop_size = gop
        context.time_base = Fraction(1, fps)
        if codec == "libx264":
            context.max_b_frames = b_frames
            context.options = {"sc_threshold": "0", **(options or {})}  # key frames where the test expects them
        index = 0
        for number in (*range(seconds * fps), None):
            frame = None
            if number is not None:
                picture = av.VideoFrame.from_ndarray(numbered_frame(*size, number), "rgb24")
                frame = picture.reformat(format=stream.pix_fmt)
                frame.pts, frame.time_base = number, Fraction(1, fps)
            for packet in stream.encode(frame):
                moved = round(shift(index) / fps / packet.time_base)
                packet.pts, packet.dts = packet.pts + moved, packet.dts + moved
                output.mux(packet)
                index += 1
    return path


@dataclass
class Scene:
    """One channel. A context manager.

    Attributes:
        captured: capture time of every frame that was played, by its number.
    """

    video: Path
    folder: Path
    ring: PacketRing = field(default_factory=PacketRing)
    before_s: float = 1.0
    after_s: float = 0.5
    max_s: float = 60.0
    keep_free_bytes: int = 0
    is_looped: bool = False
    captured: list[int] = field(default_factory=list)

    def __enter__(self) -> Scene:
        request = SourceRequest(0, "gate", str(self.video), False, self.is_looped, SystemClock(), packets=self.ring)
        self.source = PyAvSource(request, None)
        self.source.open()
        self.clips: queue.SimpleQueue[Clip] = queue.SimpleQueue()
        self.recorder = ClipRecorder(self.clips.put)
        settings = ClipSettings(self.folder, self.before_s, self.after_s, self.max_s, self.keep_free_bytes)
        self.recorder.add("gate", self.ring, settings)
        return self

    def __exit__(self, *_: object) -> None:
        self.recorder.close()
        self.source.close()

    def play(self, frames: int, pause_s: float = 0.002) -> bool:
        """So many frames more; False when the file ends. Slowly enough for the recorder to keep up."""
        for _ in range(frames):
            lease = self.source.read(PATIENCE_S)
            if isinstance(lease, EndOfStream):
                return False
            assert isinstance(lease, SurfaceLease)
            self.captured.append(lease.info.capture_time_ns)
            lease.release()
            time.sleep(pause_s)
        return True

    def begin(self, key: str, frame: int) -> None:
        self.recorder.ask("gate", key, self.captured[frame], None)

    def end(self, key: str, first: int, last: int) -> None:
        self.recorder.ask("gate", key, self.captured[first], self.captured[last])

    def clip(self) -> Clip:
        """The next one that is complete."""
        return self.clips.get(timeout=PATIENCE_S)


def payloads(path: Path) -> list[bytes]:
    """The packets of a video in decoding order."""
    with av.open(str(path)) as container:
        return [bytes(packet) for packet in container.demux(video=0) if packet.size]


def times_s(path: Path) -> list[float]:
    """When the decoded pictures of a video are shown."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.time_base is not None
        return [float(frame.pts * stream.time_base) for frame in container.decode(stream)]


def assert_decodes_to_its_end(path: Path) -> int:
    """Every byte belongs to a whole fragment, and every packet gives a picture. Returns how many there are."""
    with path.open("rb") as file:
        whole = whole_part(file)
    assert whole is not None
    assert whole.end == path.stat().st_size
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_type = "NONE"
        pictures = list(container.decode(video=0))
    assert len(pictures) == len(payloads(path))
    assert not any(picture.is_corrupt for picture in pictures)
    return len(pictures)


def is_run_of(part: list[bytes], whole: list[bytes]) -> bool:
    """Whether `part` is in `whole`, in one piece."""
    return any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1))
