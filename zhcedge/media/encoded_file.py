"""The half of a sink that all hardware encoders share: thread, bounded queue, MP4 file, failures, counting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from zhcedge.core.errors import PhaseError, ZhcEdgeError
from zhcedge.core.ports import FrameSlot
from zhcedge.core.requests import SinkRequest
from zhcedge.core.types import B, Surface
from zhcedge.media.packet_mux import PacketWriter
from zhcedge.media.sink_thread import GiveBack, ThreadedSink, shown_at_s


@dataclass(frozen=True)
class EncodedPicture:
    """One compressed picture. `data` may be memory of the encoder, valid until its next call."""

    data: memoryview | bytes
    media_time_s: float
    is_keyframe: bool = True


class PictureEncoder(Protocol[B]):
    """What an encoder looks like from here. The sink's thread, but for `close`."""

    def encode(self, surface: Surface[B], media_time_s: float) -> Iterable[EncodedPicture]:
        """Pictures that are done, in the order in which they are shown: this one, earlier ones, or none yet.

        Blocks, without spinning, until `surface` may be overwritten. Raises PipelineError.
        """
        ...

    def finish(self) -> Sequence[EncodedPicture]:
        """What is still inside; called once, after the last picture of a file that is kept."""
        ...

    def close(self) -> None: ...


class EncodedFileSink(ThreadedSink[B]):
    """Writes the pictures of one encoder into one file. `open` and `close` belong to one thread, `submit` to the
    collector. A sink adds `open`, which ends with `_start`, and its hops.

    A slot is given back as soon as the encoder lets go of it. After a failure slots are given back unwritten, and
    `submit` and `close` raise it. The file appears under its name only when `close(complete=True)` succeeds; a
    failed, aborted or empty one leaves nothing.
    """

    def __init__(self, request: SinkRequest) -> None:
        super().__init__(request, str(request.path))
        self._encoder: PictureEncoder[B] | None = None
        self._writer: PacketWriter | None = None
        self._fps = 25.0
        self.frames_written = 0
        """Pictures encoded so far."""

    @property
    def _average_bytes(self) -> int:
        """Compressed bytes a picture so far; 0 before the first one."""
        return self._writer.bytes_written // max(self.frames_written, 1) if self._writer is not None else 0

    def _start(self, encoder: PictureEncoder[B], open_writer: Callable[[], PacketWriter], fps: float) -> None:
        """Open the file and start the thread; `encoder` is closed here from now on, also when this raises.

        Raises OutputError.
        """
        try:
            self._writer = open_writer()
        except BaseException:
            encoder.close()
            raise
        self._encoder, self._fps = encoder, fps
        self._thread.start()

    def close(self, complete: bool) -> None:
        """Finish the file, or remove it. Raises what kept it from being written. Does nothing twice."""
        encoder, writer = self._encoder, self._writer
        if encoder is None or writer is None:
            return
        self._thread.stop(complete)
        self._encoder = None
        is_kept = complete and bool(self.frames_written) and not self._thread.has_failed
        try:
            if is_kept:
                self._add(writer, encoder.finish())
        except ZhcEdgeError:
            writer.abandon()
            raise
        finally:
            encoder.close()
        if is_kept:
            writer.finish()
            return
        writer.abandon()
        if complete:
            self._thread.raise_failure()

    def _write(self, slot: FrameSlot[B], give_back: GiveBack[B]) -> None:
        encoder, writer = self._encoder, self._writer
        try:
            if encoder is None or writer is None:
                raise PhaseError("the sink is closed", where=self._where)
            pictures = encoder.encode(slot.surface, shown_at_s(slot.info, self._fps))
        finally:
            give_back(slot)
        self._add(writer, pictures)
        self.frames_written += 1

    def _add(self, writer: PacketWriter, pictures: Iterable[EncodedPicture]) -> None:
        for picture in pictures:
            writer.write(picture.data, picture.media_time_s, picture.is_keyframe)
