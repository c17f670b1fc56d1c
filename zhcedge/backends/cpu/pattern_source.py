"""`pattern:` addresses as a source: pictures with known contents, drawn by media/pattern.py."""

from __future__ import annotations

from zhcedge.backends.cpu.picture_source import PictureSource, Pixels
from zhcedge.core.errors import PhaseError
from zhcedge.core.geometry import plane_sizes
from zhcedge.core.requests import SourceRequest
from zhcedge.core.types import (
    Agent,
    Hop,
    ImageFormat,
    MemoryDomain,
    Payload,
    PixelFormat,
    Plane,
    Provenance,
    Surface,
)
from zhcedge.media.pattern import Pattern, PatternCanvas, parse_pattern


class PatternSource(PictureSource):
    """Shows a pattern. Frame `sequence` of the source is frame `sequence` of the pattern, modulo its `frames` where it
    is looped; with `options.fps` and `options.start_s`, the one that is due then."""

    def __init__(self, request: SourceRequest, device: object) -> None:
        where = f"{request.channel_name}: {request.uri}"
        super().__init__(request, PatternPainter(request, where), where)


class PatternPainter:
    """Implements picture_source.Painter."""

    def __init__(self, request: SourceRequest, where: str) -> None:
        self._request, self._where = request, where
        self._opened: tuple[Pattern, PatternCanvas] | None = None

    @property
    def pattern(self) -> Pattern:
        """What is shown, after `open`."""
        if self._opened is None:
            raise PhaseError("the source is not open", where=self._where)
        return self._opened[0]

    @property
    def count(self) -> int:
        return self.pattern.spec.frames

    @property
    def fps(self) -> float:
        return self.pattern.spec.fps

    @property
    def description(self) -> str:
        spec = self.pattern.spec
        return f"{spec.width_px}x{spec.height_px}, {spec.objects} objects, {spec.fps:.3g} fps, drawn"

    @property
    def hops(self) -> tuple[Hop, ...]:
        spec, host = self.pattern.spec, MemoryDomain.HOST
        size_bytes = sum(columns * rows for columns, rows in plane_sizes(ImageFormat(spec.width_px, spec.height_px)))
        reason = "at most; only what moves is drawn"
        return (Hop("draw", Agent.CPU, host, host, Payload.PIXELS, size_bytes, Provenance.DERIVED, reason),)

    def open(self) -> Surface[Pixels]:
        """Raises SourceMissingError for an unknown pattern, MediaError for one that can't be."""
        pattern = Pattern(parse_pattern(self._request.uri, self._where), self._request.channel)
        canvas = PatternCanvas(pattern)
        self._opened = pattern, canvas
        image = ImageFormat(pattern.spec.width_px, pattern.spec.height_px, PixelFormat.NV12)
        planes = tuple(
            Plane(buffer, columns, rows, columns)
            for buffer, (columns, rows) in zip((canvas.luma, canvas.chroma), plane_sizes(image), strict=True)
        )
        return Surface(planes, image, MemoryDomain.HOST)

    def paint(self, index: int) -> None:
        if self._opened is not None:
            self._opened[1].draw(index)

    def close(self) -> None:
        self._opened = None
