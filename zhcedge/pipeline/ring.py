"""The ring of fixed detection records between the frame process and the control process.

One writer, one reader, no lock: the writer never waits. When the reader falls behind, the oldest records are
overwritten, and the reader counts them as dropped. A record carries its number and a CRC-32 of its bytes, so that
a record overwritten while it was being read is recognised on any processor, whatever its memory ordering.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from zhcedge.core.types import DETECTION_DTYPE, MAX_DETECTIONS, DetectionArray, FrameInfo

_HEADER = struct.Struct("<Q")  # records written since the start
_HEADER_BYTES = 64
# number, crc | channel, flags, count, width, height, frame sequence, capture, read, ready (ns), media time, synced
_PREFIX = struct.Struct("<QI4x")
_BODY = struct.Struct("<IIIIIxxxxqqqqdI4x")
_END, _STILL, _UNSEEN = 1, 2, 4  # flags
RECORD_BYTES = _PREFIX.size + _BODY.size + MAX_DETECTIONS * DETECTION_DTYPE.itemsize


@dataclass(frozen=True)
class RingRecord:
    """One frame's outcome, or the end of a channel.

    Attributes:
        info: the frame's facts; for an end record, of the channel's last frame.
        width_px, height_px: size of the source picture, which the boxes refer to.
        ready_ns: monotonic clock when the record was published.
        detections: a copy, DETECTION_DTYPE.
        is_end: the channel has ended; no detections.
        is_still: the frame was not detected in, because nothing moved since the last one that was; no detections.
        is_unseen: the frame was not detected in, because detection is switched off; no detections, and nothing is known
            of what was there before.
    """

    info: FrameInfo
    width_px: int
    height_px: int
    ready_ns: int
    detections: DetectionArray
    is_end: bool = False
    is_still: bool = False
    is_unseen: bool = False


class DetectionRing:
    """Fixed records in shared memory of `DetectionRing.size(capacity)` bytes.

    `publish` belongs to the collector thread of the frame process, `drain` to the control loop.

    Args:
        memory: zeroed memory, or that of a writer in another process.
        capacity: records.
        wake_fd: an eventfd that `wake` writes to; -1 when nobody waits.
    """

    def __init__(self, memory: memoryview, capacity: int, wake_fd: int = -1) -> None:
        self._memory, self._capacity, self._wake_fd = memory, capacity, wake_fd
        self._tail = self._number = self.written  # the writer's own count; nobody else writes
        self.dropped = 0

    @staticmethod
    def size(capacity: int) -> int:
        return _HEADER_BYTES + capacity * RECORD_BYTES

    @property
    def written(self) -> int:
        """Records published since the start."""
        written: int = _HEADER.unpack_from(self._memory, 0)[0]
        return written

    def publish(self, record: RingRecord) -> None:
        """Write a record over the oldest one. More than MAX_DETECTIONS detections can't occur in a result."""
        data = record.detections.tobytes()
        self.write(
            record.info,
            record.width_px,
            record.height_px,
            record.ready_ns,
            len(record.detections),
            data,
            is_end=record.is_end,
            is_still=record.is_still,
            is_unseen=record.is_unseen,
        )

    def write(
        self,
        info: FrameInfo,
        width_px: int,
        height_px: int,
        ready_ns: int,
        count: int,
        detections: bytes | memoryview,
        *,
        is_end: bool = False,
        is_still: bool = False,
        is_unseen: bool = False,
    ) -> None:
        """`publish` without a record object in between, for the hot path; `detections` are `count` x 24 bytes."""
        number = self._number
        self._number += 1
        offset = _HEADER_BYTES + (number % self._capacity) * RECORD_BYTES
        body, boxes = offset + _PREFIX.size, offset + _PREFIX.size + _BODY.size
        _BODY.pack_into(
            self._memory,
            body,
            info.channel,
            is_end * _END + is_still * _STILL + is_unseen * _UNSEEN,
            count,
            width_px,
            height_px,
            info.sequence,
            info.capture_time_ns,
            info.read_time_ns,
            ready_ns,
            info.media_time_s,
            info.clock_synced,
        )
        end = boxes + count * DETECTION_DTYPE.itemsize
        self._memory[boxes:end] = detections
        _PREFIX.pack_into(self._memory, offset, number, zlib.crc32(self._memory[body:end]))
        _HEADER.pack_into(self._memory, 0, number + 1)

    def wake(self) -> None:
        """Tell the reader that there is something: one system call."""
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def drain(self) -> Iterator[RingRecord]:
        """Records not read yet, oldest first; overwritten ones are skipped and counted in `dropped`."""
        while self._tail < self.written:
            record = self._read(self._tail)
            if record is None and self.written - self._tail < self._capacity:
                return  # not a lap behind: another processor's writes have not all become visible yet; look again later
            if record is None:
                # The writer is a lap ahead: go on where it can't have been since, one record clear of it.
                oldest = max(self._tail + 1, self.written - self._capacity + 1)
                self.dropped += oldest - self._tail
                self._tail = oldest
            else:
                self._tail += 1
                yield record

    def _read(self, number: int) -> RingRecord | None:
        offset = _HEADER_BYTES + (number % self._capacity) * RECORD_BYTES
        raw = bytes(self._memory[offset : offset + RECORD_BYTES])
        found, crc = _PREFIX.unpack_from(raw, 0)
        channel, flags, count, width, height, sequence, capture, read, ready, media_s, synced = _BODY.unpack_from(
            raw, _PREFIX.size
        )
        end = _PREFIX.size + _BODY.size + count * DETECTION_DTYPE.itemsize
        if found != number or end > RECORD_BYTES or zlib.crc32(raw[_PREFIX.size : end]) != crc:
            return None
        info = FrameInfo(channel, sequence, capture, read, media_s, bool(synced))
        detections = np.frombuffer(raw, DETECTION_DTYPE, count, _PREFIX.size + _BODY.size)
        kinds = (bool(flags & kind) for kind in (_END, _STILL, _UNSEEN))
        return RingRecord(info, width, height, ready, detections, *kinds)
