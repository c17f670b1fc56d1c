"""Image files as a source: one image, a folder of them, or a list, every image a frame."""

from __future__ import annotations

from pathlib import Path

from zhcedge.backends.cpu.picture_source import PictureSource, Pixels
from zhcedge.core.addresses import without_password
from zhcedge.core.errors import PhaseError
from zhcedge.core.geometry import plane_sizes
from zhcedge.core.requests import SourceRequest
from zhcedge.core.types import (
    Agent,
    ColorMatrix,
    Hop,
    ImageFormat,
    MemoryDomain,
    Payload,
    PixelFormat,
    Plane,
    Provenance,
    Surface,
)
from zhcedge.media.images import PictureReader, common_size, list_images

DEFAULT_FPS = 25.0
"""How many images make a second where `options.fps` does not say it: as in other programs that play folders."""


class ImageSource(PictureSource):
    """Plays images of one size: `request.paths`, or what `request.uri` names, in natural order.

    Frame `sequence` is image `sequence % count` of the list: one that can't be read is skipped, with a warning. Images
    of another size than the first make `open` raise a MediaError that names the file and both sizes; where sizes are
    mixed, make a source for each group of media.images.image_groups.
    """

    def __init__(self, request: SourceRequest, device: object) -> None:
        where = f"{request.channel_name}: {without_password(request.uri)}"
        self._images = ImagePainter(request, where)
        super().__init__(request, self._images, where)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The images, after `open`."""
        return self._images.paths


class ImagePainter:
    """Implements picture_source.Painter: reads image files."""

    def __init__(self, request: SourceRequest, where: str) -> None:
        self._request, self._where = request, where
        self.paths: tuple[Path, ...] = ()
        self._reader: PictureReader | None = None

    @property
    def count(self) -> int:
        return len(self.paths)

    @property
    def fps(self) -> float:
        return self._request.options.fps or DEFAULT_FPS

    @property
    def description(self) -> str:
        width, height = self._opened().size
        return f"{self.count} image{'s' if self.count > 1 else ''} of {width}x{height}, decoded on the CPU"

    @property
    def hops(self) -> tuple[Hop, ...]:
        width, height = self._opened().size
        size_bytes = sum(columns * rows for columns, rows in plane_sizes(ImageFormat(width, height)))
        file_bytes = sum(path.stat().st_size for path in self.paths if path.is_file()) // max(self.count, 1)
        host, derived = MemoryDomain.HOST, Provenance.DERIVED
        return (
            Hop(
                "bitstream in",
                Agent.CPU,
                MemoryDomain.STORAGE,
                host,
                Payload.BITSTREAM,
                file_bytes,
                derived,
                "mean size of the files",
            ),
            Hop(
                "decode",
                Agent.CPU,
                host,
                host,
                Payload.PIXELS,
                3 * width * height,
                derived,
                "Pillow's own memory; Python's for WebP, AVIF, JPEG 2000",
            ),
            Hop("convert", Agent.CPU, host, host, Payload.PIXELS, size_bytes, derived, "RGB to NV12"),
        )

    def open(self) -> Surface[Pixels]:
        """Read every header: all images must have one size. Raises SourceMissingError or MediaError."""
        self.paths = self._request.paths or list_images(Path(self._request.uri), self._where)
        # Those that can't be read are skipped when their turn comes.
        size = common_size(self.paths, self._name)
        self._reader = PictureReader(*size)
        image = ImageFormat(*size, PixelFormat.NV12, matrix=ColorMatrix.BT601, is_full_range=True)
        planes = tuple(
            Plane(buffer, columns, rows, columns)
            for buffer, (columns, rows) in zip(
                (self._reader.luma, self._reader.chroma), plane_sizes(image), strict=True
            )
        )
        return Surface(planes, image, MemoryDomain.HOST)

    def paint(self, index: int) -> None:
        path = self.paths[index]
        self._opened().read(path, self._name(path))

    def close(self) -> None:
        self._reader = None

    def _name(self, path: Path) -> str:
        return f"{self._request.channel_name}: {path}"

    def _opened(self) -> PictureReader:
        if self._reader is None:
            raise PhaseError("the source is not open", where=self._where)
        return self._reader
