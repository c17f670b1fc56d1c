"""The descriptor of one frame, as kernels read it: where its picture and results are, and how it maps to the input.

A program writes one descriptor a frame into its table before each launch; the captured graph copies the table to the
device and every kernel reads addresses from it. The layout is `struct Frame` of kernels/common.cuh.
"""

from __future__ import annotations

import struct

from zhcedge.core.errors import PipelineError
from zhcedge.core.geometry import Letterbox, plane_sizes
from zhcedge.core.types import ColorMatrix, ImageFormat, Layout, MemoryDomain, PixelFormat, Plane, Surface

FRAME = struct.Struct("<5Q14i")
"""3 plane addresses, result and mask address, 3 pitches, the mask's pitch, width, height, format, is_bt709,
is_full_range, letterbox width, height, left, top, is_drawn."""

FORMAT_NUMBERS = {PixelFormat.NV12: 0, PixelFormat.I420: 1, PixelFormat.P010: 2, PixelFormat.RGB24: 3}

MASK_ALIGNMENT = 4
"""Bytes, of a mask's address and pitch: kernels/mask.cu reads four blocks at once."""

GPU_DOMAINS = (MemoryDomain.DEVICE, MemoryDomain.UNIFIED)


def check_surface(surface: Surface[int], what: str) -> None:
    """Raise PipelineError when kernels can't read a surface: wrong memory, layout, planes, or a null address."""
    image = surface.format
    if surface.domain not in GPU_DOMAINS or image.layout is not Layout.PITCH_LINEAR:
        raise PipelineError(
            f"the {what} is {image.layout.value} {surface.domain.value} memory, not pitch-linear device memory",
            where="cuda",
            fix="choose a source that decodes on the GPU",
        )
    sizes = tuple((plane.width_bytes, plane.rows) for plane in surface.planes)
    if sizes != plane_sizes(image):
        raise PipelineError(f"the {what}'s planes are {sizes}, not {plane_sizes(image)}", where="cuda")
    for plane in surface.planes:
        if not plane.buffer or plane.pitch_bytes < plane.width_bytes:
            raise PipelineError(f"a plane of the {what} has no memory or overlapping rows", where="cuda")


def check_mask(mask: Plane[int], image: ImageFormat) -> None:
    """Raise PipelineError when a mask does not fit a picture: the kernel would leave some of it uncovered."""
    wanted = (image.width_px + 1) // 2, (image.height_px + 1) // 2
    if (mask.width_bytes, mask.rows) != wanted or mask.pitch_bytes % MASK_ALIGNMENT or mask.buffer % MASK_ALIGNMENT:
        raise PipelineError(f"a mask of {mask.width_bytes} x {mask.rows} blocks does not fit {wanted}", where="cuda")


def pack(
    surface: Surface[int],
    results_address: int = 0,
    input_size_px: tuple[int, int] = (1, 1),
    mask: Plane[int] | None = None,
    is_drawn: bool = True,
) -> bytes:
    """The descriptor of a frame. `input_size_px` is (width, height) of the model's input; `is_drawn` as in FrameSlot.

    Raises PipelineError for a mask of another size.
    """
    image = surface.format
    box = Letterbox.fit(image.width_px, image.height_px, *input_size_px)
    addresses = [0, 0, 0]
    pitches = [0, 0, 0]
    for index, plane in enumerate(surface.planes):
        addresses[index], pitches[index] = plane.buffer, plane.pitch_bytes
    if mask is not None:
        check_mask(mask, image)
    return FRAME.pack(
        *addresses,
        results_address,
        mask.buffer if mask else 0,
        *pitches,
        mask.pitch_bytes if mask else 0,
        image.width_px,
        image.height_px,
        FORMAT_NUMBERS[image.pixel_format],
        image.matrix is ColorMatrix.BT709,
        image.is_full_range,
        box.width_px,
        box.height_px,
        box.left_px,
        box.top_px,
        is_drawn,
    )
