"""Kernels compile for every GPU that we name, with NVRTC 12 and 13; the cubin cache; the descriptor. No GPU needed."""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests import needs
from zhcedge.backends.cuda.descriptor import FORMAT_NUMBERS, FRAME, check_surface, pack
from zhcedge.backends.cuda.nvrtc import KERNELS, Nvrtc, cubin_name, kernel_source, load_cubin
from zhcedge.backends.cuda.text import NAME_CHARACTERS, load_atlas, pack_names
from zhcedge.core.errors import BackendUnavailableError, PipelineError
from zhcedge.core.geometry import plane_sizes
from zhcedge.core.types import ColorMatrix, ImageFormat, Layout, MemoryDomain, PixelFormat, Plane, Surface

ARCHITECTURES = (86, 87, 89, 90, 120)
FOLDER = Path(__file__).parents[2] / "zhcedge" / "backends" / "cuda" / "kernels"


def nvrtc(major: int) -> Nvrtc:
    try:
        library = Nvrtc(major)
    except BackendUnavailableError as error:
        pytest.skip(needs.wheel(str(error)))
    if library.version[0] != major:
        pytest.skip(needs.wheel(f"NVRTC {major} is not installed, only {library.version[0]}"))
    return library


@pytest.mark.parametrize("major", [12, 13])
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_compiles_for_every_gpu(name: str, major: int) -> None:
    library = nvrtc(major)
    for architecture in ARCHITECTURES:
        cubin = library.compile(kernel_source(name), architecture)
        assert cubin.startswith(b"\x7fELF")


def test_every_kernel_file_is_named() -> None:
    assert tuple(sorted(path.stem for path in FOLDER.glob("*.cu"))) == KERNELS


def test_a_kernel_that_does_not_compile_says_where() -> None:
    source = replace(kernel_source("ingest"), text="__global__ void broken() { nonsense; }")
    with pytest.raises(PipelineError, match=r"ingest does not compile for sm_90: [\s\S]*nonsense"):
        nvrtc_any().compile(source, 90)


def test_an_architecture_that_nvrtc_does_not_know_is_an_error() -> None:
    with pytest.raises(PipelineError, match="sm_20"):
        nvrtc_any().compile(kernel_source("ingest"), 20)


def test_without_nvrtc_the_error_says_how_to_get_it() -> None:
    with pytest.raises(BackendUnavailableError, match="pip install"):
        Nvrtc(11)


def nvrtc_any() -> Nvrtc:
    try:
        return Nvrtc()
    except BackendUnavailableError as error:
        pytest.skip(needs.wheel(str(error)))


def test_a_cubins_name_changes_with_all_that_it_depends_on() -> None:
    source = kernel_source("detect")
    base = cubin_name(source, 90, (13, 0))
    others = [
        cubin_name(replace(source, text=source.text + " "), 90, (13, 0)),
        cubin_name(replace(source, header=source.header + " "), 90, (13, 0)),
        cubin_name(replace(source, options=()), 90, (13, 0)),
        cubin_name(source, 89, (13, 0)),
        cubin_name(source, 90, (13, 1)),
        cubin_name(source, 90, (12, 9)),
    ]
    assert len({base, *others}) == 7
    assert cubin_name(kernel_source("detect"), 90, (13, 0)) == base


def test_a_cubin_is_compiled_once_and_then_read(tmp_path: Path) -> None:
    library = nvrtc_any()
    first = load_cubin("ingest", 86, library, tmp_path / "new")
    (file,) = (tmp_path / "new").iterdir()
    assert file.read_bytes() == first
    file.write_bytes(b"changed")
    assert load_cubin("ingest", 86, library, tmp_path / "new") == b"changed"


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert load_cubin("ingest", 86, nvrtc_any(), tmp_path / "file").startswith(b"\x7fELF")


def test_detect_is_compiled_without_fused_multiply_add() -> None:
    assert "--fmad=false" in kernel_source("detect").options
    assert "--fmad=false" not in kernel_source("letterbox").options


# -- the descriptor --------------------------------------------------------------------------------------------
def surface(image: ImageFormat, domain: MemoryDomain = MemoryDomain.DEVICE) -> Surface[int]:
    planes = tuple(
        Plane(0x7F0000000000 + index * 0x10000, width, rows, width + 64)
        for index, (width, rows) in enumerate(plane_sizes(image))
    )
    return Surface(planes, image, domain)


def test_the_descriptor_follows_the_struct_of_the_kernels() -> None:
    image = ImageFormat(1920, 1080, PixelFormat.NV12, matrix=ColorMatrix.BT709, is_full_range=True)
    fields = FRAME.unpack(pack(surface(image), 0xABC000, (640, 640)))
    assert fields[:5] == (0x7F0000000000, 0x7F0000010000, 0, 0xABC000, 0)
    assert fields[5:9] == (1984, 1984, 0, 0)
    assert fields[9:14] == (1920, 1080, 0, 1, 1)
    assert fields[14:] == (640, 360, 0, 140, 1)
    header = (FOLDER / "common.cuh").read_text()
    assert FRAME.size == int(re.findall(r"sizeof\(Frame\) == (\d+)", header)[0])
    numbers = dict(re.findall(r"(\w+) = (\d)", re.findall(r"enum PixelFormat \{(.*?)\}", header)[0]))
    assert {f.value.upper(): str(number) for f, number in FORMAT_NUMBERS.items()} == numbers


def test_all_pixel_formats_pack_their_planes() -> None:
    for image_format in PixelFormat:
        image = ImageFormat(7, 5, image_format)
        addresses = struct.unpack_from("<3Q", pack(surface(image)))
        assert Counter(address != 0 for address in addresses)[True] == len(plane_sizes(image))


@pytest.mark.parametrize(
    "bad",
    [
        surface(ImageFormat(8, 8), MemoryDomain.HOST),
        surface(ImageFormat(8, 8, layout=Layout.BLOCK_LINEAR)),
        replace(surface(ImageFormat(8, 8)), planes=surface(ImageFormat(8, 6)).planes),
        replace(surface(ImageFormat(8, 8)), planes=(Plane(0, 8, 8, 8), Plane(0, 8, 4, 8))),
        replace(surface(ImageFormat(8, 8)), planes=(Plane(64, 8, 8, 4), Plane(640, 8, 4, 8))),
    ],
    ids=["host", "block-linear", "planes", "null", "pitch"],
)
def test_a_surface_that_kernels_cannot_read_is_refused(bad: Surface[int]) -> None:
    with pytest.raises(PipelineError, match="slot"):
        check_surface(bad, "slot")


def test_a_mask_comes_with_its_own_pitch() -> None:
    fields = FRAME.unpack(pack(surface(ImageFormat(7, 5)), mask=Plane(0xDEF000, 4, 3, 256), is_drawn=False))
    assert (fields[4], fields[8], fields[18]) == (0xDEF000, 256, 0)


@pytest.mark.parametrize(
    "mask",
    [Plane(256, 3, 3, 256), Plane(256, 4, 2, 256), Plane(256, 4, 3, 255), Plane(255, 4, 3, 256)],
    ids=["width", "height", "pitch", "address"],
)
def test_a_mask_that_would_leave_something_uncovered_is_refused(mask: Plane[int]) -> None:
    with pytest.raises(PipelineError, match="mask"):
        pack(surface(ImageFormat(7, 5)), mask=mask)


# -- text ------------------------------------------------------------------------------------------------------
def test_names_become_indices_of_the_atlas() -> None:
    names, lengths = pack_names(["person", "", "ü~", "x" * 40])
    atlas = load_atlas()
    assert lengths.tolist() == [6, 0, 2, NAME_CHARACTERS]
    assert "".join(chr(32 + index) for index in names[0, :6]) == "person"
    assert names[2, :2].tolist() == [ord("?") - 32, 94]
    assert int(names.max()) < len(atlas)
