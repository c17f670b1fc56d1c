"""What a session needs of the decoder library, by shape: PyNvVideoCodec in the field, a simulator in tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class DecoderCaps:
    """What NVDEC of one GPU can do with 4:2:0 video of one codec and depth. Sizes are width and height in pixels."""

    is_supported: bool
    least_px: tuple[int, int]
    most_px: tuple[int, int]
    most_macroblocks: int


class Picture(Protocol):
    """One decoded picture in the decoder's own memory, valid until the decoder's next call."""

    @property
    def ticks(self) -> int | None:
        """Timestamp of the packet that it came from."""
        ...

    @property
    def address(self) -> int:
        """Where the picture begins: its luma."""
        ...

    @property
    def plane_addresses(self) -> tuple[int, int]:
        """Luma and interleaved chroma."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows of both planes together, then columns."""
        ...


class Decoder(Protocol):
    """One NVDEC session that writes into device memory. Owned by one thread. Raises one of the library's errors."""

    def decode(self, address: int, size_bytes: int, ticks: int | None) -> Sequence[Picture]:
        """Pictures, in presentation order, that come out when `size_bytes` at a host address go in.

        All pictures of earlier calls are overwritten.
        """
        ...

    def keep_size(self, width_px: int, height_px: int) -> None:
        """Pictures come in this size, scaled by NVDEC: before the first packet of all, or of another resolution.

        Frees all pictures given out so far; the next ones are allocated anew.
        """
        ...

    def flush(self) -> Sequence[Picture]:
        """The pictures held back; the session can go on with a key frame afterwards."""
        ...


class DecoderLibrary(Protocol):
    """Makes decoders."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What its calls raise."""
        ...

    def codecs(self) -> tuple[str, ...]:
        """FFmpeg's names of the codecs that are decoded here."""
        ...

    def caps(self, gpu_index: int, codec: str, bit_depth: int) -> DecoderCaps:
        """Ask the driver. Raises one of `errors`."""
        ...

    def create(
        self,
        codec: str,
        gpu_index: int,
        context: int,
        stream: int,
        max_width_px: int,
        max_height_px: int,
        is_low_latency: bool,
    ) -> Decoder:
        """Open a session. Raises one of `errors`.

        Args:
            codec: one of `codecs()`.
            context, stream: handles. The stream must not be the null stream: the decoder waits for it on every
                picture, and waiting for the null stream would wait for everything.
            max_width_px, max_height_px: coded size up to which the session follows a change of resolution.
            is_low_latency: give a picture out as soon as its packet is in. For streams without reordering.
        """
        ...
