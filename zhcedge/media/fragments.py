"""Fragmented MP4 as bytes: how much of a file is whole, and how long that is. Needs no PyAV.

ISO/IEC 14496-12: 4.2 boxes, 8.2 moov, 8.8 movie fragments. Only what our own muxer writes is understood: one track,
the header first, then pairs of moof and mdat.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_MAX_HEADER_BYTES = 16 * 1024 * 1024  # of a moov or moof; ours have some kilobytes
_TFHD_OPTIONS = ((0x01, 8), (0x02, 4))  # 8.8.7: what stands before the default duration, by flag: its bytes
_TFHD_DURATION = 0x08
_TRUN_OPTIONS = ((0x01, 4), (0x04, 4))  # 8.8.8: what stands before the samples
_TRUN_DURATION = 0x100
_TRUN_FIELDS = (0x100, 0x200, 0x400, 0x800)


@dataclass(frozen=True)
class Whole:
    """The part of a file that can be played.

    Attributes:
        end: bytes of it.
        fragments: whole ones.
        seconds: from the first picture to the end of the last one.
        has_rest: something follows that is no whole fragment, nor the index that ends a finished file.
    """

    end: int
    fragments: int
    seconds: float
    has_rest: bool


@dataclass(frozen=True)
class _Box:
    kind: bytes
    body: int
    end: int


def whole_part(file: BinaryIO) -> Whole | None:
    """What of an open file can be played; None where not one fragment is whole. Raises OSError."""
    size = os.fstat(file.fileno()).st_size
    timescale, fragments, end = 0, 0, 0
    first_ticks, end_ticks = 0, 0
    pending: tuple[int, int] | None = None  # times of the moof whose mdat has not been seen
    for box in _boxes(file, 0, size):
        if box.kind == b"moov":
            timescale = _timescale(_read(file, box))
        elif box.kind == b"moof":
            pending = _times(_read(file, box))
        elif box.kind == b"mdat" and timescale and pending is not None:
            first_ticks = first_ticks if fragments else pending[0]
            end_ticks, pending = pending[1], None
            fragments, end = fragments + 1, box.end
        elif box.kind == b"mfra" and box.end == size and fragments:
            end = box.end
    if not fragments:
        return None
    return Whole(end, fragments, (end_ticks - first_ticks) / timescale, end < size)


def cut_to_whole(path: Path) -> Whole | None:
    """Cut a file behind its last whole fragment, and put that on the disk; None, and nothing changed, where there is
    none. Raises OSError."""
    with path.open("r+b") as file:
        whole = whole_part(file)
        if whole is not None and whole.has_rest:
            file.truncate(whole.end)
            os.fsync(file.fileno())
    return whole


def _boxes(file: BinaryIO, start: int, end: int) -> Iterator[_Box]:
    """The boxes between two places, up to the first one that is not all there."""
    while start + 8 <= end:
        file.seek(start)
        size, kind = struct.unpack(">I4s", file.read(8))
        body = start + 8
        if size == 1 and start + 16 <= end:
            (size,), body = struct.unpack(">Q", file.read(8)), start + 16
        if size < body - start or start + size > end:
            return
        yield _Box(kind, body, start + size)
        start += size


def _read(file: BinaryIO, box: _Box) -> bytes:
    file.seek(box.body)
    return file.read(min(box.end - box.body, _MAX_HEADER_BYTES))


def _inside(data: bytes, *path: bytes) -> bytes:
    """The body of the first box along a path of boxes within boxes; empty where there is none."""
    for kind in path:
        at = 0
        while at + 8 <= len(data):
            size, found = struct.unpack_from(">I4s", data, at)
            if size < 8:
                return b""
            if found == kind:
                data = data[at + 8 : at + size]
                break
            at += size
        else:
            return b""
    return data


def _timescale(moov: bytes) -> int:
    """Ticks a second of the track, 0 where the header is damaged."""
    mdhd = _inside(moov, b"trak", b"mdia", b"mdhd")
    at = 20 if mdhd[:1] == b"\x01" else 12
    return int.from_bytes(mdhd[at : at + 4], "big")


def _times(moof: bytes) -> tuple[int, int] | None:
    """Ticks at which a fragment begins and ends; None where it is damaged."""
    tfhd, tfdt, trun = (_inside(moof, b"traf", kind) for kind in (b"tfhd", b"tfdt", b"trun"))
    if len(tfhd) < 8 or len(tfdt) < 8 or len(trun) < 8:
        return None
    start = int.from_bytes(tfdt[4 : 12 if tfdt[0] else 8], "big")
    flags = int.from_bytes(tfhd[1:4], "big")
    at = 8 + sum(size for flag, size in _TFHD_OPTIONS if flags & flag)
    usual = int.from_bytes(tfhd[at : at + 4], "big") if flags & _TFHD_DURATION else 0
    flags, count = int.from_bytes(trun[1:4], "big"), int.from_bytes(trun[4:8], "big")
    if not flags & _TRUN_DURATION:
        return start, start + count * usual
    at = 8 + sum(size for flag, size in _TRUN_OPTIONS if flags & flag)
    step = 4 * sum(1 for flag in _TRUN_FIELDS if flags & flag)
    samples = range(at, min(at + count * step, len(trun)), step)
    return start, start + sum(int.from_bytes(trun[sample : sample + 4], "big") for sample in samples)
