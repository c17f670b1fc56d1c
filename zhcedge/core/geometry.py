"""Geometry: the planes of a picture, and how one of any size maps into a model's input and boxes back again.

Every backend uses these numbers, so that a kernel and its numpy twin sample the same places. Conventions (the
usual "half-pixel" ones, as in ONNX Resize `half_pixel` and OpenCV's INTER_LINEAR):

- the centre of input pixel i lies at source position (i - left + 0.5) * scale_x - 0.5, clamped to the picture;
- box edges are continuous coordinates: x_source = (x_input - left) * scale_x;
- chroma of 4:2:0 video is left-sited (the default of H.264 and H.265, chroma_sample_loc_type 0): chroma column
  c lies at luma column 2c, chroma row r between luma rows 2r and 2r + 1, i.e. at luma row 2r + 0.5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from zhcedge.core.errors import PipelineError
from zhcedge.core.types import ImageFormat, PixelFormat

MAX_PICTURE_PX = 64 * 1024 * 1024
"""Largest picture that is taken from anybody: 8192 x 8192, in any shape."""


def plane_sizes(image: ImageFormat) -> tuple[tuple[int, int], ...]:
    """(width_bytes, rows) of each plane. Chroma of an odd-sized picture is rounded up."""
    width, height = image.width_px, image.height_px
    chroma_width, chroma_rows = (width + 1) // 2, (height + 1) // 2
    if image.pixel_format is PixelFormat.NV12:
        return (width, height), (2 * chroma_width, chroma_rows)
    if image.pixel_format is PixelFormat.P010:
        return (2 * width, height), (4 * chroma_width, chroma_rows)
    if image.pixel_format is PixelFormat.I420:
        return (width, height), (chroma_width, chroma_rows), (chroma_width, chroma_rows)
    return ((3 * width, height),)


def part_format(image: ImageFormat, left_px: int, top_px: int, width_px: int, height_px: int) -> ImageFormat:
    """The format of a part of an NV12 picture. Raises PipelineError when it is not inside or its offsets are odd."""
    is_inside = (
        0 <= left_px < left_px + width_px <= image.width_px and 0 <= top_px < top_px + height_px <= image.height_px
    )
    if image.pixel_format is not PixelFormat.NV12 or not is_inside or left_px % 2 or top_px % 2:
        raise PipelineError(
            f"{width_px}x{height_px} pixels at {left_px}, {top_px} are no part of {image.pixel_format.value} of "
            f"{image.width_px}x{image.height_px}"
        )
    return replace(image, width_px=width_px, height_px=height_px)


def covers(whole: ImageFormat, part: ImageFormat) -> bool:
    """Whether what is ready for pictures of one format can take those of another: no larger, of the same colours."""
    fits = part.width_px <= whole.width_px and part.height_px <= whole.height_px
    return fits and replace(part, width_px=whole.width_px, height_px=whole.height_px) == whole


@dataclass(frozen=True)
class Letterbox:
    """A source picture scaled to fit inside a target, centred, aspect kept, borders padded. All in pixels.

    Attributes:
        width_px, height_px: size of the scaled picture inside the target, at least 1.
        left_px, top_px: its offset in the target.
        scale_x, scale_y: source pixels per target pixel, exact per axis (they differ by rounding only).
    """

    source_width_px: int
    source_height_px: int
    target_width_px: int
    target_height_px: int
    width_px: int
    height_px: int
    left_px: int
    top_px: int

    @classmethod
    def fit(cls, source_width_px: int, source_height_px: int, target_width_px: int, target_height_px: int) -> Letterbox:
        """The letterbox of a source in a target. Raises ValueError for a size below 1."""
        if min(source_width_px, source_height_px, target_width_px, target_height_px) < 1:
            raise ValueError("sizes must be at least 1 pixel")
        # Integer arithmetic: rounds halves up, and never depends on a float's last bit.
        if target_width_px * source_height_px <= target_height_px * source_width_px:
            width = target_width_px
            height = (2 * source_height_px * target_width_px + source_width_px) // (2 * source_width_px)
        else:
            height = target_height_px
            width = (2 * source_width_px * target_height_px + source_height_px) // (2 * source_height_px)
        width = min(max(width, 1), target_width_px)
        height = min(max(height, 1), target_height_px)
        return cls(
            source_width_px,
            source_height_px,
            target_width_px,
            target_height_px,
            width,
            height,
            (target_width_px - width) // 2,
            (target_height_px - height) // 2,
        )

    @property
    def scale_x(self) -> float:
        return self.source_width_px / self.width_px

    @property
    def scale_y(self) -> float:
        return self.source_height_px / self.height_px
