"""Which picture format a source lends, and the conversion of frames that come in another one.

4:2:0 pictures of 8 bits, upright and of the opened size, pass untouched. Anything else goes through one
libavfilter graph (rotate, scale, convert), whose buffers come from its own pool and are used again.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, cast

from zhcedge.core.errors import MediaError
from zhcedge.core.types import ColorMatrix, ImageFormat, PixelFormat
from zhcedge.media._vendor import av

if TYPE_CHECKING:
    from av.filter.context import FilterContext
    from av.filter.graph import Graph
    from av.video.frame import VideoFrame

_NATIVE = {"yuv420p": PixelFormat.I420, "yuvj420p": PixelFormat.I420, "nv12": PixelFormat.NV12}
_FILTER_FORMAT = {PixelFormat.I420: "yuv420p", PixelFormat.NV12: "nv12"}

# AVColorSpace (ITU-T H.273 MatrixCoefficients). BT.2020 and SMPTE 240M have no entry of their own in
# ColorMatrix; their coefficients lie nearest to BT.709.
_SPACE_RGB = 0
_MATRICES = {
    1: ColorMatrix.BT709,
    4: ColorMatrix.BT601,  # FCC
    5: ColorMatrix.BT601,  # BT.470 BG
    6: ColorMatrix.BT601,  # SMPTE 170M
    7: ColorMatrix.BT709,  # SMPTE 240M
    9: ColorMatrix.BT709,  # BT.2020, non-constant luminance
    10: ColorMatrix.BT709,  # BT.2020, constant luminance
}
_EXACT_SPACES = frozenset({1, 5, 6})
_RANGE_FULL = 2  # AVCOL_RANGE_JPEG
_HD_LINES = 720
"""Where nothing is declared, pictures from this height on are taken for BT.709, as players do."""


@dataclass(frozen=True)
class DecodedForm:
    """What a decoded frame is before any conversion. `turn_deg` is how far it must be turned clockwise."""

    width_px: int
    height_px: int
    pixel_format: str
    matrix: ColorMatrix
    is_full_range: bool
    is_rgb: bool
    turn_deg: int

    def __str__(self) -> str:
        turned = f", turned by {self.turn_deg} degrees" if self.turn_deg else ""
        return f"{self.width_px}x{self.height_px} {self.pixel_format}{turned}"


def decoded_form(frame: VideoFrame) -> DecodedForm:
    """Read a frame's form. An undeclared matrix is BT.601 below 720 lines and BT.709 from there on."""
    name = frame.format.name
    undeclared = ColorMatrix.BT709 if frame.height >= _HD_LINES else ColorMatrix.BT601
    is_rgb = frame.colorspace == _SPACE_RGB or frame.format.is_rgb
    return DecodedForm(
        width_px=frame.width,
        height_px=frame.height,
        pixel_format=name,
        matrix=_MATRICES.get(frame.colorspace, undeclared),
        is_full_range=frame.color_range == _RANGE_FULL or is_rgb,
        is_rgb=is_rgb,
        # FFmpeg counts counter-clockwise; angles that are no quarter turns can't be shown upright anyway.
        turn_deg=-frame.rotation % 360 if frame.rotation % 90 == 0 else 0,
    )


def lent_format(form: DecodedForm) -> ImageFormat:
    """The format in which a source lends frames of this form: I420 and NV12 as they are, all others as NV12."""
    is_sideways = form.turn_deg in (90, 270)
    return ImageFormat(
        width_px=form.height_px if is_sideways else form.width_px,
        height_px=form.width_px if is_sideways else form.height_px,
        pixel_format=_NATIVE.get(form.pixel_format, PixelFormat.NV12),
        matrix=form.matrix,
        is_full_range=form.is_full_range and not form.is_rgb,
    )


def matrix_note(frame: VideoFrame) -> str:
    """A warning where a declared matrix is only approximated; empty otherwise."""
    if frame.colorspace in _MATRICES and frame.colorspace not in _EXACT_SPACES:
        return f"colour matrix {frame.colorspace} (H.273) is read as {_MATRICES[frame.colorspace].value}"
    return ""


class Converter:
    """Brings every frame of one source into the format that it lends. Owned by the reader thread."""

    def __init__(self, target: ImageFormat, where: str) -> None:
        self._target = target
        self._where = where
        self._form: DecodedForm | None = None
        self._graph: tuple[Graph, FilterContext, FilterContext] | None = None

    @property
    def target(self) -> ImageFormat:
        """What every frame comes out as."""
        return self._target

    def needs(self, form: DecodedForm) -> bool:
        """Whether frames of this form are copied on their way."""
        is_native = form.pixel_format in _NATIVE and not form.turn_deg and not form.is_rgb
        return not is_native or lent_format(form) != self._target

    def convert(self, frame: VideoFrame, form: DecodedForm) -> VideoFrame:
        """`frame` itself when it fits, else a converted one in host memory. Raises MediaError."""
        if not self.needs(form) and all(plane.line_size > 0 for plane in frame.planes):
            return frame
        try:
            if self._graph is None or self._form != form:
                self._graph = _build(form, self._target)
                self._form = form
            _, entry, exit_ = self._graph
            entry.push(frame)
            return cast("VideoFrame", exit_.pull())
        except (av.error.FFmpegError, ValueError) as error:  # ValueError: PyAV refuses an unknown format
            raise MediaError(
                f"a picture of {form} can't be converted: {error}",
                where=self._where,
                fix="convert the file to MP4 with H.264 and 4:2:0 pictures",
            ) from error


def _build(form: DecodedForm, target: ImageFormat) -> tuple[Graph, FilterContext, FilterContext]:
    graph = av.filter.Graph()
    graph.threads = 1  # the other cores belong to inference
    space = "gbr" if form.is_rgb else _space(form.matrix)
    entry = graph.add(
        "buffer",
        f"video_size={form.width_px}x{form.height_px}:pix_fmt={form.pixel_format}:time_base={Fraction(1, 90000)}"
        f":pixel_aspect=1/1:colorspace={space}:range={_range(form.is_full_range)}",
    )
    turns = {90: [("transpose", "clock")], 180: [("hflip", ""), ("vflip", "")], 270: [("transpose", "cclock")]}
    chain = [
        *turns.get(form.turn_deg, []),
        (
            "scale",
            f"{target.width_px}:{target.height_px}:flags=bilinear"
            f":out_color_matrix={target.matrix.value}:out_range={_range(target.is_full_range)}",
        ),
        ("format", _FILTER_FORMAT[target.pixel_format]),
    ]
    last = entry
    for name, arguments in chain:
        node = graph.add(name, arguments) if arguments else graph.add(name)
        last.link_to(node)
        last = node
    exit_ = graph.add("buffersink")
    last.link_to(exit_)
    graph.configure()
    return graph, entry, exit_


def _space(matrix: ColorMatrix) -> str:
    return "bt709" if matrix is ColorMatrix.BT709 else "smpte170m"


def _range(is_full: bool) -> str:
    return "pc" if is_full else "tv"
