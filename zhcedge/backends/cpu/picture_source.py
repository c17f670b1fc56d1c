"""A source of pictures that are made one after the other in host memory: image files, and drawn patterns."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
import numpy.typing as npt

from zhcedge.core.errors import MediaError, PhaseError, PipelineError, SourceMissingError, ZhcEdgeError
from zhcedge.core.lending import SurfaceLease
from zhcedge.core.ports import EndOfStream, Fence, Idle, SourceFacts, SourceStatus
from zhcedge.core.requests import SourceRequest
from zhcedge.core.types import Hop, MemoryDomain, Surface
from zhcedge.media.timeline import Pacer, stamped

Pixels = npt.NDArray[np.uint8]
_MAX_WARNINGS = 20

_RELEASE_TIMEOUT_S = 10.0
"""Work on a lent picture takes milliseconds; after this long it is taken for hung."""


class Painter(Protocol):
    """Makes the pictures of one source. Owned by the reader thread."""

    @property
    def hops(self) -> tuple[Hop, ...]: ...
    @property
    def count(self) -> int:
        """Pictures until the end, after `open`; 0 for no end."""
        ...

    @property
    def fps(self) -> float:
        """Pictures a second."""
        ...

    @property
    def description(self) -> str:
        """What they are, for people."""
        ...

    def open(self) -> Surface[Pixels]:
        """Make everything that the pictures need, and the surface that every one of them is painted into.

        Raises SourceMissingError or MediaError.
        """
        ...

    def paint(self, index: int) -> None:
        """Paint picture `index`. Raises SourceMissingError or MediaError when this one can't be made."""
        ...

    def close(self) -> None: ...


class PictureSource:
    """Lends a painter's pictures. Implements core.ports.Source over host memory; see there for threads and phases.

    - One frame is lent at a time, always in the same surface: `read` raises PhaseError while it is out.
    - A picture that can't be made is skipped with a warning; its sequence number stays unused, so sequence numbers
      always say which picture it is. A pass without one good picture is an error.
    - A looped source starts again at its first picture; sequence and time go on.
    - `options.start_s` skips pictures; `options.fps` leaves some out, evenly.
    """

    def __init__(self, request: SourceRequest, painter: Painter, where: str) -> None:
        self._request, self._painter, self._where = request, painter, where
        self._pacer = Pacer(request.clock)
        self._surface: Surface[Pixels] | None = None
        self._first = 0
        self._step = 1.0
        self._kept_fps = 0.0
        self._position = 0
        self._failures = 0
        self._painted: int | None = None
        self._last_error: ZhcEdgeError | None = None
        self._is_lent = False
        self._busy: Fence | None = None
        self._warnings: list[str] = []

    @property
    def status(self) -> SourceStatus:
        """Always up."""
        return SourceStatus()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Pictures that were skipped, MAX_WARNINGS of them at most."""
        return tuple(self._warnings)

    def open(self) -> SourceFacts:
        """Open and paint the first picture that can be. Raises SourceMissingError or MediaError; holds nothing then."""
        options, painter = self._request.options, self._painter
        try:
            self._surface = painter.open()
            self._kept_fps = min(options.fps or painter.fps, painter.fps)
            self._step = painter.fps / self._kept_fps
            self._first = int(options.start_s * painter.fps)
            if painter.count and self._first >= painter.count:
                raise MediaError(
                    "it is over before the start that was asked for", where=self._where, fix="lower start_s"
                )
            self.rewind()
            self._paint_next()
        except BaseException:
            self.close()
            raise
        return SourceFacts(
            format=self._surface.format,
            domain=MemoryDomain.HOST,
            fps=self._kept_fps,
            is_live=self._request.is_realtime,
            has_packets=False,
            hops=painter.hops,
            description=f"{self._where}: {painter.description}",
        )

    def read(self, timeout_s: float) -> SurfaceLease[Pixels] | Idle | EndOfStream:
        """The next picture; Idle when it is not due within `timeout_s`. Raises MediaError, PhaseError, and
        PipelineError when somebody does not let go of the last one."""
        if self._is_lent:
            raise PhaseError("the last frame was not given back", where=self._where)
        if self._surface is None or not self._paint_next():
            return EndOfStream()
        media_time_s = self._position / self._kept_fps
        wait_s = self._pacer.wait_s(media_time_s) if self._request.is_realtime else 0.0
        if wait_s > 0:
            time.sleep(min(wait_s, timeout_s))
            if wait_s > timeout_s:
                return Idle()
        info = stamped(self._request, self._position, media_time_s, self._request.clock.wall_ns())
        self._position += 1
        self._painted = None
        self._is_lent = True
        return SurfaceLease(self._surface, info, self._take_back)

    def rewind(self) -> None:
        """Start again at the first picture, sequence 0 and media time 0."""
        self._pacer.reset()
        self._position = self._failures = 0
        self._painted = None

    def close(self) -> None:
        """Let go of everything; a picture that is lent stays as it is."""
        self._surface = None
        self._painted = None
        self._painter.close()

    def _take_back(self, after: Fence | None) -> None:
        """The lease was released; the next picture is painted over its surface once `after` is done."""
        self._busy, self._is_lent = after, False

    def _paint_next(self) -> bool:
        """Paint what is due at `_position`, skipping what can't be; False at the end."""
        while self._painted != self._position:
            index = self._index()
            if index is None and self._failures < self._position:
                return False
            if index is None or (self._failures and self._failures == self._painter.count):
                raise self._none_left()
            self._wait_for_readers()
            try:
                self._painter.paint(index)
            except (MediaError, SourceMissingError) as error:
                self._skip(error)
            else:
                self._painted, self._failures = self._position, 0
        return True

    def _skip(self, error: ZhcEdgeError) -> None:
        self._last_error = error
        self._warn(f"{error.where}: {error.what}; skipped")
        self._failures += 1
        self._position += 1

    def _none_left(self) -> ZhcEdgeError:
        """Every picture of a whole pass failed: of a single one, what was wrong with it."""
        if self._failures == 1 and self._last_error is not None:
            return self._last_error
        what = f"none of its {self._failures} pictures can be read ({self._last_error})"
        return MediaError(what, where=self._where, fix="copy them again")

    def _index(self) -> int | None:
        """Which picture is due; None after the last one."""
        index = self._first + int(self._position * self._step)
        count = self._painter.count
        if not count or index < count:
            return index
        return index % count if self._request.is_looped else None

    def _wait_for_readers(self) -> None:
        if self._busy is not None and not self._busy.wait(_RELEASE_TIMEOUT_S):
            raise PipelineError("work on a lent picture does not end", where=self._where)
        self._busy = None

    def _warn(self, text: str) -> None:
        if text not in self._warnings and len(self._warnings) < _MAX_WARNINGS:
            self._warnings.append(text)
