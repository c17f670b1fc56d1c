"""Image files: order in a folder, size from the header, and the right colours whatever the file holds."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.contract.test_source import ManualClock
from zhcedge.backends.cpu.arena import CpuArena
from zhcedge.backends.cpu.image_source import ImageSource
from zhcedge.backends.cpu.letterbox import PictureLetterbox
from zhcedge.core.errors import MediaError, SourceMissingError
from zhcedge.core.geometry import MAX_PICTURE_PX
from zhcedge.core.ports import EndOfStream, Idle
from zhcedge.core.requests import SourceOptions, SourceRequest
from zhcedge.core.types import ColorMatrix, ImageFormat, MemoryDomain, PixelFormat, Plane, Surface
from zhcedge.media.images import (
    PictureReader,
    image_groups,
    image_size,
    list_images,
    natural_key,
)
from zhcedge.media.pattern import pattern_facts

Bytes = npt.NDArray[np.uint8]
WIDTH, HEIGHT = 96, 64
CORNERS = {"red": (230, 40, 30), "green": (30, 200, 60), "blue": (40, 60, 220), "grey": (128, 128, 128)}


def quarters() -> Bytes:
    """Red, green / blue, grey."""
    picture = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    picture[: HEIGHT // 2, : WIDTH // 2], picture[: HEIGHT // 2, WIDTH // 2 :] = CORNERS["red"], CORNERS["green"]
    picture[HEIGHT // 2 :, : WIDTH // 2], picture[HEIGHT // 2 :, WIDTH // 2 :] = CORNERS["blue"], CORNERS["grey"]
    return picture


def rgb_of(reader: PictureReader) -> npt.NDArray[np.float32]:
    """The picture as the model sees it: [height, width, 3] on 0..255, through the cpu letterbox at scale 1."""
    width, height = reader.size
    image = ImageFormat(width, height, PixelFormat.NV12, matrix=ColorMatrix.BT601, is_full_range=True)
    side = -(-max(width, height) // 32) * 32
    arena, facts = CpuArena(), pattern_facts(side)
    surface = arena.surface(image, "test")
    for plane, pixels in zip(surface.planes, (reader.luma, reader.chroma), strict=True):
        plane.buffer[: plane.rows, : plane.width_bytes] = pixels
    letterbox = PictureLetterbox(image, facts, arena, "test")
    tensor = np.zeros((3, side, side), np.float32)
    letterbox(surface, tensor)
    box = letterbox.box
    inner = tensor[:, box.top_px : box.top_px + box.height_px, box.left_px : box.left_px + box.width_px]
    return inner.transpose(1, 2, 0) / facts.scale


def read(path: Path) -> PictureReader:
    reader = PictureReader(*image_size(path, "test"))
    reader.read(path, "test")
    return reader


def corner_colours(picture: npt.NDArray[np.float32]) -> list[list[int]]:
    """Colours of the four quarters' middles, row by row."""
    height, width = picture.shape[:2]
    points = [(y, x) for y in (height // 4, 3 * height // 4) for x in (width // 4, 3 * width // 4)]
    return [picture[point].round().astype(int).tolist() for point in points]


def assert_quarters(picture: npt.NDArray[np.float32], names: str = "red green blue grey", tolerance: int = 4) -> None:
    expected = [CORNERS[name] for name in names.split()]
    assert np.abs(np.array(corner_colours(picture)) - expected).max() <= tolerance, corner_colours(picture)


# -- formats -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "ppm", "webp", "tga", "jpg", "jp2", "avif"])
def test_the_colours_of_every_format_come_out_right(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"picture.{suffix}"
    options: dict[str, object] = {"quality": 95} if suffix in ("jpg", "webp", "avif") else {}
    try:
        Image.fromarray(quarters()).save(path, **options)
    except (KeyError, ValueError, OSError) as error:  # a build of Pillow without the codec
        pytest.skip(f"cannot run here: Pillow can't write {suffix}: {error}")
    assert_quarters(rgb_of(read(path)), tolerance=8)


@pytest.mark.parametrize(
    ("orientation", "names"),
    [
        (1, "red green blue grey"),
        (2, "green red grey blue"),
        (3, "grey blue green red"),
        (4, "blue grey red green"),
        (5, "red blue green grey"),
        (6, "blue red grey green"),
        (7, "grey green blue red"),
        (8, "green grey red blue"),
        (9, "red green blue grey"),
    ],
)
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_a_picture_is_turned_as_its_exif_says(tmp_path: Path, orientation: int, names: str, suffix: str) -> None:
    path = tmp_path / f"picture.{suffix}"
    image = Image.fromarray(quarters())
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(path, exif=exif, **({} if suffix in ("png", "tif") else {"quality": 95}))
    is_sideways = 5 <= orientation <= 8
    assert image_size(path, "test") == ((HEIGHT, WIDTH) if is_sideways else (WIDTH, HEIGHT))
    assert_quarters(rgb_of(read(path)), names, tolerance=8)


def test_a_turned_grey_picture_keeps_its_orientation_through_the_conversion(tmp_path: Path) -> None:
    image = Image.fromarray(np.repeat([[20], [220]], 8, axis=1).repeat(8, axis=0).astype(np.uint8))
    exif = image.getexif()
    exif[0x0112] = 3
    image.save(tmp_path / "grey.png", exif=exif)
    assert read(tmp_path / "grey.png").luma[[0, -1], 0].tolist() == [220, 20]


def sixteen_bits(path: Path) -> None:
    Image.fromarray(np.full((HEIGHT, WIDTH), 200 * 257, np.uint16)).save(path)


def one_bit(path: Path) -> None:
    Image.new("1", (WIDTH, HEIGHT), 1).save(path)


def grey(path: Path) -> None:
    Image.new("L", (WIDTH, HEIGHT), 77).save(path)


def palette(path: Path) -> None:
    Image.new("RGB", (WIDTH, HEIGHT), (200, 200, 200)).quantize(4).save(path)


def half_clear(path: Path) -> None:
    Image.new("RGBA", (WIDTH, HEIGHT), (0, 0, 0, 128)).save(path)


def clear(path: Path) -> None:
    Image.new("LA", (WIDTH, HEIGHT), (0, 0)).save(path)


def clear_palette(path: Path) -> None:
    image = Image.new("P", (WIDTH, HEIGHT), 0)
    image.putpalette([10, 10, 10, 20, 20, 20])
    image.save(path, transparency=0)


def clear_colour(path: Path) -> None:
    Image.new("RGB", (WIDTH, HEIGHT), (10, 10, 10)).save(path, transparency=(10, 10, 10))


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (sixteen_bits, 200),
        (one_bit, 255),
        (grey, 77),
        (palette, 200),
        (half_clear, 127),
        (clear, 255),
        (clear_palette, 255),
        (clear_colour, 255),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_samples_of_every_kind_become_8_bits_over_white(
    tmp_path: Path, write: Callable[[Path], None], expected: int
) -> None:
    path = tmp_path / "picture.png"
    write(path)
    reader = read(path)
    assert np.abs(reader.luma.astype(int) - expected).max() <= 1
    assert np.abs(reader.chroma.astype(int) - 128).max() <= 1


@pytest.mark.parametrize("suffix", ["jpg", "tif"])
def test_cmyk_is_not_taken_for_its_negative(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"picture.{suffix}"
    Image.fromarray(quarters()).convert("CMYK").save(path, **({"quality": 95} if suffix == "jpg" else {}))
    assert_quarters(rgb_of(read(path)), tolerance=8)


def test_sixteen_bit_colour_keeps_its_upper_half(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    wide = (quarters().astype(">u2") * 257).reshape(HEIGHT, -1)
    rows = b"".join(b"\0" + row.tobytes() for row in wide)
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, 2, 0, 0, 0)
    path = tmp_path / "picture.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )
    assert_quarters(rgb_of(read(path)))


def test_samples_without_an_agreed_brightness_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.ones((8, 8), np.float32)).save(tmp_path / "depth.tif")
    with pytest.raises(MediaError, match="32-bit"):
        read(tmp_path / "depth.tif")


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (1, 2), (3, 3), (33, 17), (16_384, 3), (3, 700), (700, 97)])
def test_any_size_fills_exactly_its_planes(tmp_path: Path, size: tuple[int, int]) -> None:
    generator = np.random.default_rng(1)
    pixels = generator.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    reader = read(tmp_path / "picture.png")
    expected = Image.fromarray(pixels).convert("YCbCr")
    assert np.array_equal(reader.luma, np.asarray(expected)[:, :, 0])
    u, v = (reference_chroma(np.asarray(expected)[:, :, plane]) for plane in (1, 2))
    assert np.array_equal(reader.chroma[:, 0::2], u)
    assert np.array_equal(reader.chroma[:, 1::2], v)


def reference_chroma(plane: Bytes) -> Bytes:
    """The rule in words: rows by pairs, columns 1-2-1 around even ones, edges repeated, halves rounded up."""
    rows, columns = plane.shape
    padded = np.pad(plane.astype(int), ((0, rows % 2), (1, 1)), "edge")
    pairs = padded[0::2] + padded[1::2]
    weighted = pairs[:, :-2] + 2 * pairs[:, 1:-1] + pairs[:, 2:]
    return ((weighted[:, 0::2] + 4) >> 3).astype(np.uint8)[:, : (columns + 1) // 2]


# -- broken ones ---------------------------------------------------------------------------------------------------
def png_header(width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return start + struct.pack(">I", 64) + b"IDAT" + b"\0" * 64


@pytest.mark.parametrize("size", [(65_535, 65_535), (16_385, 1), (9000, 9000), (12_000, 12_000), (2**31 - 1, 2)])
def test_an_absurd_size_is_refused_before_anything_is_decoded(tmp_path: Path, size: tuple[int, int]) -> None:
    path = tmp_path / "huge.png"
    path.write_bytes(png_header(*size))
    with pytest.raises(MediaError, match="more than can be taken"):
        image_size(path, "huge.png")


def test_a_picture_of_the_largest_size_is_not_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    path.write_bytes(png_header(8192, 8192))
    assert image_size(path, "large.png") == (8192, 8192)
    assert MAX_PICTURE_PX == 8192 * 8192


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"hello", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"])
def test_what_is_no_image_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "picture.jpg"
    path.write_bytes(content)
    with pytest.raises(MediaError) as caught:
        image_size(path, str(path))
    assert caught.value.fix


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif", "bmp"])
def test_a_truncated_image_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"picture.{suffix}"
    noise = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(MediaError):
        read(path)


def test_a_broken_picture_in_a_folder_is_skipped_with_a_warning_and_the_numbers_stay(tmp_path: Path) -> None:
    for index in range(5):
        Image.new("RGB", (32, 24), (40 * index,) * 3).save(tmp_path / f"{index}.png")
    (tmp_path / "0.png").write_bytes(b"nothing")
    whole = (tmp_path / "3.png").read_bytes()
    (tmp_path / "3.png").write_bytes(whole[:-30])
    source = ImageSource(SourceRequest(0, "gate", str(tmp_path), False, False, ManualClock()), None)
    source.open()
    seen = []
    while not isinstance(lease := source.read(0.0), EndOfStream):
        assert not isinstance(lease, Idle)
        seen.append((lease.info.sequence, int(lease.surface.planes[0].buffer[0, 0])))
        lease.release()
    assert seen == [(1, 40), (2, 80), (4, 160)]
    assert len(source.warnings) == 2
    assert "0.png" in source.warnings[0]
    assert "3.png" in source.warnings[1]


def test_a_folder_of_broken_pictures_is_an_error_and_no_endless_loop(tmp_path: Path) -> None:
    Image.new("RGB", (32, 24)).save(tmp_path / "good.png")
    Image.new("RGB", (32, 24)).save(tmp_path / "fine.png")
    source = ImageSource(SourceRequest(0, "gate", str(tmp_path), False, True, ManualClock()), None)
    source.open()
    lease = source.read(0.0)
    assert not isinstance(lease, Idle | EndOfStream)
    lease.release()
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(MediaError, match="none of its 2 pictures"):
        source.read(0.0)


# -- folders -------------------------------------------------------------------------------------------------------
@given(st.permutations(["a1", "A2", "a10", "a10b", "b", "1", "02", "2", "10", "ä"]))
def test_names_are_sorted_as_people_count(names: list[str]) -> None:
    assert sorted(names, key=natural_key) == ["1", "02", "2", "10", "a1", "A2", "a10", "a10b", "b", "ä"]


@given(st.lists(st.text(max_size=30), max_size=10))
def test_any_names_can_be_sorted_in_one_way_only(names: list[str]) -> None:
    backwards = names[::-1]
    assert sorted(names, key=natural_key) == sorted(backwards, key=natural_key)


def test_a_folder_gives_its_images_only(tmp_path: Path) -> None:
    for name in ("10.PNG", "9.jpg", "notes.txt", ".hidden.png", "clip.mp4"):
        (tmp_path / name).touch()
    (tmp_path / "sub.png").mkdir()
    assert [path.name for path in list_images(tmp_path, "test")] == ["9.jpg", "10.PNG"]
    with pytest.raises(MediaError, match="no image"):
        list_images(tmp_path / "sub.png", "test")
    with pytest.raises(SourceMissingError):
        list_images(tmp_path / "none", "test")


def test_images_of_two_sizes_make_no_source_but_two_groups(tmp_path: Path) -> None:
    for index, size in enumerate([(32, 24), (48, 24), (32, 24)]):
        Image.new("RGB", size).save(tmp_path / f"{index}.png")
    source = ImageSource(SourceRequest(0, "gate", str(tmp_path), False, False, ManualClock()), None)
    with pytest.raises(MediaError, match=r"48x24.*32x24") as caught:
        source.open()
    assert "1.png" in caught.value.where
    groups = image_groups(list_images(tmp_path, "test"))
    assert [(size, [path.name for path in paths]) for size, paths in groups] == [
        ((32, 24), ["0.png", "2.png"]),
        ((48, 24), ["1.png"]),
    ]


def test_a_list_of_images_is_a_source(tmp_path: Path) -> None:
    paths = tuple(tmp_path / f"{name}.png" for name in ("z", "a", "m"))
    for index, path in enumerate(paths):
        Image.new("L", (8, 8), 50 * index).save(path)
    request = SourceRequest(
        0, "gate", "three pictures", False, False, ManualClock(), SourceOptions(fps=2.0), paths=paths
    )
    source = ImageSource(request, None)
    assert source.open().fps == 2.0
    assert source.paths == paths
    for index in range(3):
        lease = source.read(0.0)
        assert not isinstance(lease, Idle | EndOfStream)
        assert lease.surface.planes[0].buffer[0, 0] == 50 * index
        assert lease.info.media_time_s == index / 2
        lease.release()


def test_the_surface_says_full_range_bt601(tmp_path: Path) -> None:
    Image.new("RGB", (31, 17)).save(tmp_path / "a.png")
    source = ImageSource(SourceRequest(0, "gate", str(tmp_path / "a.png"), False, False, ManualClock()), None)
    assert source.open().format == ImageFormat(31, 17, matrix=ColorMatrix.BT601, is_full_range=True)
    lease = source.read(0.0)
    assert not isinstance(lease, Idle | EndOfStream)
    surface: Surface[Bytes] = lease.surface
    assert surface.domain is MemoryDomain.HOST
    planes: tuple[Plane[Bytes], ...] = surface.planes
    assert [(plane.width_bytes, plane.rows) for plane in planes] == [(31, 17), (32, 9)]
