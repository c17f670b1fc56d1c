"""One recording: compressed packets in a fragmented MP4 file that can be played up to its last fragment at any moment.

The file is NAME.mp4.part and locked while it is written, and NAME.mp4 once it is whole. What a killed process leaves
is a .part file without a lock; media.fragments cuts it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from zhcedge.core.errors import OutputError
from zhcedge.media._vendor import av
from zhcedge.media.fragments import Whole, cut_to_whole
from zhcedge.media.mux import output_error
from zhcedge.media.packets import KeptPacket
from zhcedge.media.stream_form import StreamForm

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.packet import Packet
    from av.stream import Stream
    from av.video.stream import VideoStream

PART_SUFFIX = ".part"

_MUXER_OPTIONS = {
    # The header is written with the first fragment: only then an edit list can say how far B-frames are reordered.
    "movflags": "delay_moov+default_base_moof+frag_keyframe",
    "min_frag_duration": "1000000",  # us: every picture of Motion JPEG is a key frame
    "frag_duration": "2000000",
    "flush_packets": "1",
    "avoid_negative_ts": "disabled",  # the first picture is shown at 0, what it needs is decoded before
}
_SYNC_S = 10.0
"""So often a file that is being written is put on the disk. SIGKILL loses nothing that was written; a power cut loses
what came after the last sync. More of them would wear out flash."""

_CHECK_BYTES = 1024 * 1024  # so much may be written between two looks at the free space


class ClipFile:
    """Owned by one thread. The constructor makes folder and file; raises OutputError and then leaves nothing behind.

    Args:
        path: the final name; must not exist.
        keep_free_bytes: the file ends before the disk has less than this left.
    """

    def __init__(self, path: Path, form: StreamForm, keep_free_bytes: int) -> None:
        self._path, self._part = path, path.with_name(path.name + PART_SUFFIX)
        self._disk = _open_disk(path, self._part, keep_free_bytes)
        self._origin: tuple[int, int] | None = None  # timestamp of the first picture, and its time on the ring's clock
        self._last_dts = 0
        self._container: OutputContainer | None = None
        try:
            self._container = av.open(self._disk, "w", format="mp4", options=dict(_MUXER_OPTIONS))
            self._stream: VideoStream = form.add_to(self._container)
            self._time_base = form.time_base or Fraction(1, 90000)
        except (OSError, ValueError, av.error.FFmpegError) as error:
            self._give_up()
            raise output_error(error, path) from error
        except BaseException:
            self._give_up()
            raise

    @property
    def path(self) -> Path:
        return self._path

    def write(self, kept: KeptPacket, packet: Packet[Stream]) -> None:
        """Append one packet, in decoding order; the first one is a key frame and is shown at 0.

        Times are those of the ring's clock, to the stream's own tick. Raises OutputError; then call `finish`, which
        keeps what is whole.
        """
        container = self._container
        if container is None:
            raise OutputError("is closed", where=str(self._path))
        dts, pts = self._ticks(kept.place_ns), self._ticks(kept.show_ns)
        if self._origin is None:
            self._origin = (pts, kept.show_ns)
            self._last_dts = dts - pts - 1
        # A stream's clock may jump; MP4 wants decoding times that grow, and nothing shown before it is decoded.
        dts = max(dts - self._origin[0], self._last_dts + 1)
        self._last_dts = dts
        packet.dts, packet.pts = dts, max(pts - self._origin[0], dts)
        packet.time_base, packet.is_keyframe = self._time_base, kept.is_keyframe
        packet.duration = kept.duration if kept.time_base == self._time_base else 0
        packet.stream = self._stream
        try:
            container.mux(packet)
            self._disk.sync_now_and_then()
        except (OSError, ValueError, av.error.FFmpegError) as error:
            raise output_error(self._disk.error or error, self._path) from error

    def finish(self) -> Whole | None:
        """Close the file and give it its name. Returns what is in it, None where nothing is whole: it is removed.

        Raises OutputError when it can't be finished, or was removed meanwhile; then nothing stays under its name.
        """
        with contextlib.suppress(OSError, ValueError, av.error.FFmpegError):
            # What the disk does not take any more is cut off below.
            self._close_container()
        try:
            os.fsync(self._disk.fileno())
            whole = cut_to_whole(self._part)
            if whole is None:
                self._part.unlink()
                return None
            self._part.rename(self._path)
        except FileNotFoundError as error:
            raise OutputError("was removed while it was written", where=str(self._path)) from error
        except OSError as error:
            raise output_error(error, self._path) from error
        finally:
            self._disk.close()
        return whole

    def _ticks(self, time_ns: int) -> int:
        base = self._time_base
        # Rounded: the ring's clock holds nanoseconds, so a tick comes back as it was.
        return (2 * time_ns * base.denominator + base.numerator * 10**9) // (2 * base.numerator * 10**9)

    def _close_container(self) -> None:
        if self._container is not None:
            container, self._container = self._container, None
            container.close()

    def _give_up(self) -> None:
        with contextlib.suppress(OSError, ValueError, av.error.FFmpegError):  # the trailer of a file that goes anyway
            self._close_container()
        with contextlib.suppress(OSError):  # the folder itself may have gone
            self._part.unlink()
        self._disk.close()


class _Disk:
    """The file object that PyAV writes to, in pieces of 32 KiB. It can't seek: nothing is written twice.

    After an error it takes everything and writes nothing, so that the muxer ends in peace.
    """

    def __init__(self, descriptor: int, keep_free_bytes: int) -> None:
        self._descriptor, self._keep_free_bytes = descriptor, keep_free_bytes
        self._unchecked, self._synced_s = _CHECK_BYTES, time.monotonic()
        self.error: OSError | None = None

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: bytes) -> int:
        if self.error is not None:
            return len(data)
        try:
            self._check_room(len(data))
            written = 0
            while written < len(data):
                written += os.write(self._descriptor, data[written:] if written else data)
        except OSError as error:
            self.error = error
            raise
        return len(data)

    def sync_now_and_then(self) -> None:
        now_s = time.monotonic()
        if now_s - self._synced_s >= _SYNC_S:
            self._synced_s = now_s
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file, which unlocks it. Twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _check_room(self, size: int) -> None:
        self._unchecked += size
        if self._unchecked < _CHECK_BYTES or not self._keep_free_bytes:
            return
        self._unchecked = 0
        disk = os.fstatvfs(self._descriptor)
        if disk.f_bavail * disk.f_frsize < self._keep_free_bytes + _CHECK_BYTES:
            raise OSError(errno.ENOSPC, "the free space that is to be kept is reached")


def _open_disk(path: Path, part: Path, keep_free_bytes: int) -> _Disk:
    descriptor = -1
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            raise OutputError("is there already", where=str(path))
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(part, flags, 0o640)  # what a camera saw is not for everyone
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
            part.unlink(missing_ok=True)
        raise output_error(error, path) from error
    return _Disk(descriptor, keep_free_bytes)
