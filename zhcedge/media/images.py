"""Image files: which there are in a folder, how large they are, and their pixels as NV12. Home of Pillow (HPND).

A picture is shown as a viewer shows it: turned as its EXIF orientation says, transparent parts over white, CMYK by
Pillow's plain formula (profiles are not applied), 16 bits a sample by their upper half. Of several pages or frames in
one file the first counts. Samples of 32 bits have no agreed brightness, so they are refused.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from zhcedge.config.channel import IMAGE_SUFFIXES
from zhcedge.core.errors import MediaError, SourceMissingError
from zhcedge.core.geometry import MAX_PICTURE_PX

Pixels = npt.NDArray[np.uint8]

MAX_SIDE_PX = 16_384
"""Two rows of a longer one would not fit into a strip."""

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "TIFF", "PPM", "AVIF", "JPEG2000", "TGA")
"""What Pillow may try. Left to itself it tries all it knows, and hands what looks like PostScript to Ghostscript."""

_ORIENTATION = 0x0112  # EXIF 2.32, 4.6.4
_SIDEWAYS = (5, 6, 7, 8)
_STRIP_BYTES = 16_383  # of one plane: what a strip needs at a time, bytes and numpy's temporaries, is ten times that
_CONVERT = "convert it to PNG or JPEG with 8 bits a sample"


def natural_key(name: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Sorts "frame2" before "frame10", and upper case beside lower case; equal ones by their very letters."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name.casefold())
    return tuple((0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part) for part in parts), name


def list_images(path: Path, where: str) -> tuple[Path, ...]:
    """The image that `path` is, or those in the folder that it is, in natural order of their names.

    Hidden files and folders within the folder are left out. Raises SourceMissingError when there is no such thing,
    MediaError when a folder holds no image.
    """
    try:
        if not path.is_dir():
            path.stat()
            return (path,)
        found = [entry for entry in path.iterdir() if entry.suffix.lower() in IMAGE_SUFFIXES and entry.is_file()]
    except PermissionError as error:
        raise SourceMissingError("may not be read", where=where, fix="check the permissions") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise SourceMissingError("no such file or folder", where=where, fix="check the path") from error
    images = [entry for entry in found if not entry.name.startswith(".")]
    if not images:
        raise MediaError("the folder holds no image", where=where, fix="name a folder of JPEG, PNG or other images")
    return tuple(sorted(images, key=lambda entry: natural_key(entry.name)))


def image_size(path: Path, where: str) -> tuple[int, int]:
    """Width and height of an image as it is shown, from its header alone. Raises SourceMissingError or MediaError."""
    with _opened(path, where) as image:
        width, height = image.size
        # Pillow turns TIFFs by itself, and says their upright size.
        is_sideways = image.format != "TIFF" and _header_orientation(image) in _SIDEWAYS
        return (height, width) if is_sideways else (width, height)


def common_size(paths: Sequence[Path], name: Callable[[Path], str]) -> tuple[int, int]:
    """Width and height that all images have, from their headers; images that can't be read are left out.

    Args:
        name: of an image in messages.

    Raises MediaError for images of different sizes, and the first image's error when none can be read.
    """
    size: tuple[int, int] | None = None
    first_error: MediaError | SourceMissingError | None = None
    for path in paths:
        try:
            found = image_size(path, name(path))
        except (MediaError, SourceMissingError) as error:
            first_error = first_error or error
            continue
        if size is not None and found != size:
            raise MediaError(
                f"is {found[0]}x{found[1]}, while the images before it are {size[0]}x{size[1]}",
                where=name(path),
                fix="put images of each size into a folder of their own",
            )
        size = found
    if size is None:
        raise first_error or MediaError("there is no image", where="images")
    return size


def image_groups(paths: Sequence[Path]) -> list[tuple[tuple[int, int], list[Path]]]:
    """Images by size (width, height), in order of their first one. One that can't be read makes MediaError or
    SourceMissingError: ask `image_size` first where the others shall go on."""
    groups: dict[tuple[int, int], list[Path]] = {}
    for path in paths:
        groups.setdefault(image_size(path, str(path)), []).append(path)
    return list(groups.items())


class PictureReader:
    """Reads pictures of one size into one pair of NV12 planes, full range, BT.601: what JPEG itself uses.

    All numpy memory is made here; Pillow makes and frees its own for every picture, outside of Python but for WebP,
    AVIF and JPEG 2000, whose files or pixels it handles as one Python object. One thread.

    Attributes:
        luma: [height, width].
        chroma: [ceil(height / 2), 2 * ceil(width / 2)], U and V by turns; left-sited as in core/geometry.py.
    """

    def __init__(self, width_px: int, height_px: int) -> None:
        self.size = (width_px, height_px)
        self.luma: Pixels = np.zeros((height_px, width_px), np.uint8)
        self.chroma: Pixels = np.zeros(((height_px + 1) // 2, 2 * ((width_px + 1) // 2)), np.uint8)

    def read(self, path: Path, where: str) -> None:
        """Fill the planes from a file. Raises SourceMissingError or MediaError; the planes may then be half written."""
        with _opened(path, where) as image:
            upright = _turned(_shown(image, where))
            if upright.size != self.size:
                raise MediaError(_size_clash(upright.size, self.size), where=where, fix="sort the images by size")
            self._fill(upright)

    def _fill(self, image: Image.Image) -> None:
        width, height = self.size
        rows = max(2, _STRIP_BYTES // width // 2 * 2)
        for top in range(0, height, rows):
            bottom = min(top + rows, height)
            strip = image.crop((0, top, width, bottom)).convert("YCbCr")
            luma, *chroma = (
                np.frombuffer(plane.tobytes(), np.uint8).reshape(bottom - top, width) for plane in strip.split()
            )
            np.copyto(self.luma[top:bottom], luma)
            for first, plane in enumerate(chroma):
                self.chroma[top // 2 : (bottom + 1) // 2, first::2] = _halved(plane)


def _halved(plane: Pixels) -> Pixels:
    """Chroma at half the size: rows by pairs, columns by 1-2-1 around every even one; edges are repeated."""
    upper, lower = plane[0::2].astype(np.uint16), plane[1::2]
    if len(lower) == len(upper):
        upper += lower
    else:
        upper[:-1] += lower
        upper[-1] *= 2
    result = upper[:, 0::2] * 2
    result[:, 1:] += upper[:, 1:-1:2]
    result[:, 0] += upper[:, 0]
    right = upper[:, 1::2]
    result[:, : right.shape[1]] += right
    if right.shape[1] < result.shape[1]:
        result[:, -1] += upper[:, -1]
    return ((result + 4) >> 3).astype(np.uint8)


@contextmanager
def _opened(path: Path, where: str) -> Iterator[Image.Image]:
    """An image whose size is known and sane; no pixel was decoded. Errors of Pillow inside become ours."""
    # Its remarks about odd files would end up on the error stream; what matters is raised.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    Image.init()
    try:
        if not path.is_file():
            raise _not_a_file(path, where)
        with Image.open(path, formats=[name for name in _FORMATS if name in Image.OPEN]) as image:
            width, height = image.size
            if max(width, height) > MAX_SIDE_PX or width * height > MAX_PICTURE_PX:
                raise _too_large(f"{width}x{height} pixels", where)
            yield image
    except MediaError:
        raise
    except Image.DecompressionBombError as error:
        raise _too_large("far too many pixels", where) from error
    except UnidentifiedImageError as error:
        raise MediaError("is not an image, or its header is damaged", where=where, fix="copy the file again") from error
    except PermissionError as error:
        raise SourceMissingError("may not be read", where=where, fix="check its permissions") from error
    except FileNotFoundError as error:
        raise SourceMissingError("no such file", where=where, fix="check the path") from error
    except MemoryError as error:
        raise MediaError("there is no memory for the picture", where=where, fix="make it smaller") from error
    # Pillow's parsers raise whatever a damaged file makes them trip over: ValueError, struct.error, KeyError, ...
    except Exception as error:
        text = str(error).partition("\n")[0] or type(error).__name__
        raise MediaError(f"the image is damaged: {text}", where=where, fix="copy the file again") from error


def _not_a_file(path: Path, where: str) -> Exception:
    if os.path.lexists(path):
        return MediaError("is not a plain file", where=where, fix="name an image file")
    return FileNotFoundError()


def _too_large(what: str, where: str) -> MediaError:
    limit = f"at most {MAX_PICTURE_PX // 2**20} Mi pixels and {MAX_SIDE_PX} a side"
    return MediaError(
        f"the picture declares {what}, more than can be taken ({limit})", where=where, fix="make it smaller"
    )


def _size_clash(found: tuple[int, int], wanted: tuple[int, int]) -> str:
    return f"the picture is {found[0]}x{found[1]}, and those before it {wanted[0]}x{wanted[1]}"


def _shown(image: Image.Image, where: str) -> Image.Image:
    """Decode to 8-bit RGB (or YCbCr's equal), transparency over white, not yet turned."""
    image.load()
    if image.mode in ("F", "I") and not (image.mode == "I" and image.format == "PNG"):
        raise MediaError("32-bit samples have no agreed brightness", where=where, fix=_CONVERT)
    if image.mode == "I" or image.mode.startswith("I;16"):
        # Pillow takes the function apart into a factor that its C code applies; a table would be a Python list.
        grey = image.convert("I").point(lambda sample: sample * (1 / 256))
        return _keeping_exif(grey.convert("L").convert("RGB"), image)
    if image.has_transparency_data:
        clear = image.convert("RGBA")
        white = Image.new("RGBA", clear.size, "white")
        return _keeping_exif(Image.alpha_composite(white, clear).convert("RGB"), image)
    return image if image.mode == "RGB" else _keeping_exif(image.convert("RGB"), image)


def _keeping_exif(made: Image.Image, origin: Image.Image) -> Image.Image:
    """`made` with the orientation of the image that it was made from."""
    made.getexif()[_ORIENTATION] = _orientation(origin)
    return made


def _turned(image: Image.Image) -> Image.Image:
    if _orientation(image) == 1:
        return image
    return ImageOps.exif_transpose(image)


def _orientation(image: Image.Image) -> int:
    """1 to 8; 1 where nothing sensible is said."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001  a damaged EXIF block is no reason to refuse the picture
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _header_orientation(image: Image.Image) -> int:
    """The same before the pixels are decoded: PNG's own method would decode them all to look behind them."""
    try:
        value = Image.Image.getexif(image).get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001  as above
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1
