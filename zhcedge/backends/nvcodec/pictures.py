"""How NVDEC's pictures lie in device memory, and which copies bring them there."""

from __future__ import annotations

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


def surface_at(addresses: tuple[int, int], format: ImageFormat) -> Surface[int]:
    """A picture whose luma and chroma lie at `addresses`."""
    width_bytes, pitch_bytes, chroma_bytes = _row_bytes(format)
    planes = (
        Plane(addresses[0], width_bytes, format.height_px, pitch_bytes),
        Plane(addresses[1], chroma_bytes, (format.height_px + 1) // 2, pitch_bytes),
    )
    return Surface(planes, format, MemoryDomain.DEVICE)


def _row_bytes(format: ImageFormat) -> tuple[int, int, int]:
    """(luma bytes, pitch, chroma bytes) of a row. The decoder's rows are tight, an odd width rounded up to even."""
    sample_bytes = 2 if format.pixel_format is PixelFormat.P010 else 1
    even_px = format.width_px + format.width_px % 2
    return format.width_px * sample_bytes, even_px * sample_bytes, even_px * sample_bytes


def shape_of(format: ImageFormat) -> tuple[int, int]:
    """Shape that PyNvVideoCodec gives to a picture: rows of both planes, columns."""
    return format.height_px + (format.height_px + 1) // 2, format.width_px + format.width_px % 2


def hops_of(packet_bytes: int, format: ImageFormat, version: str) -> tuple[Hop, ...]:
    """The copies of every frame; `version` of PyNvVideoCodec, `packet_bytes` on average."""
    rows, columns = shape_of(format)
    picture_bytes = rows * columns * (2 if format.pixel_format is PixelFormat.P010 else 1)
    host, device = MemoryDomain.HOST, MemoryDomain.DEVICE
    bitstream, pixels = Payload.BITSTREAM, Payload.PIXELS
    derived, declared = Provenance.DERIVED, Provenance.DECLARED
    library = f"PyNvVideoCodec {version}"
    return (
        Hop(
            "bitstream in", Agent.CPU, MemoryDomain.STORAGE, host, bitstream, packet_bytes, derived, "size over frames"
        ),
        Hop("bitstream to start codes", Agent.CPU, host, host, bitstream, packet_bytes, derived, "Annex B for NVDEC"),
        Hop("bitstream to NVDEC", Agent.NVDEC, host, device, bitstream, packet_bytes, derived, "cuvidDecodePicture"),
        Hop(
            "decode",
            Agent.NVDEC,
            device,
            device,
            pixels,
            picture_bytes,
            derived,
            "into NVDEC's own block-linear surface",
        ),
        Hop(
            "decoder's pool",
            Agent.COPY_ENGINE,
            device,
            device,
            pixels,
            picture_bytes,
            declared,
            f"{library} copies out of the mapped surface (cuMemcpy2DAsync of NvDecoder::HandlePictureDisplay)",
        ),
    )
